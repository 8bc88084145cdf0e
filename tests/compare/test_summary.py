"""What a comparison says in the end."""

from __future__ import annotations

from maxbrod.compare.cli import verdict
from maxbrod.compare.report import CompareReport, PartitionComparison


def report(*notes: str) -> CompareReport:
    partition = PartitionComparison(
        source_topic="orders",
        target_topic="orders",
        partition=0,
        match="exact",
        source_records=10,
        target_records=10,
        source_digest="",
        target_digest="",
        equal=True,
        notes=notes,
    )
    return CompareReport(
        source="/archive",
        target="",
        started_at_ms=0,
        finished_at_ms=1,
        ignored=(),
        partitions=(partition,),
        differences=(),
    )


def test_nothing_more_is_only_said_if_everything_was_compared() -> None:
    assert str(verdict(report())).endswith("and nothing more")
    told = str(verdict(report("the target has more: 5 offsets from 10 on are not compared")))
    assert told == "equal: 10 records, every field of each, as far as they were compared: see above"
