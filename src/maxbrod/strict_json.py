"""Parses untrusted JSON: without Python's extensions to the standard, and into values whose fields have their declared
types.
"""

from __future__ import annotations

import json
import math
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast

from maxbrod.bounds import DOCUMENT_DEPTH_MAX, check_document

if TYPE_CHECKING:
    from collections.abc import Buffer

    from pydantic import TypeAdapter

Value = TypeVar("Value")

_INT64: Final = range(-(2**63), 2**63)
_AS_ZERO: Final = bytes(ord("0") if chr(code).isdigit() and code < 128 else ord(" ") for code in range(256))
"""Every digit as a zero, and any other byte as a space."""
_LONG: Final = b"0" * 19
_SHOWN: Final = 40
"""The letters of a wrong value that an error shows."""


def parse(text: str | Buffer, *, depth_max: int = DOCUMENT_DEPTH_MAX, unique: bool = False, wide: bool = False) -> Any:  # noqa: ANN401 - any JSON
    """Parse JSON, in UTF-8. ValueError if invalid: also NaN, repeated keys if `unique`, what exceeds `bounds`.

    Integers over 64 bits are refused too, unless `wide`: a reader may have no use for the field.
    """
    data = text.encode(errors="replace") if isinstance(text, str) else bytes(text)
    check_document(data, depth_max=depth_max)
    try:
        return json.loads(  # noqa: TID251 - the gate itself
            text if isinstance(text, str) else data.decode("utf-8-sig"),
            # A call for each number takes longer than all the rest, and shorter numbers have less than 64 bits.
            parse_int=_integer if not wide and _LONG in data.translate(_AS_ZERO) else None,
            parse_float=_number,
            parse_constant=_refuse,
            object_pairs_hook=_unique if unique else None,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _integer(text: str) -> int:
    # Checked first, because converting a very long number takes quadratic time.
    if len(text) > 20 or int(text) not in _INT64:
        raise ValueError(f"a number has more than 64 bits: {text[:24]}")
    return int(text)


def _number(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"a number is too large: {text[:24]}")
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!a} is repeated")
    return found


def value_of(cls: type[Value], found: object, where: str = "") -> Value:
    """Return a dataclass from parsed JSON. ValueError names the first field that is missing or of another type.

    A field with a default may be missing. Fields that the class does not have are ignored, so that releases can read
    what older and newer ones write.
    """
    from pydantic import ValidationError  # noqa: PLC0415 - slow to load, and most who parse need no values

    try:
        # As JSON text, not as Python values: only there does strict mode take a list for a tuple.
        value: Value = _adapter(cast("Any", cls)).validate_json(json.dumps(found), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, ([where] if where else []) + list(first["loc"]))) or "it"
        text = ascii(first["input"])
        text = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
        problem = "is missing" if first["type"] == "missing" else f"is {text}: {first['msg']}"
        raise ValueError(f"{place} {problem}") from None
    return value


@cache
def _adapter(cls: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - a dataclass
    from pydantic import TypeAdapter  # noqa: PLC0415 - as above

    return TypeAdapter(cls)
