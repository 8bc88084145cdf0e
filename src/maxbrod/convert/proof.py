"""Proves a conversion: reads both archives once more, and holds the digests of every partition against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.batch.digest import join
from maxbrod.catalog.rows import Segment, decode_rows, slice_of
from maxbrod.convert.verify_job import run_verify_job
from maxbrod.convert.verify_task import VerifyItem, VerifySettings
from maxbrod.engine.windows import spread
from maxbrod.errors import EXIT_CORRUPT
from maxbrod.notices import Notice

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from maxbrod.archive.opening import Archive
    from maxbrod.convert.plan.parts import ConvertPart
    from maxbrod.convert.report import TopicCounts
    from maxbrod.convert.verify_task import Verified
    from maxbrod.engine.session import Session

_SOURCE, _TARGET = 0, 1
_Key = tuple[str, int]


def prove(
    session: Session,
    source: Archive,
    target: Archive,
    parts: Sequence[ConvertPart],
    counts: Mapping[str, TopicCounts],
    *,
    ignored: Sequence[str],
    parallelism: int,
    run_id: str,
) -> list[Notice]:
    """What differs. The digests of each topic are put into its counts. `parts` are whole partitions of the source."""
    settings = VerifySettings(
        run_id=run_id,
        urls=(source.url, target.url),
        storages=(source.options, target.options),
        ignored=tuple(ignored),
    )
    items = [*_items(_SOURCE, source, parts, by_name=False)]
    items += _items(_TARGET, target, parts, by_name=target.survey is not None)
    tasks = spread([(sum(each.bytes for each in item.slices), item) for item in items], parallelism)
    answers = run_verify_job(session, settings, tasks)
    found = {(each.archive, each.topic_id, each.where.partition): each for each in answers}
    notices = []
    for part in parts:
        mine, its = (found[side, part.topic_id, part.partition] for side in (_SOURCE, _TARGET))
        if mine.digest != its.digest or mine.failure is not None or its.failure is not None:
            notices.append(_different(part, mine, its))
    for topic, each in counts.items():
        each.verified = _verified(topic, parts, found)
    return notices


def _items(archive: int, opened: Archive, parts: Sequence[ConvertPart], *, by_name: bool) -> Iterator[VerifyItem]:
    """Other layouts know topics by their names alone; the item still carries the id of the source."""
    slices: dict[_Key, list[Segment]] = {}
    for row in decode_rows(opened.catalog.rows()):
        if isinstance(row, Segment):
            slices.setdefault((row.topic if by_name else row.topic_id, row.partition), []).append(row)
    for part in parts:
        key = (part.topic if by_name else part.topic_id, part.partition)
        first, end = part.rows[0].base_offset, part.end
        rows = [row for row in slices.get(key, []) if row.end_offset > first and row.base_offset < end]
        yield VerifyItem(
            archive=archive,
            where=part.where,
            topic_id=part.topic_id,
            first=first,
            end=end,
            slices=tuple(slice_of(row) for row in rows),
        )


def _verified(
    topic: str, parts: Sequence[ConvertPart], found: Mapping[tuple[int, str, int], Verified]
) -> dict[str, int | str]:
    """Nothing where a part of it could not be read: what is left of both sides may well be equal."""
    mine = [part for part in parts if part.topic == topic]
    if any(found[side, part.topic_id, part.partition].failure for part in mine for side in (_SOURCE, _TARGET)):
        return {}
    source, target = (
        join(found[side, part.topic_id, part.partition].digest for part in mine) for side in (_SOURCE, _TARGET)
    )
    return {
        "source_records": source.records,
        "target_records": target.records,
        "source_digest": source.sequence_text,
        "target_digest": target.sequence_text,
    }


def _different(part: ConvertPart, mine: Verified, its: Verified) -> Notice:
    failure = its.failure or mine.failure
    return Notice(
        kind="different",
        message=f"the source has {mine.digest.records} records, the target {its.digest.records}, and they differ"
        if failure is None
        else str(failure["message"]),
        topic=part.topic,
        partition=part.partition,
        first_offset=part.rows[0].base_offset,
        end_offset=part.end,
        hint="convert it again into an empty place; 'maxbrod check --deep' tells which side is damaged",
        exit_code=EXIT_CORRUPT,
    )
