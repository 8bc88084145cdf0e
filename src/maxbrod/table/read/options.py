"""The options of a read: text from Spark, values for us. A name that nobody knows is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from maxbrod.archive.words import parse_partitions, parse_time_ms
from maxbrod.config import StorageConfig
from maxbrod.errors import UsageError
from maxbrod.options import parse_bytes
from maxbrod.table.read.columns import column_names
from maxbrod.table.read.scope import Scope, both, decode_scopes

if TYPE_CHECKING:
    from collections.abc import Mapping

SPLIT_BYTES: Final = 32 << 20
_INT64_MAX: Final = 2**63 - 1
_STORAGE: Final = "storage."
_LEVELS: Final = {"read_committed": True, "read_uncommitted": False}
_INCARNATIONS: Final = ("newest", "all")
_NAMES: Final = (
    *("path", "layout", "topics", "partitions", "startingOffset", "endingOffset", "since", "until", "asOf"),
    *("isolationLevel", "incarnations", "columns", "splitBytes"),
)
SCOPES: Final = "scopes"
"""What `maxbrod query` makes of a query's filters, in the words of `encode_scopes`. No option for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """What a read is to give. `storage` may hold secrets."""

    url: str
    storage: StorageConfig = field(default_factory=StorageConfig, repr=False)
    layout: str | None = None
    topics: tuple[str, ...] = ()
    """Patterns; none: all topics."""
    scope: Scope = field(default_factory=Scope)
    parts: tuple[Scope, ...] = ()
    """Of the scope, only what is in one of these is asked for; none: all of it."""
    as_of: str | None = None
    committed: bool = True
    every_incarnation: bool = False
    columns: tuple[str, ...]
    split_bytes: int = SPLIT_BYTES

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """What is in one of these is to be read; one at least."""
        return tuple(both(self.scope, each) for each in self.parts) or (self.scope,)


def parse_options(options: Mapping[str, str]) -> TableOptions:
    """Names in any case, as Spark hands them over in lower case. UsageError says what cannot be right."""
    given = {name.lower(): value for name, value in options.items()}
    _refuse_unknown(given)

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
        committed=_LEVELS[_choice("isolationLevel", get("isolationLevel") or "read_committed", tuple(_LEVELS))],
        every_incarnation=_choice("incarnations", get("incarnations") or "newest", _INCARNATIONS) == "all",
        columns=tuple(column_names(get("columns"))),
        split_bytes=size_of("splitBytes", get("splitBytes"), SPLIT_BYTES),
    )


def wanted_columns(options: Mapping[str, str]) -> str | None:
    """The option of that name, in any case."""
    return next((value for name, value in options.items() if name.lower() == "columns"), None)


def _refuse_unknown(given: Mapping[str, str]) -> None:
    known = {SCOPES, *(name.lower() for name in _NAMES)}
    unknown = sorted(name for name in given if name not in known and not name.startswith(_STORAGE))
    if unknown:
        raise UsageError(
            f"the table has no option {unknown[0]!r}", hint=f"choose of {', '.join(_NAMES[1:])}, storage.*"
        )


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
        # Not `from error`: Spark would print its cause, too.
        raise UsageError(f"the option storage.{name} cannot be right: {wrong['msg']}") from None


def _number(name: str, word: str) -> int:
    if not (word.isascii() and word.isdigit() and int(word) <= _INT64_MAX):
        raise UsageError(f"the option {name} is {word!r}, which is no offset")
    return int(word)


def size_of(name: str, word: str | None, default: int) -> int:
    """The bytes that an option says, or `default` where it is not given."""
    if word is None:
        return default
    try:
        found = parse_bytes(word)
    except ValueError as error:
        raise UsageError(f"the option {name} is {word!r}, which {error}") from None
    if not isinstance(found, int) or found < 1:
        raise UsageError(f"the option {name} must be 1 at least")
    return found


def _choice(name: str, word: str, choices: tuple[str, ...]) -> str:
    if word not in choices:
        raise UsageError(f"the option {name} is {word!r}", hint=f"choose of {', '.join(choices)}")
    return word
