"""The options of a read and of a stream, parsed from the text that Spark passes. Unknown names are refused.

`GivenOptions` is what the sinks parse theirs with, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from pydantic import ValidationError

from maxbrod.archive.selection import parse_partitions, parse_time_ms
from maxbrod.config import StorageConfig
from maxbrod.errors import UsageError
from maxbrod.option_values import parse_bytes
from maxbrod.table.read.columns import column_names
from maxbrod.table.read.scope import Scope, both, decode_scopes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Value = TypeVar("Value")
SPLIT_BYTES: Final = 32 << 20
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_INT64_MAX: Final = 2**63 - 1
_LIMIT_MAX: Final = 1 << 40
"""No batch is this large, and sums of values up to this stay within 64 bits."""
_STORAGE: Final = "storage."
_LEVELS: Final = {"read_committed": True, "read_uncommitted": False}
_INCARNATIONS: Final = {"newest": False, "all": True}
_NAMES: Final = (
    *("layout", "topics", "partitions", "startingOffset", "endingOffset", "since", "until", "asOf"),
    *("isolationLevel", "incarnations", "columns", "splitBytes"),
)
_STREAM_NAMES: Final = ("startingRun", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "failOnDataLoss")
_EMPTY_IS_DEFAULT: Final = ("startingoffset", "isolationlevel", "incarnations")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """The options that a stream has beyond those of a read."""

    table: TableOptions
    starting: str = EARLIEST
    """Or `LATEST`, or a run: where the archive ended then."""
    offsets_max: int | None = None
    """The most offsets of a batch."""
    bytes_max: int | None = None
    """The most stored bytes of a batch. A batch of a single segment may exceed it."""
    fail_on_data_loss: bool = True


def parse_options(options: Mapping[str, str]) -> TableOptions:
    """UsageError names the option that is wrong."""
    filled = {name: value for name, value in options.items() if value or name.lower() not in _EMPTY_IS_DEFAULT}
    given = GivenOptions.known(filled, _NAMES, what="the table", hidden=("path", SCOPES))
    url = given.archive('spark.read.format("maxbrod").load(url)')
    partitions, since, until = given.get("partitions"), given.get("since"), given.get("until")
    offset: dict[str, Any] = {"low": 0, "high": _INT64_MAX, "complaint": ", which is not an offset"}
    return TableOptions(
        url=url,
        storage=given.storage(),
        layout=given.get("layout"),
        topics=tuple(word.strip() for word in given.get("topics", "").split(",") if word.strip()),
        scope=Scope(
            partitions=None if partitions is None else parse_partitions(partitions),
            first_offset=given.number("startingOffset", **offset) or 0,
            end_offset=given.number("endingOffset", **offset),
            since_ms=None if since is None else parse_time_ms(since),
            until_ms=None if until is None else parse_time_ms(until),
        ),
        parts=decode_scopes(given.get(SCOPES) or "[]"),
        as_of=given.get("asOf"),
        committed=given.choice("isolationLevel", "read_committed", _LEVELS),
        every_incarnation=given.choice("incarnations", "newest", _INCARNATIONS),
        columns=tuple(column_names(given.get("columns"))),
        split_bytes=given.size("splitBytes") or SPLIT_BYTES,
    )


def parse_stream_options(options: Mapping[str, str]) -> StreamOptions:
    """UsageError names the option that is wrong."""
    own = {name.lower() for name in _STREAM_NAMES}
    given = GivenOptions({name.lower(): value for name, value in options.items() if name.lower() in own})
    table = parse_options({name: value for name, value in options.items() if name.lower() not in own})
    if table.as_of is not None:
        raise UsageError(
            "a stream has no end, so it cannot have the option asOf",
            hint="read up to a run as a batch, or use the trigger availableNow to stop at what the archive holds now",
        )
    limits = [given.size(name) for name in ("maxOffsetsPerTrigger", "maxBytesPerTrigger")]
    offsets_max, bytes_max = (None if limit is None else min(limit, _LIMIT_MAX) for limit in limits)
    return StreamOptions(
        table=table,
        starting=given.get("startingRun", EARLIEST),
        offsets_max=offsets_max,
        bytes_max=bytes_max,
        fail_on_data_loss=given.switch("failOnDataLoss", default=True),
    )


@dataclass(frozen=True, slots=True)
class GivenOptions:
    """Options of one read or write as text. Names may have any case, because Spark passes them in lower case."""

    by_name: Mapping[str, str] = field(repr=False)
    """By names in lower case. Values may be secrets."""

    @classmethod
    def known(
        cls,
        options: Mapping[str, str],
        names: Sequence[str],
        *,
        what: str,
        hidden: Sequence[str] = (),
        prefixes: tuple[str, ...] = (_STORAGE,),
    ) -> GivenOptions:
        """UsageError: one is unknown. `hidden` names are accepted, but not suggested."""
        given = {name.lower(): value for name, value in options.items()}
        known = {name.lower() for name in (*names, *hidden)}
        unknown = next((name for name in sorted(given) if name not in known and not name.startswith(prefixes)), None)
        if unknown is not None:
            suggested = ", ".join([*names, *(f"{prefix}*" for prefix in prefixes)])
            raise UsageError(f"{what} has no option {unknown!r}", hint=f"choose one of {suggested}")
        return cls(given)

    @overload
    def get(self, name: str) -> str | None: ...
    @overload
    def get(self, name: str, default: str) -> str: ...
    def get(self, name: str, default: str | None = None) -> str | None:
        return self.by_name.get(name.lower(), default)

    def under(self, prefix: str) -> dict[str, str]:
        """The options whose names begin with `prefix`, without it."""
        return {name.removeprefix(prefix): value for name, value in self.by_name.items() if name.startswith(prefix)}

    def archive(self, example: str) -> str:
        """The URL of the archive, which Spark passes as `path`."""
        url = self.get("path")
        if not url:
            raise UsageError("no archive is named", hint=f"give its URL: {example}")
        return url

    def choice(self, name: str, default: str, choices: Mapping[str, Value], *, ignore_case: bool = False) -> Value:
        word = self.get(name, default)
        word = word.lower() if ignore_case else word
        if word not in choices:
            raise UsageError(f"the option {name} is {word!r}", hint=f"choose one of {', '.join(choices)}")
        return choices[word]

    def switch(self, name: str, *, default: bool = False) -> bool:
        return self.choice(name, str(default), {"true": True, "false": False}, ignore_case=True)

    def number(self, name: str, *, low: int, high: int, complaint: str = "", hint: str | None = None) -> int | None:
        """A number from `low` to `high`; None without the option."""
        word = self.get(name)
        if word is None:
            return None
        if not (word.isascii() and word.isdigit() and low <= int(word) <= high):
            raise UsageError(f"the option {name} is {word!r}{complaint}", hint=hint)
        return int(word)

    def size(self, name: str) -> int | None:
        """A number of bytes or offsets, 1 or more, which may have a unit; None without the option."""
        word = self.get(name)
        if word is None:
            return None
        try:
            found = parse_bytes(word)
        except ValueError as error:
            raise UsageError(f"the option {name} is {word!r}, which {error}") from None
        if not isinstance(found, int) or found < 1:
            raise UsageError(f"the option {name} must be at least 1")
        return found

    def storage(self) -> StorageConfig:
        """`storage.s3.endpoint` is the setting `endpoint` of the section `s3`, as in a configuration file."""
        settings: dict[str, Any] = {}
        for name, value in self.under(_STORAGE).items():
            *sections, last = name.split(".")
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
