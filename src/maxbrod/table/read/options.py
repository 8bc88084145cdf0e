"""The options of a read, parsed from the text that Spark passes. Unknown names are refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import ValidationError

from maxbrod.archive.words import parse_partitions, parse_time_ms
from maxbrod.config import StorageConfig
from maxbrod.errors import UsageError
from maxbrod.options import parse_bytes
from maxbrod.table.read.columns import column_names
from maxbrod.table.read.scope import Scope, both, decode_scopes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Value = TypeVar("Value")
SPLIT_BYTES: Final = 32 << 20
_INT64_MAX: Final = 2**63 - 1
_STORAGE: Final = "storage."
_LEVELS: Final = {"read_committed": True, "read_uncommitted": False}
_INCARNATIONS: Final = {"newest": False, "all": True}
_NAMES: Final = (
    *("layout", "topics", "partitions", "startingOffset", "endingOffset", "since", "until", "asOf"),
    *("isolationLevel", "incarnations", "columns", "splitBytes"),
)
SCOPES: Final = "scopes"
"""The filters of a query, written by `maxbrod query` with `encode_scopes`. Not an option for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """The parsed options of a read. `storage` may hold secrets."""

    url: str
    storage: StorageConfig = field(default_factory=StorageConfig, repr=False)
    layout: str | None = None
    topics: tuple[str, ...] = ()
    """Patterns; empty: all topics."""
    scope: Scope = field(default_factory=Scope)
    parts: tuple[Scope, ...] = ()
    """If not empty, only the parts of the scope that are in one of these are read."""
    as_of: str | None = None
    committed: bool = True
    every_incarnation: bool = False
    columns: tuple[str, ...]
    split_bytes: int = SPLIT_BYTES

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """At least one. Everything in one of them is read."""
        return tuple(both(self.scope, part) for part in self.parts) or (self.scope,)


def parse_options(options: Mapping[str, str]) -> TableOptions:
    """Names in any case, because Spark passes them in lower case. UsageError names the option that is wrong."""
    given = known_options(options, _NAMES, what="the table", hidden=("path", SCOPES))

    def get(name: str) -> str | None:
        return given.get(name.lower())

    url = get("path")
    if not url:
        raise UsageError("no archive is named", hint='give its URL: spark.read.format("maxbrod").load(url)')
    partitions, since, until = get("partitions"), get("since"), get("until")
    end = get("endingOffset")
    return TableOptions(
        url=url,
        storage=storage_of(given),
        layout=get("layout"),
        topics=tuple(word.strip() for word in (get("topics") or "").split(",") if word.strip()),
        scope=Scope(
            partitions=None if partitions is None else parse_partitions(partitions),
            first_offset=_number("startingOffset", get("startingOffset") or "0"),
            end_offset=None if end is None else _number("endingOffset", end),
            since_ms=None if since is None else parse_time_ms(since),
            until_ms=None if until is None else parse_time_ms(until),
        ),
        parts=decode_scopes(get(SCOPES) or "[]"),
        as_of=get("asOf"),
        committed=choice("isolationLevel", get("isolationLevel") or "read_committed", _LEVELS),
        every_incarnation=choice("incarnations", get("incarnations") or "newest", _INCARNATIONS),
        columns=tuple(column_names(get("columns"))),
        split_bytes=size_of("splitBytes", get("splitBytes"), SPLIT_BYTES),
    )


def wanted_columns(options: Mapping[str, str]) -> str | None:
    """The option `columns`, in any case."""
    return next((value for name, value in options.items() if name.lower() == "columns"), None)


def known_options(
    options: Mapping[str, str],
    names: Sequence[str],
    *,
    what: str,
    hidden: Sequence[str] = (),
    prefixes: tuple[str, ...] = (_STORAGE,),
) -> dict[str, str]:
    """The options by their names in lower case, as Spark passes them. UsageError: one is unknown.

    `hidden` names are accepted, but not suggested.
    """
    given = {name.lower(): value for name, value in options.items()}
    known = {name.lower() for name in (*names, *hidden)}
    unknown = next((name for name in sorted(given) if name not in known and not name.startswith(prefixes)), None)
    if unknown is not None:
        suggested = ", ".join([*names, *(f"{prefix}*" for prefix in prefixes)])
        raise UsageError(f"{what} has no option {unknown!r}", hint=f"choose one of {suggested}")
    return given


def storage_of(given: Mapping[str, str]) -> StorageConfig:
    """`storage.s3.endpoint` is the setting `endpoint` of the section `s3`, as in a configuration file."""
    settings: dict[str, Any] = {}
    for name, value in given.items():
        if name.startswith(_STORAGE):
            *sections, last = name.removeprefix(_STORAGE).split(".")
            place = settings
            for section in sections:
                place = place.setdefault(section, {})
            place[last] = value
    try:
        return StorageConfig.model_validate(settings)
    except ValidationError as error:
        wrong = error.errors(include_input=False, include_url=False)[0]
        name = ".".join(map(str, wrong["loc"]))
        # Not `from error`, because Spark would print the cause with its values, which may be secrets.
        raise UsageError(f"the option storage.{name} is invalid: {wrong['msg']}") from None


def _number(name: str, word: str) -> int:
    if not (word.isascii() and word.isdigit() and int(word) <= _INT64_MAX):
        raise UsageError(f"the option {name} is {word!r}, which is not an offset")
    return int(word)


def size_of(name: str, word: str | None, default: int) -> int:
    """The bytes that an option gives, or `default` without it."""
    if word is None:
        return default
    try:
        found = parse_bytes(word)
    except ValueError as error:
        raise UsageError(f"the option {name} is {word!r}, which {error}") from None
    if not isinstance(found, int) or found < 1:
        raise UsageError(f"the option {name} must be at least 1")
    return found


def choice(name: str, word: str, choices: Mapping[str, Value]) -> Value:
    """What an option means. UsageError: none of the choices."""
    if word not in choices:
        raise UsageError(f"the option {name} is {word!r}", hint=f"choose one of {', '.join(choices)}")
    return choices[word]


def switch(name: str, word: str) -> bool:
    return choice(name, word.lower(), {"true": True, "false": False})
