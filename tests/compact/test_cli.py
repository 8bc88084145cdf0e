"""The last line of a compaction never leaves out why nothing was merged."""

from __future__ import annotations

from dataclasses import replace

from maxbrod.compact.cli import _words
from maxbrod.compact.report import CompactReport

NOTHING = CompactReport(
    archive="a", layout="kafka", run_id=None, dry_run=False, started_at_ms=0, finished_at_ms=1, topics=()
)


def test_a_compaction_that_merged_nothing_says_if_it_was_overtaken_or_stopped() -> None:
    assert _words(NOTHING) == "nothing was merged"
    overtaken = _words(replace(NOTHING, overtaken=2))
    assert overtaken == "nothing was merged; 2 merges were dropped, another run replaced the segments"
    stopped = _words(replace(NOTHING, interrupted=True))
    assert stopped == "nothing was merged; stopped on request before its end: the same command goes on"
