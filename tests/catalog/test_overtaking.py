"""A change beside a backup that never ends: it is committed on the newer version, without doing its work again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from maxbrod.catalog import catalog as module
from maxbrod.catalog import commits
from maxbrod.catalog.commits import FAN_IN, commit_with_retries
from maxbrod.catalog.rows import decode_rows
from maxbrod.errors import FencedError, OvertakenError, RefusedError
from support.catalog_rows import run, segment

if TYPE_CHECKING:
    from collections.abc import Callable

    from maxbrod.catalog.catalog import Catalog
    from support.catalog_places import Archive


def overtake(catalog: Catalog, monkeypatch: pytest.MonkeyPatch, commit: Callable[[int], object], *, times: int) -> None:
    """Before each of the first puts of a log entry, another writer commits."""
    put, left = catalog._storage.put, list(range(times))

    def faster(path: str, data: bytes) -> None:
        if path.endswith(".json") and left:
            commit(left.pop(0))
        put(path, data)

    monkeypatch.setattr(catalog._storage, "put", faster)


def test_a_commit_follows_others_that_only_add_rows_however_often_and_plans_once(
    folder: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = folder.create()
    # More rows than a file that is folded: folding one of its files is another test.
    old = [segment(base, base + 1) for base in range(1 << 10)]
    slow.commit(old)
    other, plans = folder.open(), list[int]()
    overtake(
        slow,
        monkeypatch,
        lambda number: other.commit([segment(number, number + 1, partition=7), run(f"run-{number}")]),
        times=50,
    )
    plan = commits.plan_rewrite

    def counted(*arguments: Any) -> Any:
        plans.append(1)
        return plan(*arguments)

    monkeypatch.setattr(module, "plan_rewrite", counted)
    merged = segment(0, 1 << 10, path="segments/merged.log")
    version = slow.commit([merged, run("compaction", snapshot=None)], replaced=old, still_valid=lambda: True)
    assert (version, len(plans)) == (52, 51)  # 50 plans are those of the other
    found = folder.open()
    assert found.version == 52
    assert decode_rows(found.rows(partition=0)) == [merged]
    assert found.rows(partition=7).num_rows == 50
    assert [each.commit for each in found.runs()] == [*range(2, 52), 52]
    assert found.runs()[-1].run_id == "compaction"
    # Whatever it wrote for versions that others took is gone.
    files = Path(folder.url).glob("catalog/segments/*.parquet")
    assert sum("compaction" in pq.read_table(path)["run_id"].to_pylist() for path in files) == 1
    # It goes on as any other.
    slow.commit([segment(1 << 10, 1 << 11)])


def test_rows_that_others_have_touched_are_not_committed_over(folder: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = folder.create()
    slow.commit([segment(0, 1), segment(5, 6, partition=1)])
    other = folder.open()
    overtake(slow, monkeypatch, lambda _: other.commit([], replaced=[segment(5, 6, partition=1)]), times=1)
    with pytest.raises(OvertakenError):
        slow.commit([segment(0, 1, path="merged")], replaced=[segment(0, 1)], still_valid=lambda: True)
    assert decode_rows(folder.open().rows()) == [segment(0, 1)]
    assert slow.version == 1, "after an error a catalog keeps its version"


def test_a_file_that_others_have_folded_is_planned_again_and_succeeds(
    folder: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = folder.create()
    slow.commit([segment(0, 1)])
    other, attempts = folder.open(), []

    def commit(attempt: int) -> int:
        attempts.append(attempt)
        new = [segment(0, 1, path="merged"), run("compaction", snapshot=None)]
        return slow.commit(new, replaced=[segment(0, 1)], still_valid=lambda: True)

    overtake(
        slow,
        monkeypatch,
        lambda number: other.commit([segment(number, number + 1, partition=7)]),
        times=2 * FAN_IN,
    )
    commit_with_retries(slow, commit)
    assert 1 < len(attempts) < 2 * FAN_IN, "only where its own file was folded"
    assert folder.open().rows(partition=0)["path"].to_pylist() == ["merged"]
    assert folder.open().rows(partition=7).num_rows == 2 * FAN_IN


def test_a_commit_follows_nobody_if_what_it_rests_on_has_changed(
    folder: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = folder.create()
    slow.commit([segment(0, 1)])
    other = folder.open()
    overtake(slow, monkeypatch, lambda number: other.commit([run(f"hold-{number}")]), times=1)
    with pytest.raises(OvertakenError):
        slow.commit([], replaced=[segment(0, 1)], still_valid=lambda: False)
    assert decode_rows(folder.open().rows()) == [segment(0, 1)]


def test_a_writer_that_was_taken_for_lost_follows_nobody(folder: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = folder.create()
    slow.commit([segment(0, 1)])
    slow.claim = 1
    other = folder.open()
    overtake(slow, monkeypatch, lambda _: other.raise_fence(2), times=1)

    def commit(_: int) -> int:
        return slow.commit([], replaced=[segment(0, 1)], still_valid=lambda: True)

    with pytest.raises(FencedError):
        commit_with_retries(slow, commit)
    assert decode_rows(folder.open().rows()) == [segment(0, 1)]


def test_a_change_is_tried_as_long_as_others_commit_and_not_if_it_is_refused_for_another_reason(
    folder: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maxbrod.catalog.commits._PAUSE_S", 0)
    slow = folder.create()
    other, attempts = folder.open(), []

    def commit(attempt: int) -> int:
        attempts.append(attempt)
        if attempt < 40:
            other.commit([segment(attempt, attempt + 1)])
        return slow.commit([run("late", snapshot=None)])

    assert commit_with_retries(slow, commit) == 41
    assert attempts == list(range(41))

    def wrong(attempt: int) -> int:
        attempts.append(attempt)
        other.commit([segment(attempt, attempt + 1, partition=1)])
        raise RefusedError("it is held")

    other.refresh()
    attempts.clear()
    with pytest.raises(RefusedError, match="it is held"):
        commit_with_retries(slow, wrong)
    assert len(attempts) == 20
