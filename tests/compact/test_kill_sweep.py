"""Killed before or after anything that changes the store, a compaction leaves all that was readable; the next goes on.

In process: what a kill would end is ended by an exception that nothing catches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.inspect.garbage import collect_garbage
from maxbrod.layouts.parquet.survey import LAYOUT
from support.kill_sweeps import sweep
from support.native_archives import Making, compact, look, segments, without_spark
from support.parquet_trees import local, read, rows, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.full


def test_killed_at_any_point_every_record_stays_readable_and_the_next_compaction_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_spark(monkeypatch)
    places: list[Path] = []

    def make(point: int) -> Callable[[], object]:
        places.append(tmp_path / str(point))
        making = Making(str(places[-1]))
        making.many(4, partitions=2, packed=bool(point % 2))
        return lambda: compact(places[-1], commit_bytes=1)

    make(-1)
    whole = look(places[0])
    met = sweep(make, monkeypatch)
    for place in places[1:]:
        assert look(place) == whole
        compact(place, commit_bytes=1)
        assert look(place) == whole
        assert [(row.partition, row.level) for row in segments(place)] == [(0, 1), (1, 1)]
        # What no row names any more is garbage, but not within the grace time: readers of older versions need it.
        assert collect_garbage(open_archive(str(place)), delete=True).objects == ()
    for call in ("commit", "write_commit"):
        assert {f"before {call}", f"after {call}"} <= set(met)


def test_killed_at_any_point_a_tree_of_parquet_segments_stays_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_spark(monkeypatch)
    places: list[Path] = []

    def make(point: int) -> Callable[[], object]:
        places.append(tmp_path / str(point))
        write(local(places[-1]), [rows(40)], segment_records_max=10)
        return lambda: compact(places[-1])

    make(-1)
    whole = read(local(places[0]), LAYOUT.survey(local(places[0])).segments)
    met = sweep(make, monkeypatch)
    for place in places[1:]:
        assert read(local(place), LAYOUT.survey(local(place)).segments).equals(whole)
        compact(place)
        survey = LAYOUT.survey(local(place))
        assert [each.details["level"] for each in survey.segments] == [1]
        assert read(local(place), survey.segments).equals(whole)
        assert len(list(local(place).list("data"))) == 1
    assert {"before commit", "after commit", "before delete", "after delete"} <= set(met)
