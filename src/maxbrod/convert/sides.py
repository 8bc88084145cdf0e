"""The storage options of both sides of a conversion: an S3-compatible store and a directory share no setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from maxbrod.config import StorageConfig, complaints
from maxbrod.errors import UsageError
from maxbrod.storage.composed import is_joined
from maxbrod.storage.urls import parse_url

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECTIONS: Final = {"s3": "s3", "gs": "gcs", "az": "azure"}


def sides_of(
    storage: StorageConfig, urls: tuple[str, str], own: tuple[Mapping[str, str], Mapping[str, str]]
) -> tuple[StorageConfig, StorageConfig]:
    """The options of source and target. `own` has each side's settings by their dotted names, such as s3.endpoint.

    A cloud's section of `storage` applies to the sides in that cloud. UsageError: no side is in it.
    """
    schemes = [_scheme(url) for url in urls]
    for scheme, section in _SECTIONS.items():
        if scheme not in schemes and getattr(storage, section) != getattr(StorageConfig(), section):
            raise UsageError(
                f"the options in {section} are for {scheme}://, and neither side is there",
                hint="remove them, or correct SRC or DST",
            )
    source, target = (
        _laid(storage.model_copy(update=_without(_SECTIONS.get(scheme))), given)
        for scheme, given in zip(schemes, own, strict=True)
    )
    return source, target


def _scheme(url: str) -> str:
    return "file" if is_joined(url) else parse_url(url).scheme


def _without(kept: str | None) -> dict[str, Any]:
    """Defaults for the sections of all other clouds."""
    return {name: getattr(StorageConfig(), name) for name in _SECTIONS.values() if name != kept}


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
                raise UsageError(f"the storage has no option {name}", hint="see docs/storage.md")
        place[last] = value
    try:
        return StorageConfig.model_validate(settings)
    except ValidationError as error:
        raise UsageError(
            f"the storage options of one side are wrong: {complaints(error, StorageConfig)}", hint="see docs/storage.md"
        ) from None
