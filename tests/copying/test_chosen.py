"""A copy of chosen topics has their records and nothing of others, and follows what becomes of them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.archive.snapshots import find_moment
from maxbrod.catalog.catalog import Catalog
from maxbrod.check.run import check_archive
from maxbrod.errors import RefusedError, UsageError
from maxbrod.layouts.kafka.contents import read_contents
from maxbrod.storage.local import LocalStorage
from support.copies import copy, run_of_topics, three_topics
from support.native_archives import LATER_MS, Making, compact, id_of, look
from support.native_logs import data_batch
from support.prunable_archives import prune

if TYPE_CHECKING:
    from pathlib import Path


def chosen(url: Path, *topics: str) -> dict[tuple[str, int], bytes]:
    return {where: log for where, log in look(url).logs.items() if where[0] in topics}


def test_a_copy_of_chosen_topics_has_their_records_and_no_bytes_of_others(tmp_path: Path) -> None:
    three_topics(tmp_path / "a")
    report = copy(tmp_path / "a", tmp_path / "b", topics=["a", "orders"], read_back=True)
    assert (report.exit_code, report.topics) == (0, ("a", "orders"))
    assert look(tmp_path / "b").logs == chosen(tmp_path / "a", "a", "orders")
    copied = open_archive(str(tmp_path / "b"))
    assert check_archive(copied).exit_code == 0
    packs = list(copied.storage.list("packs"))
    assert len(packs) == 2
    for pack in packs:
        contents = read_contents(copied.storage, pack.path, pack.size)
        assert contents is not None
        assert [entry.topic for entry in contents.entries] == ["a"]
        (found,) = [entry.slice for entry in contents.entries]
        assert (found.path, found.position) == (pack.path, 0)
        assert bytes(copied.storage.get(pack.path)).count(b"MAXBRODC") == 1


def test_the_snapshot_of_the_copy_knows_the_chosen_topics_and_where_they_end(tmp_path: Path) -> None:
    three_topics(tmp_path / "a")
    copy(tmp_path / "a", tmp_path / "b", topics=["b"])
    copied = open_archive(str(tmp_path / "b"))
    snapshot = find_moment(copied.storage, copied.catalog.runs(), None).snapshot
    assert snapshot is not None
    assert dict(snapshot.topics) == {id_of("b"): "b"}
    assert list(snapshot.ends.values()) == [6]


def test_only_what_is_new_of_the_chosen_topics_is_copied(tmp_path: Path) -> None:
    making = three_topics(tmp_path / "a")
    copy(tmp_path / "a", tmp_path / "b", topics=["a", "b"])
    run_of_topics(making, {"a": 6, "c": 3})
    report = copy(tmp_path / "a", tmp_path / "b", topics=["a", "b"])
    assert (report.objects, report.version_before, report.version) == (1, 3, 4)
    assert look(tmp_path / "b").logs == chosen(tmp_path / "a", "a", "b")
    again = copy(tmp_path / "a", tmp_path / "b", topics=["a", "b"])
    assert (again.objects, again.documents) == (0, 0)
    assert Catalog.open(LocalStorage(tmp_path / "b")).version == 2


def test_compactions_and_prunes_of_the_source_follow(tmp_path: Path) -> None:
    making = three_topics(tmp_path / "a")
    options: dict[str, Any] = {"topics": ["orders", "a"], "exclude": ["b"]}
    copy(tmp_path / "a", tmp_path / "b", **options)
    compact(tmp_path / "a", topics=["a"])
    prune(open_archive(str(tmp_path / "a")), "orders", before_ms=LATER_MS, compacted_too=True)
    making.archive.catalog.refresh()
    assert copy(tmp_path / "a", tmp_path / "b", **options).exit_code == 0
    seen, wanted = look(tmp_path / "b"), look(tmp_path / "a")
    assert seen.logs == chosen(tmp_path / "a", "a", "orders")
    assert seen.gaps == wanted.gaps != []
    assert check_archive(open_archive(str(tmp_path / "b"))).exit_code == 0


def test_an_object_that_the_copy_has_lost_is_sent_again(tmp_path: Path) -> None:
    three_topics(tmp_path / "a")
    copy(tmp_path / "a", tmp_path / "b", topics=["a"])
    wanted = look(tmp_path / "b")
    min((tmp_path / "b" / "packs").iterdir()).unlink()
    assert copy(tmp_path / "a", tmp_path / "b", topics=["a"]).objects == 1
    assert look(tmp_path / "b") == wanted


def test_a_pattern_that_matches_nothing_is_refused(tmp_path: Path) -> None:
    three_topics(tmp_path / "a")
    with pytest.raises(UsageError, match="nothing"):
        copy(tmp_path / "a", tmp_path / "b", topics=["nothing"])


def test_a_source_that_was_rolled_back_is_refused(tmp_path: Path) -> None:
    making = three_topics(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "old")
    run_of_topics(making, {"a": 6})
    copy(tmp_path / "a", tmp_path / "b", topics=["a"])
    with pytest.raises(RefusedError, match="rolled back"):
        copy(tmp_path / "old", tmp_path / "b", topics=["a"])
    other = Making(str(tmp_path / "old"), runs=50)
    for number in range(2):
        other.run({0: [data_batch(number * 3, 3)]}, topic="d")
    with pytest.raises(RefusedError, match="rolled back"):
        copy(tmp_path / "old", tmp_path / "b", topics=["a"])


def test_a_copy_that_somebody_else_has_written_to_is_refused(tmp_path: Path) -> None:
    three_topics(tmp_path / "a")
    copy(tmp_path / "a", tmp_path / "b", topics=["a"])
    Making(str(tmp_path / "b"), runs=90).run({0: [data_batch(0, 3)]}, topic="x")
    with pytest.raises(RefusedError, match="somebody else"):
        copy(tmp_path / "a", tmp_path / "b", topics=["a"])
