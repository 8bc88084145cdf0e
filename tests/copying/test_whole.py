"""A copy of a whole archive is the archive: byte for byte, incrementally, and only of the same source."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from maxbrod.archive.archive import ProofKind, open_archive, read_proofs
from maxbrod.archive.holds import add_hold, read_holds
from maxbrod.archive.undo import undo_prune
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.log import LOG_FOLDER
from maxbrod.check.run import check_archive
from maxbrod.errors import RefusedError, UsageError
from maxbrod.storage.local import LocalStorage
from support.copies import copy, run_of_topics, three_topics
from support.native_archives import LATER_MS, Making, compact, look
from support.native_logs import data_batch
from support.prunable_archives import prune

if TYPE_CHECKING:
    from pathlib import Path


def objects(folder: Path, *, catalog: bool = True) -> dict[str, bytes]:
    """All objects but those that are about the place, and the log's checkpoints."""
    storage = LocalStorage(folder)
    skipped = ("copies/", "proofs/", f"{LOG_FOLDER}/", *(() if catalog else ("catalog/",)))
    return {info.path: bytes(storage.get(info.path)) for info in storage.list() if not info.path.startswith(skipped)}


def test_a_copy_has_every_object_byte_for_byte_and_reads_the_same(tmp_path: Path) -> None:
    three_topics(tmp_path / "a")
    report = copy(tmp_path / "a", tmp_path / "b", read_back=True)
    assert report.exit_code == 0
    assert (report.version, report.version_before) == (report.source_version, None)
    assert report.slices_verified == 11
    assert objects(tmp_path / "b") == objects(tmp_path / "a")
    assert look(tmp_path / "b") == look(tmp_path / "a")
    assert check_archive(open_archive(str(tmp_path / "b"))).exit_code == 0
    entry = f"{LOG_FOLDER}/{report.version:020}.json"
    assert (tmp_path / "b" / entry).read_bytes() == (tmp_path / "a" / entry).read_bytes()


def test_only_what_is_new_is_copied(tmp_path: Path) -> None:
    making = three_topics(tmp_path / "a")
    assert copy(tmp_path / "a", tmp_path / "b").objects == 8
    again = copy(tmp_path / "a", tmp_path / "b")
    assert (again.objects, again.documents, again.objects_there) == (0, 0, 8)
    run_of_topics(making, {"c": 3})
    more = copy(tmp_path / "a", tmp_path / "b")
    assert (more.objects, more.version_before, more.version) == (1, 3, 4)
    assert look(tmp_path / "b") == look(tmp_path / "a")


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    three_topics(tmp_path / "a")
    report = copy(tmp_path / "a", tmp_path / "b", dry_run=True)
    assert (report.objects, report.version) == (8, None)
    assert not (tmp_path / "b").exists()
    assert read_proofs(LocalStorage(tmp_path / "a")) == []


def test_compactions_holds_and_prunes_follow_and_a_prune_can_be_undone_in_the_copy(tmp_path: Path) -> None:
    three_topics(tmp_path / "a")
    whole = look(tmp_path / "a")
    compact(tmp_path / "a", topics=["a", "b"])
    add_hold(open_archive(str(tmp_path / "a")), who="me", why="a case", topics=("a",))
    copy(tmp_path / "a", tmp_path / "b")
    assert look(tmp_path / "b") == whole
    prune(open_archive(str(tmp_path / "a")), "orders", before_ms=LATER_MS, compacted_too=True)
    # The source has taken them away, but may want them back: a new copy gets them, too.
    for name in ("b", "c"):
        assert copy(tmp_path / "a", tmp_path / name).exit_code == 0
        assert look(tmp_path / name) == look(tmp_path / "a") != whole
        copied = open_archive(str(tmp_path / name))
        assert [hold.why for hold in read_holds(copied.storage)] == ["a case"]
        undo_prune(copied, apply=True)
        assert look(tmp_path / name) == whole


def test_the_source_knows_when_it_was_copied(tmp_path: Path) -> None:
    three_topics(tmp_path / "a")
    report = copy(tmp_path / "a", tmp_path / "b")
    (proof,) = read_proofs(LocalStorage(tmp_path / "a"))
    assert (proof.kind, proof.sound, proof.details["target"]) == (ProofKind.COPY, True, report.target)


def test_a_copy_goes_on_when_the_source_has_cleaned_up_its_log(tmp_path: Path) -> None:
    making = three_topics(tmp_path / "a")
    copy(tmp_path / "a", tmp_path / "b")
    for number in range(32):
        making.run({0: [data_batch(number * 3, 3)]}, topic="d")
    for number in range(32):
        (tmp_path / "a" / LOG_FOLDER / f"{number:020}.json").unlink(missing_ok=True)
    assert copy(tmp_path / "a", tmp_path / "b").exit_code == 0
    assert look(tmp_path / "b") == look(tmp_path / "a")


def test_an_object_that_the_copy_has_lost_is_sent_again(tmp_path: Path) -> None:
    three_topics(tmp_path / "a")
    copy(tmp_path / "a", tmp_path / "b")
    lost, short = sorted((tmp_path / "b" / "packs").iterdir())
    lost.unlink()
    short.chmod(0o600)
    short.write_bytes(short.read_bytes()[:50])
    assert copy(tmp_path / "a", tmp_path / "b").objects == 2
    assert objects(tmp_path / "b") == objects(tmp_path / "a")


@pytest.mark.parametrize("cleaned", [False, True])
def test_a_source_that_was_rolled_back_is_refused(tmp_path: Path, cleaned: bool) -> None:
    making = three_topics(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "old")
    run_of_topics(making, {"c": 3})
    copy(tmp_path / "a", tmp_path / "b")
    before = objects(tmp_path / "b")
    with pytest.raises(RefusedError, match="rolled back"):
        copy(tmp_path / "old", tmp_path / "b")
    # It goes on in another way, past the version of the copy.
    other = Making(str(tmp_path / "old"), runs=50)
    for number in range(32 if cleaned else 2):
        other.run({0: [data_batch(number * 3, 3)]}, topic="d")
    if cleaned:
        for number in range(32):
            (tmp_path / "old" / LOG_FOLDER / f"{number:020}.json").unlink(missing_ok=True)
    with pytest.raises(RefusedError, match="rolled back"):
        copy(tmp_path / "old", tmp_path / "b")
    assert objects(tmp_path / "b") == before


def test_a_source_that_was_made_anew_is_refused(tmp_path: Path) -> None:
    three_topics(tmp_path / "a")
    copy(tmp_path / "a", tmp_path / "b")
    shutil.rmtree(tmp_path / "a")
    three_topics(tmp_path / "a")
    with pytest.raises(RefusedError, match="no copy of the source"):
        copy(tmp_path / "a", tmp_path / "b")


def test_a_copy_that_somebody_else_has_written_to_is_refused(tmp_path: Path) -> None:
    making = three_topics(tmp_path / "a")
    copy(tmp_path / "a", tmp_path / "b")
    Making(str(tmp_path / "b"), runs=90).run({0: [data_batch(0, 3)]}, topic="x")
    run_of_topics(making, {"c": 3})
    with pytest.raises(RefusedError, match="no copy of the source"):
        copy(tmp_path / "a", tmp_path / "b")


def test_a_place_with_other_contents_is_refused(tmp_path: Path) -> None:
    three_topics(tmp_path / "a")
    three_topics(tmp_path / "other")
    with pytest.raises(RefusedError, match="no copy of the source"):
        copy(tmp_path / "a", tmp_path / "other")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "letter").write_text("dear")
    with pytest.raises(RefusedError, match="no catalog"):
        copy(tmp_path / "a", tmp_path / "files")
    assert [file.name for file in (tmp_path / "files").iterdir()] == ["letter"]
    with pytest.raises(UsageError, match="same place"):
        copy(tmp_path / "a", tmp_path / "a" / "b")


def test_another_selection_into_the_same_copy_is_refused(tmp_path: Path) -> None:
    three_topics(tmp_path / "a")
    copy(tmp_path / "a", tmp_path / "b", topics=["a"])
    with pytest.raises(RefusedError, match="another selection"):
        copy(tmp_path / "a", tmp_path / "b")
    copy(tmp_path / "a", tmp_path / "c")
    with pytest.raises(RefusedError, match="another selection"):
        copy(tmp_path / "a", tmp_path / "c", topics=["a"])


def test_files_that_were_copied_by_hand_are_a_copy_to_go_on_from(tmp_path: Path) -> None:
    making = three_topics(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    run_of_topics(making, {"c": 3})
    assert copy(tmp_path / "a", tmp_path / "b").objects == 1
    assert look(tmp_path / "b") == look(tmp_path / "a")


def test_the_copy_of_a_copy_is_a_copy(tmp_path: Path) -> None:
    making = three_topics(tmp_path / "a")
    copy(tmp_path / "a", tmp_path / "b")
    copy(tmp_path / "b", tmp_path / "c")
    run_of_topics(making, {"c": 3})
    copy(tmp_path / "a", tmp_path / "b")
    copy(tmp_path / "b", tmp_path / "c")
    assert look(tmp_path / "c") == look(tmp_path / "a")
    assert Catalog.open(LocalStorage(tmp_path / "c")).version == 4
