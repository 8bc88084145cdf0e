"""A plan as bytes: JSON in zstd with a digest, so that a resumed restore runs the plan that was stored, or nothing."""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pydantic import TypeAdapter, ValidationError

from maxbrod import strict_json
from maxbrod.batch.compression import compress, unpack_document
from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.model import Codec
from maxbrod.restore.plan.plan import RestorePlan  # noqa: TC001 - pydantic reads the types of fields

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT_FIELD: Final = "maxbrod.restore"
FORMAT_VERSION: Final = 1
_DIGEST_FIELD: Final = "sha256"
_OPERATION: Final = "read the plan of a restore"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    plan: RestorePlan


@cache
def _documents() -> TypeAdapter[_Document]:
    """Made when it is first needed: that takes 0.1 s, and most commands read no plan."""
    return TypeAdapter(_Document)


def encode_plan(plan: RestorePlan) -> bytes:
    """The same plan gives the same bytes."""
    document = {FORMAT_FIELD: FORMAT_VERSION, "plan": _encode(plan)}
    text = _text({**document, _DIGEST_FIELD: hashlib.sha256(_text(document)).hexdigest()})
    return compress(Codec.ZSTD, np.frombuffer(text, np.uint8))


def decode_plan(data: bytes, *, object_name: str | None = None) -> RestorePlan:
    """UnsupportedFormatError: this release does not know the version. CorruptDataError: the plan is damaged.

    Keys that this release does not know are ignored.
    """
    try:
        document = strict_json.parse(unpack_document(data))
        version, digest = document.get(FORMAT_FIELD), document.pop(_DIGEST_FIELD, None)
        text = _text(document)
    except (CorruptDataError, ValueError, AttributeError) as error:
        raise _corrupt(str(error), object_name) from error
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise UnsupportedFormatError(
            f"the plan of a restore has version {version!r}",
            operation=_OPERATION,
            object_name=object_name,
            hint=f"this release knows version {FORMAT_VERSION}; resume with the release that started the restore",
        )
    if digest != hashlib.sha256(text).hexdigest():
        raise _corrupt("its digest does not match", object_name)
    try:
        return _documents().validate_json(text, strict=True).plan
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _corrupt(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", object_name) from error


def _encode(value: object) -> Any:  # noqa: ANN401 - JSON
    """Leaves out fields that have their defaults: there may be 100,000 partitions."""
    if is_dataclass(value):
        pairs = ((field, getattr(value, field.name)) for field in fields(value))
        return {each.name: _encode(found) for each, found in pairs if found != _default(each)}
    if isinstance(value, tuple):
        return [_encode(each) for each in value]
    return dict(value) if isinstance(value, dict) else value


def _default(field: Any) -> Any:  # noqa: ANN401 - of any type
    return field.default if field.default_factory is MISSING else field.default_factory()


def _text(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _corrupt(what: str, object_name: str | None) -> CorruptDataError:
    return CorruptDataError(
        f"the plan of a restore is damaged: {what}",
        operation=_OPERATION,
        object_name=object_name,
        hint="delete what was restored so far, and restore again",
    )
