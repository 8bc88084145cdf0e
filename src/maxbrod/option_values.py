"""How values of options are read from a flag, a file or a Python call, and shown as text.

Nothing large may be imported here: `maxbrod --help` loads it.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, Final

from maxbrod.errors import UsageError

_BYTE_UNITS: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}

_SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reads:
    """How values of one kind are read from a flag, a file or a Python call."""

    parse: Callable[[Any], Any]
    """Applied before the type is checked. Its ValueError is shown to the user and never repeats the value."""
    python: str
    """The type of the keyword parameter, as source text."""
    schema: Mapping[str, Any]
    repeated: bool = False
    """True if the flag may be given more than once."""
    show: Callable[[Any], str] = str
    """The default as text."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:  # noqa: ANN401 - pydantic's own
        from pydantic_core import core_schema  # noqa: PLC0415 - not for `--help`

        return core_schema.no_info_before_validator_function(self.parse, handler(source))

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:  # noqa: ANN401
        handler(core_schema)
        return dict(self.schema)


def parse_bytes(value: object) -> object:
    """`64MiB`, `2 GB`, or a plain number of bytes."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
    if found is None or found[2].lower() not in _BYTE_UNITS:
        raise ValueError("is not a number of bytes such as 64MiB")
    return int(float(found[1]) * _BYTE_UNITS[found[2].lower()])


def parse_rate(value: object) -> object:
    """As bytes, also with `/s` at the end."""
    return parse_bytes(value.strip().removesuffix("/s") if isinstance(value, str) else value)


def parse_seconds(value: object) -> object:
    """`500ms`, `60s`, `5m`, `1h30m`, or a plain number of seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value < 0:
        raise ValueError("must not be negative")
    if not isinstance(value, str):
        return value
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", value.strip().lower())
    if not parts or re.sub(r"\s", "", value.lower()) != "".join(number + unit for number, unit in parts):
        raise ValueError("is not a time such as 60s, 5m or 1h")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def parse_duration_s(text: str) -> int:
    """Seconds of `90s`, `15m`, `24h` or `7d`."""
    match = re.fullmatch(r"(\d{1,9})([smhd])", text.strip(), re.ASCII)
    if match is None:
        raise UsageError(f"{text!r} is no length of time", hint="a whole number and s, m, h or d, such as 90s or 24h")
    return int(match[1]) * int(_SECONDS[match[2]])


def parse_words(value: object) -> object:
    """One word, or several."""
    if value is None:
        return ()
    if isinstance(value, Mapping):
        return value
    return (value,) if isinstance(value, str | Path) or not isinstance(value, Iterable) else tuple(value)


def parse_time(value: object) -> object:
    """A time as text: YAML and Python also have times as values."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def parse_numbers(value: object) -> object:
    """`0,3-5`, one number, or several, as text."""
    if value is None or isinstance(value, str):
        return value
    return ",".join(map(str, sorted(value) if isinstance(value, Iterable) else (value,)))


def parse_counts(value: object) -> object:
    """`12` for all topics, or `topic=12` for one; numbers and mappings as words."""
    if isinstance(value, Mapping):
        return tuple(f"{topic}={count}" for topic, count in value.items())
    words = parse_words(value)
    return tuple(map(str, words)) if isinstance(words, tuple) else words


def parse_pairs(value: object) -> object:
    """`name=value`, each name once; or a mapping."""
    if value is None or isinstance(value, Mapping):
        return {str(name): _text(item) for name, item in (value or {}).items()}
    found: dict[str, str] = {}
    for word in parse_words(value):  # type: ignore[attr-defined] # a tuple
        name, equals, text = str(word).partition("=")
        if not (equals and name):
            raise ValueError(f"{name!r} is not of the form name=value")
        if found.setdefault(name, text) != text:
            raise ValueError(f"{name} has two different values")
    return found


def _text(value: object) -> object:
    """YAML's booleans as Kafka writes them, numbers as text."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def parse_renames(value: object) -> object:
    """`old=new` and `/regex/replacement/` as words; a mapping has old and new names."""
    return tuple(f"{old}={new}" for old, new in value.items()) if isinstance(value, Mapping) else parse_words(value)


def parse_ranges(value: object) -> object:
    """`topic:partition:first..end` as words; Python also has ranges as values."""
    found = (value,) if hasattr(value, "where") else parse_words(value)
    return tuple(map(_range, found)) if isinstance(found, tuple) else found


def _range(value: Any) -> object:  # noqa: ANN401 - a word, or an OffsetRange, which is declared higher up
    if not hasattr(value, "where"):
        return value
    first, end = ("" if offset is None else offset for offset in (value.first, value.end))
    return f"{value.where.topic}:{value.where.partition}:{first}..{end}"


def show_bytes(value: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value and value % size == 0:
            return f"{value // size}{unit}"
    return str(value)


def show_seconds(value: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if value > size and value % size == 0:
            return f"{value / size:g}{unit}"
    return f"{value:g}s"


def parse_registry(value: object) -> object:
    """One or more URLs, separated by commas. A password in one would be in lists of processes and in reports."""
    from urllib.parse import urlsplit  # noqa: PLC0415 - not for `--help`

    if not isinstance(value, str):
        return value
    for word in value.split(","):
        try:
            url = urlsplit(word.strip())
            host, _ = url.hostname, url.port
        except ValueError:
            raise ValueError("is not a URL such as https://registry:8081") from None
        if url.scheme not in {"http", "https"} or not host or url.query or url.fragment:
            raise ValueError("is not a URL such as https://registry:8081")
        if "@" in url.netloc:
            raise ValueError("must not contain a user or a password: the section registry of the file has them")
    return ",".join(word.strip().rstrip("/") for word in value.split(","))


_TEXT: Final = {"type": "string"}

_TEXTS: Final = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}

_SCALAR: Final = {"type": ["string", "number", "boolean"]}

_MAPPING: Final = {"type": "object", "additionalProperties": _SCALAR}

_NUMBERS: Final = {"type": "array", "items": {"type": "integer"}}

RegistryUrl = Annotated[str, Reads(parse=parse_registry, python="str", schema=_TEXT)]

Words = Annotated[
    tuple[str, ...],
    Reads(parse=parse_words, python="str | Iterable[str]", schema=_TEXTS, repeated=True, show=", ".join),
]

Paths = Annotated[
    tuple[Path, ...],
    Reads(parse=parse_words, python="str | Path | Iterable[str | Path]", schema=_TEXTS, repeated=True),
]

Pairs = Annotated[
    dict[str, str],
    Reads(parse=parse_pairs, python="Mapping[str, str]", schema={"anyOf": [_MAPPING, *_TEXTS["anyOf"]]}, repeated=True),
]

Renames = Annotated[
    tuple[str, ...],
    Reads(
        parse=parse_renames,
        python="str | Iterable[str] | Mapping[str, str]",
        schema={"anyOf": [*_TEXTS["anyOf"], {"type": "object", "additionalProperties": _TEXT}]},
        repeated=True,
    ),
]

Ranges = Annotated[
    tuple[str, ...],
    Reads(parse=parse_ranges, python="str | OffsetRange | Iterable[str | OffsetRange]", schema=_TEXTS, repeated=True),
]

Counts = Annotated[
    tuple[str, ...],
    Reads(
        parse=parse_counts,
        python="int | str | Iterable[str] | Mapping[str, int] | None",
        schema={
            "anyOf": [
                {"type": "integer"},
                *_TEXTS["anyOf"],
                {"type": "object", "additionalProperties": {"type": "integer"}},
            ]
        },
        repeated=True,
    ),
]

Bytes = Annotated[
    int, Reads(parse=parse_bytes, python="int | str", schema={"type": ["integer", "string"]}, show=show_bytes)
]

Rate = Annotated[int, Reads(parse=parse_rate, python="int | str", schema={"type": ["integer", "string"]})]

Seconds = Annotated[
    float, Reads(parse=parse_seconds, python="float | str", schema={"type": ["number", "string"]}, show=show_seconds)
]

Time = Annotated[str, Reads(parse=parse_time, python="str | int | datetime", schema={"type": ["string", "integer"]})]

Numbers = Annotated[
    str,
    Reads(
        parse=parse_numbers,
        python="str | int | Iterable[int]",
        schema={"anyOf": [{"type": ["string", "integer"]}, _NUMBERS]},
    ),
]
