"""Killed before or after anything that changes the store: readers see all or nothing of a person, and the next run ends
what was begun.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.archive.archive import open_archive
from support.erasures import erase, holds_bytes, read
from support.keyed_archives import Keyed, batch, without_spark
from support.kill_sweeps import sweep
from support.native_archives import Making

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.full
ANNE, BEN = b"anne-4711", b"ben-0815"


ENDS_BY: tuple[dict[str, object], ...] = ({"keys": ["anne-4711"]}, {"again": True, "topics": []})


def test_killed_at_any_point_readers_see_all_or_nothing_and_the_next_run_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_spark(monkeypatch)
    places: list[str] = []

    def make(point: int) -> Callable[[], object]:
        places.append(str(tmp_path / str(point)))
        keyed = Keyed(Making(places[-1]))
        log = [batch(0, (ANNE, b"1"), (BEN, b"1"))]
        keyed.backup({0: log, 1: log}, packed=bool(point % 2))
        return lambda: erase(places[-1], keys=["anne-4711"], commit_bytes=1)

    make(-1)
    before, after = read(places[0]), [(1, BEN, b"1")]
    met = sweep(make, monkeypatch)
    states = set()
    for number, place in enumerate(places[1:]):
        found = [read(place, partition=part) for part in range(2)]
        # The ledger comes first, so that both partitions lose the records in the same instant.
        assert found in ([before, before], [after, after])
        remembered = bool(open_archive(place).erasures())
        assert remembered == (found == [after, after])
        states.add((remembered, bool(holds_bytes(place, ANNE))))
        report = erase(place, **ENDS_BY[number // 2 % 2 if remembered else 0])
        assert (report.exit_code, report.found_again) == (0, 0)
        assert [read(place, partition=part) for part in range(2)] == [after, after]
        assert holds_bytes(place, ANNE) == []
        assert open_archive(place).erasures().unfinished() == ()
    assert states == {(False, True), (True, True), (True, False)}
    for call in ("commit", "write_commit", "delete"):
        assert {f"before {call}", f"after {call}"} <= set(met)
