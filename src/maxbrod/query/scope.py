"""The scope of a query: its topics, times and isolation level, and how keys and values are decoded."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, SecretStr

from maxbrod.archive.pruned import PointInTime, had
from maxbrod.archive.selection import (
    incarnations_in,
    matches_nothing,
    newest_ids,
    parse_partitions,
    parse_time_ms,
    select_names,
)
from maxbrod.archive.snapshots import Moment, find_moment
from maxbrod.catalog.replaced import places_of
from maxbrod.catalog.rows import Run
from maxbrod.errors import UsageError
from maxbrod.model import GapReason
from maxbrod.query.options import ScopeOptions
from maxbrod.table.formats import parse_formats

if TYPE_CHECKING:
    from maxbrod.archive.archive import Archive

RESERVED: Final = ("records", "segments", "runs", "groups", "gaps")
"""Names of tables, which hide topics of the same name."""
_LOG: Final = logging.getLogger(__name__)
_GAP_COLUMNS: Final = ("topic", "topic_id", "partition", "base_offset", "kind", "reason", "run_id")
_LEVELS: Final = ("read_committed", "read_uncommitted")


def check_scope(scope: ScopeOptions) -> None:
    """UsageError: an option is invalid. Checked here, because the table would only do so when Spark has started."""
    for word in (scope.since, scope.until):
        if word is not None:
            parse_time_ms(word)
    if scope.partitions is not None:
        parse_partitions(scope.partitions)
    if scope.isolation not in _LEVELS:
        raise UsageError(f"there is no isolation {scope.isolation!r}", operation="query", hint=" or ".join(_LEVELS))
    parse_formats(scope.key)
    parse_formats(scope.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """The topics of an archive that a query may see."""

    moment: Moment
    topics: frozenset[str]
    newest: frozenset[str]
    """The topic ids that names mean: of topics that were created again, the last one."""
    options: Mapping[str, str] = field(repr=False)
    """Options of the table: how to reach the archive and what to read."""

    def views(self) -> list[str]:
        """The topics that have a view of their own. Names in Spark ignore case, so names that collide have none."""
        taken: dict[str, list[str]] = {name: [name] for name in RESERVED}
        for name in sorted(self.topics):
            taken.setdefault(name.lower(), []).append(name)
        return [names[0] for key, names in taken.items() if len(names) == 1 and key not in RESERVED]


def select(archive: Archive, scope: ScopeOptions, *, layout: str | None) -> Selected:
    """The topics and options of a query. UsageError: a topic or a run does not exist."""
    runs = archive.catalog.runs()
    moment = find_moment(archive.storage, runs, scope.as_of)
    known = incarnations_in(archive.catalog.topics(as_of=moment.ends, revisions=moment.revisions))
    empty = set() if moment.snapshot is None else set(moment.snapshot.topics.values())
    options = {
        "path": archive.url,
        "isolationLevel": scope.isolation,
        **({} if layout is None else {"layout": layout}),
        **dict(_settings("storage", archive.options)),
    }
    given = {"partitions": scope.partitions, "since": scope.since, "until": scope.until, "asOf": scope.as_of}
    options |= {name: word for name, word in given.items() if word is not None}
    names = {incarnation.topic for incarnation in known} | empty
    chosen = sorted(select_names(names, scope.topics, scope.exclude))
    for topic in (topic for words in (scope.key, scope.value) for topic in parse_formats(words) if topic is not None):
        if topic not in chosen:
            raise matches_nothing(topic, chosen, whose="the query")
    partitions = frozenset() if scope.partitions is None else parse_partitions(scope.partitions)
    if partitions:
        portions = archive.catalog.portions(["partition"], as_of=moment.ends, revisions=moment.revisions)
        held = {number for rows in portions for number in rows["partition"].unique().to_pylist()}
        for partition in sorted(partitions - held) if held else ():
            raise UsageError(f"the archive has no partition {partition}", operation="query", hint="see 'maxbrod ls'")
    if names and not chosen:
        raise UsageError("no topic is left to query", operation="query", hint="exclude fewer; see 'maxbrod ls'")
    _warn_of_pruned(archive, moment, runs, scope, chosen)
    if len(chosen) < len(names):
        # Names, not patterns: a pattern may contain the comma that separates them.
        options["topics"] = ",".join(chosen)
    return Selected(
        moment=moment, topics=frozenset(chosen), newest=frozenset(newest_ids(known, moment.ranks)), options=options
    )


def _warn_of_pruned(
    archive: Archive, moment: Moment, runs: Sequence[Run], scope: ScopeOptions, topics: Collection[str]
) -> None:
    """Name the topics of which the chosen point in the past had records that were pruned since."""
    since_ms, until_ms = (None if word is None else parse_time_ms(word) for word in (scope.since, scope.until))
    point = PointInTime(run_id=moment.as_of, until_ms=until_ms, since_ms=since_ms)
    if not point.chosen:
        return
    rows = archive.catalog.gap_rows({GapReason.PRUNED}, _GAP_COLUMNS)
    gone = rows.filter(had(rows, runs, point))
    places = zip(places_of(gone), gone["topic"].to_pylist(), gone["base_offset"].to_pylist(), strict=True)
    ends = moment.ends
    lacking = {topic for place, topic, base in places if ends is None or base < ends.get(place, 0)}
    for topic in sorted(lacking.intersection(topics)):
        _LOG.warning("%s: records that were there then were pruned since, and are not in the answer; see gaps", topic)


def _settings(prefix: str, section: BaseModel) -> Iterable[tuple[str, str]]:
    """Settings that differ from the defaults, as options of the table. With secrets, which tasks need."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _settings(f"{prefix}.{name}", value)
        elif value != type(section).model_fields[name].default:
            yield f"{prefix}.{name}", str(value.get_secret_value() if isinstance(value, SecretStr) else value)
