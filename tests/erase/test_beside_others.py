"""An erasure beside other writers: whoever comes first, the records go, and nothing else is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.archive.archive import open_archive, open_for_writing
from maxbrod.archive.holds import add_hold
from maxbrod.catalog.rows import Gap, Segment
from maxbrod.erase import verb
from maxbrod.erase.task import rewrite_objects
from maxbrod.model import GapReason
from support.erasures import erase, holds_bytes, read
from support.keyed_archives import Keyed, batch, compact_keys, without_spark
from support.native_archives import TOPIC, TOPIC_ID, compact, in_memory
from support.sparkless import run_here, stay_without_spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ANNE, BEN = b"anne-4711", b"ben-0815"


@pytest.fixture
def keyed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Keyed]:
    without_spark(monkeypatch)
    with in_memory() as made:
        keyed = Keyed(made)
        keyed.backup({0: [batch(0, (ANNE, b"1"), (BEN, b"1"))]}, packed=False)
        keyed.backup({0: [batch(2, (ANNE, b"2"), (BEN, b"2"))]}, packed=False)
        yield keyed


LEFT = [(1, BEN, b"1"), (3, BEN, b"2")]


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let somebody else act once, after objects were written anew and before the commit."""
    left = [act]

    def run(task: Any, context: Any, tasks: Sequence[Sequence[Any]], **options: Any) -> list[Any]:
        outcomes = run_here(task, context, tasks, **options)
        if task is rewrite_objects and left:
            left.pop()()
        return outcomes

    stay_without_spark(monkeypatch, run)


def test_a_backup_that_commits_meanwhile_keeps_its_records(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    meanwhile(monkeypatch, lambda: keyed.backup({0: [batch(4, (ANNE, b"is back"))]}))
    report = erase(keyed.url, keys=["anne-4711"])
    assert (report.exit_code, report.records, report.found_again) == (0, 2, 0)
    assert read(keyed.url) == [*LEFT, (4, ANNE, b"is back")]


def test_a_second_erasure_of_the_same_person_meanwhile_is_no_harm(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner: list[int] = []
    meanwhile(monkeypatch, lambda: inner.append(erase(keyed.url, keys=["anne-4711"]).exit_code))
    assert erase(keyed.url, keys=["anne-4711"]).exit_code == 0
    assert inner == [0]
    assert read(keyed.url) == LEFT
    assert holds_bytes(keyed.url, ANNE) == []


@pytest.mark.parametrize("other", [compact, compact_keys])
def test_rows_that_a_compaction_replaces_meanwhile_are_looked_at_again(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch, other: Callable[[str], Any]
) -> None:
    meanwhile(monkeypatch, lambda: other(keyed.url))
    report = erase(keyed.url, keys=["anne-4711"])
    assert (report.exit_code, report.found_again) == (0, 0)
    assert ANNE not in {found[1] for found in read(keyed.url)}
    assert (3, BEN, b"2") in read(keyed.url)
    assert holds_bytes(keyed.url, ANNE) == []


def test_a_hold_that_is_added_meanwhile_is_obeyed(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    meanwhile(monkeypatch, lambda: add_hold(open_for_writing(keyed.url), who="law", why="a case"))
    report = erase(keyed.url, keys=["anne-4711"])
    assert (report.rewritten, report.suppressed, len(report.kept)) == (0, 2, 2)
    assert read(keyed.url) == LEFT


def test_a_backup_that_had_read_the_source_before_and_fills_a_gap_brings_nobody_back(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = keyed.making.archive.catalog
    catalog.refresh()
    place: dict[str, Any] = {"topic": TOPIC, "topic_id": TOPIC_ID, "partition": 0, "run_id": "x", "written_at": 1}
    hole = Gap(**place, base_offset=4, end_offset=6, reason=GapReason.CORRUPT)
    catalog.commit([hole])

    def fill() -> None:
        rows = keyed.backup({0: [batch(4, (ANNE, b"3"), (BEN, b"3"))]}, commit=False)
        catalog.commit([row for row in rows if isinstance(row, Segment)], replaced=[hole])

    meanwhile(monkeypatch, fill)
    report = erase(keyed.url, keys=["anne-4711"])
    assert (report.exit_code, report.found_again) == (0, 0)
    assert read(keyed.url) == [*LEFT, (5, BEN, b"3")]
    assert holds_bytes(keyed.url, ANNE) == []


def test_objects_of_a_backup_that_has_not_committed_yet_are_neither_deleted_nor_counted(keyed: Keyed) -> None:
    rows = keyed.backup({0: [batch(4, (ANNE, b"is back"))]}, packed=False, commit=False)
    assert erase(keyed.url, keys=["anne-4711"]).exit_code == 0
    keyed.making.archive.catalog.refresh()
    keyed.making.archive.catalog.commit(rows)
    assert read(keyed.url) == [*LEFT, (4, ANNE, b"is back")]


def test_an_object_that_no_commit_names_and_that_holds_such_records_is_reported(keyed: Keyed) -> None:
    rows = keyed.backup({0: [batch(2, (ANNE, b"read again"))]}, packed=False, commit=False)
    (path,) = [row.path for row in rows if isinstance(row, Segment)]
    report = erase(keyed.url, keys=["anne-4711"])
    assert (report.exit_code, [kept.path for kept in report.kept]) == (3, [path])
    assert holds_bytes(keyed.url, ANNE) == [path]


def test_one_that_others_overtake_again_and_again_says_so(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "_PASSES_MAX", 1)
    meanwhile(monkeypatch, lambda: compact(keyed.url))
    report = erase(keyed.url, keys=["anne-4711"])
    assert (report.exit_code, report.found_again) == (4, 2)
    assert read(keyed.url) == LEFT
    assert open_archive(keyed.url).erasures().documents
