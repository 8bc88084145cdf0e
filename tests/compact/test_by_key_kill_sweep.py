"""Killed before or after anything that changes the store, it leaves each partition as it was, or compacted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.keyed_archives import Keyed, batch, compact_keys, newest, records_of, without_spark
from support.kill_sweeps import sweep
from support.native_archives import Making

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.full


def test_killed_at_any_point_each_partition_is_as_before_or_compacted_and_the_next_run_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_spark(monkeypatch)
    places: list[str] = []

    def make(point: int) -> Callable[[], object]:
        places.append(str(tmp_path / str(point)))
        keyed = Keyed(Making(places[-1]))
        log = {part: [batch(0, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (None, b"x"))] for part in range(2)}
        keyed.backup(log, packed=bool(point % 2))
        return lambda: compact_keys(places[-1], commit_bytes=1)

    make(-1)
    before = records_of(places[0])
    after = newest(before)
    assert before != after
    met = sweep(make, monkeypatch)
    states = set()
    for place in places[1:]:
        found = [records_of(place, partition=part) for part in range(2)]
        assert all(each in (before, after) for each in found)
        states.add(tuple(each == after for each in found))
        assert [records_of(place, "run-000001", partition=part) for part in range(2)] == [before, before]
        compact_keys(place, commit_bytes=1)
        assert [records_of(place, partition=part) for part in range(2)] == [after, after]
        assert records_of(place, "run-000001") == before
    assert states == {(False, False), (True, False), (True, True)}
    for call in ("commit", "write_commit"):
        assert {f"before {call}", f"after {call}"} <= set(met)
