"""Proves a conversion: a Spark job reads both archives again, and the digests of every partition must be equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.batch.digest import join
from maxbrod.catalog.rows import Segment, decode_rows, slice_of
from maxbrod.convert.verify_task import Verified, VerifyItem, VerifySettings, run_verify_task
from maxbrod.errors import EXIT_CORRUPT
from maxbrod.notices import Notice
from maxbrod.work.windows import spread

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from maxbrod.archive.archive import Archive
    from maxbrod.convert.plan.parts import ConvertPart
    from maxbrod.convert.report import TopicCounts
    from maxbrod.work.executor import Executor

_SOURCE, _TARGET = 0, 1


def prove(
    executor: Executor,
    source: Archive,
    target: Archive,
    parts: Sequence[ConvertPart],
    counts: Mapping[str, TopicCounts],
    *,
    ignored: Sequence[str],
    run_id: str,
) -> list[Notice]:
    """A notice for each partition that differs. Adds the digests of each topic to its counts.

    `parts` are whole partitions of the source.
    """
    settings = VerifySettings(
        run_id=run_id,
        urls=(source.url, target.url),
        storages=(source.options, target.options),
        ignored=tuple(ignored),
    )
    items = [*_items(_SOURCE, source, parts, by_name=False)]
    items += _items(_TARGET, target, parts, by_name=target.survey is not None)
    tasks = spread([(sum(each.bytes for each in item.slices), item) for item in items], executor.parallelism)
    verified = executor.run(run_verify_task, settings, tasks, name=f"verify-{run_id}")
    found = {(each.archive, each.topic_id, each.where.partition): each for each in verified}
    notices = []
    for part in parts:
        mine, its = (found[side, part.topic_id, part.partition] for side in (_SOURCE, _TARGET))
        if mine.digest != its.digest or mine.failure is not None or its.failure is not None:
            notices.append(_different(part, mine, its))
    for topic, each in counts.items():
        each.verified = _verified(topic, parts, found)
    return notices


def _items(archive: int, opened: Archive, parts: Sequence[ConvertPart], *, by_name: bool) -> Iterator[VerifyItem]:
    """The items for one archive. Other layouts know only topic names; items carry the id of the source."""
    slices: dict[tuple[str, int], list[Segment]] = {}
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
    """The digests of a topic; none if a part could not be read, because the rest may well be equal."""
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
        hint="convert it again into an empty folder; 'maxbrod check --deep' shows which side is damaged",
        exit_code=EXIT_CORRUPT,
    )
