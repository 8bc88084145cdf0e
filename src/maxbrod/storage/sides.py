"""The storage options of verbs with two sides: what the configuration says, and what each side adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from maxbrod.config import StorageConfig, complaints
from maxbrod.errors import UsageError
from maxbrod.storage.composed import is_joined
from maxbrod.storage.urls import parse_url

_SECTIONS: Final = {"s3": "s3", "gs": "gcs", "az": "azure"}


def sides_of(
    storage: StorageConfig, urls: tuple[str, str], own: tuple[Mapping[str, str], Mapping[str, str]]
) -> tuple[StorageConfig, StorageConfig]:
    """Return the storage options of both sides: an S3-compatible store and a directory share no setting.

    `own` has each side's settings by their dotted names, such as s3.endpoint.
    A cloud's section of `storage` applies to the sides in that cloud. UsageError: no side is in it.
    """
    schemes = ["file" if is_joined(url) else parse_url(url).scheme for url in urls]
    defaults = {section: getattr(StorageConfig(), section) for section in _SECTIONS.values()}
    for scheme, section in _SECTIONS.items():
        if scheme not in schemes and getattr(storage, section) != defaults[section]:
            raise UsageError(
                f"the options in {section} are for {scheme}://, and neither side is there",
                hint="remove them, or correct SRC or DST",
            )
    source, target = (
        _laid(
            storage.model_copy(
                update={name: value for name, value in defaults.items() if name != _SECTIONS.get(scheme)}
            ),
            given,
        )
        for scheme, given in zip(schemes, own, strict=True)
    )
    return source, target


def _laid(storage: StorageConfig, given: Mapping[str, str]) -> StorageConfig:
    if not given:
        return storage
    settings: dict[str, Any] = {
        name: dict(value) if hasattr(value, "model_fields_set") else value for name, value in storage
    }
    for name, value in given.items():
        *sections, last = name.split(".")
        place = settings
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise UsageError(f"the storage has no option {name}", hint="see 'maxbrod help storage'")
        place[last] = value
    try:
        return StorageConfig.model_validate(settings)
    except ValidationError as error:
        raise UsageError(
            f"the storage options of one side are wrong: {complaints(error, StorageConfig)}",
            hint="see 'maxbrod help storage'",
        ) from None
