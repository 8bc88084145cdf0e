"""The request for a restore, checked as far as that needs neither archive nor cluster.

Owns the words of the command line and their meaning. Times are milliseconds; `since` is inclusive and `until`
exclusive, as are the first and the end of an offset range. The preflight checks whether the request is possible.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from maxbrod.archive.renames import Rename, unused_rule
from maxbrod.archive.selection import PARTITIONS_MAX, matches_nothing, select_topics
from maxbrod.errors import UsageError
from maxbrod.model import INT64_MAX, TopicPartition, is_topic_name
from maxbrod.registry.remap import parse_part
from maxbrod.transform.plan import Transform

if TYPE_CHECKING:
    from maxbrod.kafka.state.cluster_state import Group


_INT32_MAX: Final = 2**31 - 1
_OPERATION: Final = "read what to restore"
_RANGE: Final = re.compile(
    r"(?P<topic>[^:]+):(?P<partition>\d{1,10}):(?P<first>\d{0,19})\.\.(?P<end>\d{0,19})", re.ASCII
)


class OffsetsMode(StrEnum):
    """The offsets of restored records: their own (exact), consecutive (append), or exact if that is cheap (auto)."""

    AUTO = "auto"
    EXACT = "exact"
    APPEND = "append"


class BatchesMode(StrEnum):
    """When neighbouring batches are joined: if they are small, never, or always."""

    AUTO = "auto"
    KEEP = "keep"
    JOIN = "join"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Offsets [first, end) of a source partition; None: as far as the archive reaches."""

    where: TopicPartition
    first: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRequest:
    """Empty means no restriction, except for `groups`, which are restored only if they are named."""

    topics: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    internal: bool = False
    partitions: frozenset[int] = frozenset()
    ranges: tuple[OffsetRange, ...] = ()
    """If a topic has ranges, only these of its partitions are restored."""
    since_ms: int | None = None
    until_ms: int | None = None
    as_of: str | None = None
    topic_ids: frozenset[str] = frozenset()
    """Incarnations to restore; for topics without one, the newest."""
    rename: Rename = field(default_factory=Rename)
    partition_count: int | None = None
    """Another number of partitions for all target topics: keys are hashed again."""
    partition_counts: Mapping[str, int] = field(default_factory=dict)
    """The same for single topics of the archive."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """Settings of the topics that are created, instead of the archived ones."""
    offsets: OffsetsMode = OffsetsMode.AUTO
    batches: BatchesMode = BatchesMode.AUTO
    strict: bool = False
    accept_gaps: bool = False
    """Restore although the archive lacks some of the records."""
    again: bool = False
    """Restore again what the same command has already restored."""
    order: tuple[str, ...] = ()
    """Patterns of topics that are restored before the others, the first pattern first."""
    rate_bytes_per_s: int | None = None
    groups: tuple[str, ...] = ()
    force_groups: bool = False
    """Also move groups that have members."""
    provenance: bool = False
    """Add headers to every record that name its source."""
    with_acls: bool = False
    with_quotas: bool = False
    with_settings: bool = False
    where: str | None = None
    """Restore only records for which this Spark SQL expression is true."""
    select: str | None = None
    """Spark SQL expressions that rewrite fields of records."""
    schema_registry: str | None = None
    """Bring the captured schemas back into the registry at this URL."""
    remap_schemas: bool = False
    """Under ids that the registry gives."""
    framed: tuple[str, ...] = ()
    unframed: tuple[str, ...] = ()
    """Topics, or their keys or values, that have schema ids or have none."""
    staging: str | None = None
    """The URL where transformed records are staged until they are restored; None: in the archive."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def transform(self) -> Transform | None:
        """The transformation of records; None: they stay unchanged."""
        if self.where is None and self.select is None:
            return None
        return Transform(where=self.where, select=self.select)

    def selects(self, topic: str, partition: int) -> bool:
        ranged = {range_.where.partition for range_ in self.ranges if range_.where.topic == topic}
        return (not ranged or partition in ranged) and (not self.partitions or partition in self.partitions)

    def range_of(self, topic: str, partition: int) -> tuple[int | None, int | None]:
        """Return the first offset and the end that it names for this partition."""
        where = TopicPartition(topic=topic, partition=partition)
        return next(((range_.first, range_.end) for range_ in self.ranges if range_.where == where), (None, None))

    def partition_count_of(self, topic: str) -> int | None:
        """The requested number of partitions for this topic of the archive; None: as many as it has."""
        return self.partition_counts.get(topic, self.partition_count)


Word = TypeVar("Word", bound=StrEnum)


def parse_word(kind: type[Word], flag: str, word: str, *, known: Iterable[str] = ()) -> Word:
    """Return the value of an option that has a few. `known` are those to name, if not all."""
    try:
        return kind(word)
    except ValueError:
        *others, last = known or kind
        raise _wrong(f"--{flag} {word!r} is unknown", f"give {', '.join(others)} or {last}") from None


def parse_range(word: str) -> OffsetRange:
    """`topic:partition:first..end`, either of which may be left out."""
    match = _RANGE.fullmatch(word)
    if match is None or not (match["first"] or match["end"]):
        raise _wrong(
            f"{word!r} is not a range of offsets", "give topic:partition:first..end, such as orders:3:100..200"
        )
    first, end = (int(text) if text else None for text in (match["first"], match["end"]))
    where = TopicPartition(topic=match["topic"], partition=int(match["partition"]))
    return OffsetRange(where=where, first=first, end=end)


def parse_partition_counts(words: Iterable[str]) -> tuple[int | None, dict[str, int]]:
    """`12` for all topics, `topic=12` for one."""
    found: dict[str, int] = {}
    for word in words:
        topic, equals, count = word.rpartition("=")
        if re.fullmatch(r"\d{1,6}", count, re.ASCII) is None or (equals and not is_topic_name(topic)):
            raise _wrong(f"{word!r} is not a number of partitions", "give a number, or topic=number, such as orders=12")
        if found.setdefault(topic, int(count)) != int(count):
            name = topic or "all topics"
            raise _wrong(f"both {found[topic]} and {count} partitions are given for {name}", "give one of them")
    everywhere = found.pop("", None)
    return everywhere, found


def command_digest(request: RestoreRequest, *, archive: str, cluster_id: str) -> str:
    """The digest of a command. It depends on the command alone, so the same command again finds its restore.

    `archive` and `cluster_id` are names without secrets.
    """
    # The key "wish" is older than the class's name. Another key would give other digests, and restores that an
    # earlier release began would no longer be found.
    document = {"archive": archive, "cluster_id": cluster_id, "wish": encode_request(request)}
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def encode_request(request: RestoreRequest) -> dict[str, Any]:
    """The request as plain JSON values. Sets and patterns are sorted: their order has no meaning."""
    fields = asdict(request)
    for name in ("topics", "exclude", "partitions", "topic_ids", "groups"):
        fields[name] = sorted(set(fields[name]))
    fields["ranges"] = sorted(
        [range_.where.topic, range_.where.partition, _or(range_.first, 0), _or(range_.end, INT64_MAX)]
        for range_ in request.ranges
    )
    # These say how to restore, not what.
    how = ("batches", "order", "rate_bytes_per_s", "force_groups", "staging", "again", "framed", "unframed")
    for name in how:
        del fields[name]
    # A restore that was stopped by damage is resumed by the same command with --accept-gaps.
    fields["accept_gaps"] = False
    # Options that are not used are left out, so that restores which an earlier release began are still found.
    for name in ("partition_counts", "where", "select", "with_settings", "schema_registry", "remap_schemas"):
        if not fields[name]:
            del fields[name]
    return fields


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def _check(request: RestoreRequest) -> None:
    if request.since_ms is not None and request.until_ms is not None and request.since_ms >= request.until_ms:
        raise _wrong("--until is not later than --since, so no record matches", "give an --until after --since")
    if any(partition < 0 or partition >= PARTITIONS_MAX for partition in request.partitions):
        raise _wrong("a partition's number is out of range", "partitions count from 0")
    counts = [
        *request.partition_counts.values(),
        *([] if request.partition_count is None else [request.partition_count]),
    ]
    for count in counts:
        if not 0 < count <= PARTITIONS_MAX:
            raise _wrong(f"a topic cannot have {count} partitions", f"give 1 to {PARTITIONS_MAX}")
    if request.rate_bytes_per_s is not None and request.rate_bytes_per_s <= 0:
        raise _wrong("the rate is not above 0, so the restore would never end", "give a rate above 0")
    if request.force_groups and not request.groups:
        raise _wrong("--force-groups needs groups", "name groups with --groups, '*' for all")
    _check_schemas(request)
    if request.transform is None and request.staging is not None:
        raise _wrong("--staging needs a transformation", "give --where or --select, or leave --staging out")
    for patterns in ((*request.topics, *request.exclude), request.groups, request.order):
        select_topics({}, patterns)  # raises for invalid patterns
    _check_ranges(request.ranges)


def _check_schemas(request: RestoreRequest) -> None:
    if request.remap_schemas and request.schema_registry is None:
        raise _wrong("--remap-schemas needs a registry", "give --schema-registry URL")
    if request.remap_schemas and request.strict:
        raise _wrong("--remap-schemas changes records, which --strict refuses", "leave one of them out")
    if (request.framed or request.unframed) and not request.remap_schemas:
        raise _wrong("--framed and --unframed are about --remap-schemas", "leave them out, or give --remap-schemas")
    for word in (*request.framed, *request.unframed):
        select_topics({}, [parse_part(word)[0]])  # raises for invalid patterns


def _check_ranges(ranges: Iterable[OffsetRange]) -> None:
    seen: set[TopicPartition] = set()
    for range_ in ranges:
        where, first, end = range_.where, _or(range_.first, 0), _or(range_.end, INT64_MAX)
        if not is_topic_name(where.topic) or not 0 <= where.partition <= _INT32_MAX:
            raise _wrong(f"{where} is not a valid partition", "give topic:partition:first..end", where)
        if not 0 <= first < end <= INT64_MAX:
            raise _wrong(f"no offset is in the range {first} to {end}", "the end is exclusive", where)
        if where in seen:
            raise _wrong("two ranges are given for one partition", "restore them one after the other", where)
        seen.add(where)


def _wrong(message: str, hint: str, where: TopicPartition | None = None) -> UsageError:
    return UsageError(message, operation=_OPERATION, object_name=None if where is None else str(where), hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The chosen incarnations, topic id to name. `missing` are names and ids that the archive does not have."""

    topics: Mapping[str, str]
    missing: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    """Internal topics of the archive, which are chosen only by name."""
    wrong: tuple[UsageError, ...] = ()
    """An error for each word without effect: missing names and ids, patterns without a match, unused rules."""


def choose_incarnations(request: RestoreRequest, archived: Mapping[str, str], newest: Container[str]) -> Chosen:
    """Choose from the archive's topics (id to name). `newest` are the ids that a name without an id stands for."""
    selection = select_topics(
        dict.fromkeys(archived.values(), False), request.topics, request.exclude, internal=request.internal
    )
    named = {archived[topic_id] for topic_id in request.topic_ids if topic_id in archived}
    names = set(selection.chosen)
    topics = {
        topic_id: name
        for topic_id, name in archived.items()
        if name in names and (topic_id in request.topic_ids if name in named else topic_id in newest)
    }
    named_elsewhere = {*(range_.where.topic for range_ in request.ranges), *request.partition_counts} - set(
        topics.values()
    )
    absent = [*selection.missing, *(request.topic_ids - archived.keys()), *named_elsewhere]
    missing = sorted(set(absent))
    known, meant = sorted(set(archived.values())), sorted(set(topics.values()))
    first = select_topics(dict.fromkeys(meant, False), request.order, internal=True)
    words = [*missing, *selection.unmatched, *selection.unused, *first.missing, *first.unmatched]
    rules = [unused_rule(rule, meant) for rule in request.rename.unused(meant)] if meant else []
    wrong = [*(matches_nothing(word, known) for word in words), *rules]
    every = select_topics(dict.fromkeys(archived.values(), False), request.topics, request.exclude, internal=True)
    return Chosen(
        topics=topics,
        missing=tuple(missing),
        left_out=tuple(sorted(set(every.chosen) - names)),
        wrong=tuple(wrong),
    )


def in_stages(order: Iterable[str], names: Iterable[str]) -> list[frozenset[str]]:
    """Divide topics into those that match the first pattern, the second, and so on; the rest comes last."""
    rest, stages = set(names), []
    for pattern in order:
        chosen = frozenset(select_topics(dict.fromkeys(rest, False), [pattern], internal=True).chosen)
        stages.append(chosen)
        rest -= chosen
    return [stage for stage in (*stages, frozenset(rest)) if stage]


def choose_groups(patterns: Sequence[str], groups: Iterable[Group]) -> tuple[tuple[Group, ...], tuple[str, ...]]:
    """The groups that match a pattern, none without patterns; and the names and patterns that match no group.

    `*` is not among the latter: without any group it is no mistake.
    """
    if not patterns:
        return (), ()
    known = {group.group_id: group for group in groups}
    selection = select_topics(dict.fromkeys(known, False), patterns, internal=True)
    return tuple(known[name] for name in selection.chosen), (*selection.missing, *selection.unmatched)
