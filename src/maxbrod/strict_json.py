"""JSON that somebody else may have written: parsed without what Python takes beyond the standard, and made into values
whose every field has the type that it is declared with.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, Union, cast, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable

    Reader = Callable[[Any, str], Any]

Value = TypeVar("Value")

_INT64: Final = range(-(2**63), 2**63)


def parse(text: str | bytes, *, depth_max: int | None = None, unique: bool = False) -> Any:  # noqa: ANN401 - any JSON
    """ValueError: no JSON, a number beyond 64 bits, NaN, nested too deep, or, if `unique`, a key that comes twice."""
    try:
        found = json.loads(
            text,
            parse_int=_integer,
            parse_float=_number,
            parse_constant=_refuse,
            object_pairs_hook=_unique if unique else None,
        )
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if depth_max is not None:
        _bound(found, depth_max)
    return found


def _integer(text: str) -> int:
    # Python takes no time to count the digits of what it will not parse.
    if len(text) > 20 or int(text) not in _INT64:
        raise ValueError(f"a number has more than 64 bits: {text[:24]}")
    return int(text)


def _number(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"a number is too large: {text[:24]}")
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!a} comes twice")
    return found


def _bound(value: object, depth_max: int) -> None:
    level = [value]
    for _ in range(depth_max):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise ValueError("it is nested too deep")


def value_of(cls: type[Value], found: object, where: str = "") -> Value:
    """A dataclass of JSON fields. ValueError names the field that is missing or of another type.

    A field with a default may be missing, and fields that the class does not have are passed over, so that what older
    and newer releases write can be read.
    """
    return cast("Value", _reader(cast("Any", cls))(found, where))


@cache
def _reader(hint: Any) -> Reader:  # noqa: ANN401 - a type, as it is declared
    if get_origin(hint) in {Union, UnionType}:
        return _optional(_reader(next(each for each in get_args(hint) if each is not NoneType)))
    if get_origin(hint) is tuple:
        return _sequence(_reader(get_args(hint)[0]))
    if get_origin(hint) is Mapping:
        return _mapping(_reader(get_args(hint)[1]))
    return _record(hint) if is_dataclass(hint) else _plain(hint)


def _plain(kind: type[Any]) -> Reader:
    def read(found: Any, where: str) -> Any:  # noqa: ANN401 - any JSON
        if type(found) is kind:
            return found
        if kind is float and type(found) is int:
            return float(found)
        raise _wrong(where, found, kind.__name__)

    return read


def _optional(inner: Reader) -> Reader:
    return lambda found, where: None if found is None else inner(found, where)


def _sequence(inner: Reader) -> Reader:
    def read(found: Any, where: str) -> tuple[Any, ...]:  # noqa: ANN401 - any JSON
        if type(found) not in {list, tuple}:
            raise _wrong(where, found, "list")
        return tuple([inner(each, where) for each in found])

    return read


def _mapping(inner: Reader) -> Reader:
    def read(found: Any, where: str) -> dict[str, Any]:  # noqa: ANN401 - any JSON
        if type(found) is not dict:
            raise _wrong(where, found, "object")
        return {name: inner(each, f"{where}.{name}") for name, each in found.items()}

    return read


def _record(cls: Any) -> Reader:  # noqa: ANN401 - a dataclass
    hints = get_type_hints(cls)
    wanted = {each.name: _reader(hints[each.name]) for each in fields(cls)}
    defaults = {each.name for each in fields(cls) if each.default is not MISSING or each.default_factory is not MISSING}

    def read(found: Any, where: str) -> Any:  # noqa: ANN401 - of the class
        if type(found) is not dict:
            raise _wrong(where, found, "object")
        values = {}
        for name, reader in wanted.items():
            place = f"{where}.{name}" if where else name
            if name in found:
                values[name] = reader(found[name], place)
            elif name not in defaults:
                raise ValueError(f"{place} is missing")
        return cls(**values)

    return read


def _wrong(where: str, found: object, wanted: str) -> ValueError:
    text = ascii(found)
    return ValueError(f"{where or 'it'} is {text if len(text) <= 40 else f'{text[:37]}...'}, which is no {wanted}")
