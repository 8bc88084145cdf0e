"""Erasure: the records of a person leave the archive, and nothing else does."""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING

import pytest

from maxbrod.archive.archive import open_archive, open_for_writing
from maxbrod.archive.erasures import not_erased
from maxbrod.archive.holds import add_hold, release_hold
from maxbrod.batch.erased import hash_key
from maxbrod.catalog.rows import Gap, decode_rows
from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, EXIT_INCOMPLETE, UsageError
from maxbrod.model import AbortedTransaction, GapReason
from maxbrod.signature import read_key, verify_document
from maxbrod.storage.beneath import Root
from maxbrod.storage.stores import open_storage
from support.erasures import erase, holds_bytes, read
from support.keyed_archives import Keyed, batch, compact_keys, live_rows, transaction, without_spark
from support.native_archives import compact, file_of, in_memory, segments
from support.native_logs import marker
from support.signing_keys import pem_pair

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

ANNE, BEN = b"anne-4711", b"ben-0815"


@pytest.fixture(autouse=True)
def sparkless(monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch)


@pytest.fixture
def keyed() -> Iterator[Keyed]:
    with in_memory() as made:
        yield Keyed(made)


def test_the_records_of_a_key_leave_in_place_and_all_others_stay_at_their_offsets(keyed: Keyed) -> None:
    keyed.backup({0: [batch(0, (ANNE, b"1"), (BEN, b"1"), (ANNE, b"2"), (None, b"x"))]}, packed=False)
    keyed.backup({0: [batch(4, (BEN, b"2"), (b"", b"empty"))]}, packed=False)
    before = segments(keyed.url)
    report = erase(keyed.url, keys=["anne-4711"])
    assert (report.exit_code, report.records, report.holding, report.rewritten) == (EXIT_DONE, 2, 1, 1)
    assert (report.deleted, report.found_again, report.suppressed) == (1, 0, 0)
    assert read(keyed.url) == [(1, BEN, b"1"), (3, None, b"x"), (4, BEN, b"2"), (5, b"", b"empty")]
    after = segments(keyed.url)
    # Only the slice that holds them is written anew, and covers the same offsets.
    assert [(row.base_offset, row.end_offset, row.reason) for row in after] == [(0, 4, GapReason.ERASED), (4, 6, None)]
    assert after[1] == before[1]
    assert after[0].path != before[0].path
    assert not file_of(keyed.making, before[0].path).exists()
    assert holds_bytes(keyed.url, ANNE) == []
    assert open_archive(keyed.url).catalog.runs()[-1].statistics["command"] == "erase"


def test_a_dry_run_counts_and_changes_nothing(keyed: Keyed) -> None:
    keyed.backup({0: [batch(0, (ANNE, b"1"), (BEN, b"1"))], 1: [batch(0, (BEN, b"1"))]})
    storage = open_storage(keyed.url)
    before = {info.path: bytes(storage.get(info.path)) for info in storage.list()}
    report = erase(keyed.url, keys=["anne-4711"], dry_run=True)
    assert (report.records, report.holding, report.topics[0].slices, report.run_id) == (1, 1, 2, None)
    assert {info.path: bytes(storage.get(info.path)) for info in storage.list()} == before


def test_slices_of_others_in_a_pack_are_carried_over_so_that_the_old_object_can_go(keyed: Keyed) -> None:
    keyed.backup({0: [batch(0, (ANNE, b"1"), (BEN, b"1"))], 1: [batch(0, (BEN, b"1"), (None, b"y"))]})
    others = read(keyed.url, partition=1)
    old = {row.path for row in segments(keyed.url)}
    assert len(old) == 1
    report = erase(keyed.url, keys=["anne-4711"])
    assert (report.exit_code, report.rewritten, report.carried, report.objects, report.deleted) == (0, 1, 1, 1, 1)
    assert read(keyed.url) == [(1, BEN, b"1")]
    assert read(keyed.url, partition=1) == others
    assert {row.path for row in segments(keyed.url)}.isdisjoint(old)
    assert holds_bytes(keyed.url, ANNE) == []
    assert [row.reason for row in segments(keyed.url)] == [GapReason.ERASED, None]


def test_of_many_segments_only_those_that_hold_the_key_are_rewritten(keyed: Keyed) -> None:
    rows = []
    for number in range(60):
        person = ANNE if number in {7, 41} else BEN
        rows += keyed.backup({0: [batch(2 * number, (person, b"1"), (BEN, b"2"))]}, packed=False, commit=False)
    keyed.making.archive.catalog.commit(rows)
    before = {row.path for row in segments(keyed.url)}
    report = erase(keyed.url, keys=["anne-4711"])
    assert (report.topics[0].slices, report.holding, report.rewritten, report.objects) == (60, 2, 2, 2)
    assert len(before & {row.path for row in segments(keyed.url)}) == 58


def test_a_slice_without_any_record_left_is_a_gap_but_the_last_one_keeps_its_leader_epoch(keyed: Keyed) -> None:
    keyed.backup({0: [batch(0, (ANNE, b"1"), (ANNE, b"2"), leader_epoch=3)]}, packed=False)
    keyed.backup({0: [batch(2, (BEN, b"1"), leader_epoch=3)]}, packed=False)
    keyed.backup({0: [batch(3, (ANNE, b"3"), leader_epoch=5)]}, packed=False)
    erase(keyed.url, keys=["anne-4711"])
    assert live_rows(keyed.url) == [("erased", 0, 2), ("data", 2, 3), ("data", 3, 4)]
    last = segments(keyed.url)[-1]
    assert (last.records, last.last_leader_epoch, last.reason) == (0, 5, GapReason.ERASED)
    assert read(keyed.url) == [(2, BEN, b"1")]
    # Nor does an object stay behind that no row names.
    named = {row.path for row in segments(keyed.url)}
    assert {info.path for info in open_storage(keyed.url).list("segments")} == named
    gap = next(row for row in decode_rows(open_archive(keyed.url).catalog.rows()) if isinstance(row, Gap))
    assert gap.reason is GapReason.ERASED


def test_retired_rows_lose_the_records_too_as_of_every_older_run(keyed: Keyed) -> None:
    keyed.backup({0: [batch(0, (ANNE, b"1"), (BEN, b"1"), (ANNE, b"2"))]})
    keyed.backup({0: [batch(3, (BEN, b"2"))]})
    compact_keys(keyed.url)
    assert [found[0] for found in read(keyed.url, "run-000001")] == [0, 1, 2]
    report = erase(keyed.url, keys=["anne-4711"])
    assert (report.exit_code, report.records) == (EXIT_DONE, 2)
    assert [found[0] for found in read(keyed.url, "run-000001")] == [1]
    assert [found[0] for found in read(keyed.url, "run-000002")] == [1, 3]
    assert read(keyed.url) == [(3, BEN, b"2")]
    assert holds_bytes(keyed.url, ANNE) == []


def test_what_was_erased_from_can_be_compacted_by_key(keyed: Keyed) -> None:
    keyed.backup({0: [batch(0, (ANNE, b"1"), (BEN, b"1"), (BEN, b"2"))]})
    erase(keyed.url, keys=["anne-4711"])
    assert compact_keys(keyed.url).total("removed") == 1
    assert read(keyed.url) == [(2, BEN, b"2")]


def test_aborted_records_of_a_person_go_and_markers_stay(keyed: Keyed) -> None:
    aborted: dict[int, Sequence[AbortedTransaction]] = {
        0: [AbortedTransaction(producer_id=9, first_offset=0, last_offset=2)]
    }
    log = [transaction(0, (ANNE, b"aborted"), (BEN, b"aborted")), marker(2, 9, 0), batch(3, (BEN, b"1"))]
    keyed.backup({0: log}, aborted=aborted)
    erase(keyed.url, keys=["anne-4711"])
    assert holds_bytes(keyed.url, ANNE) == []
    row = segments(keyed.url)[0]
    assert (row.records, row.control_records, row.aborted) == (3, 1, tuple(aborted[0]))
    assert read(keyed.url) == [(3, BEN, b"1")]


def test_what_merging_has_left_behind_is_deleted_as_well(keyed: Keyed) -> None:
    for number in range(3):
        keyed.backup({0: [batch(number, (ANNE if number else BEN, b"1"))]}, packed=False)
    assert compact(keyed.url).commits == 1
    assert len(holds_bytes(keyed.url, ANNE)) == 3
    report = erase(keyed.url, keys=["anne-4711"])
    assert (report.exit_code, report.deleted) == (EXIT_DONE, 4)
    assert holds_bytes(keyed.url, ANNE) == []


def test_a_hold_keeps_the_object_and_no_reader_returns_the_records_until_it_is_released(keyed: Keyed) -> None:
    keyed.backup({0: [batch(0, (ANNE, b"1"), (BEN, b"1"))]})
    hold = add_hold(open_for_writing(keyed.url), who="law", why="a case")
    report = erase(keyed.url, keys=["anne-4711"])
    assert (report.exit_code, report.records, report.suppressed, report.found_again) == (EXIT_INCOMPLETE, 1, 1, 0)
    assert [("a case" in kept.why, kept.path) for kept in report.kept] == [(True, segments(keyed.url)[0].path)]
    assert read(keyed.url) == [(1, BEN, b"1")]
    assert len(holds_bytes(keyed.url, ANNE)) == 1
    erasures = open_archive(keyed.url).erasures()
    assert not_erased(open_storage(keyed.url), erasures) == (report.run_id,)
    release_hold(open_for_writing(keyed.url), hold.id, who="law", why="over")
    report = erase(keyed.url, again=True, topics=[])
    assert (report.exit_code, report.rewritten, report.deleted) == (EXIT_DONE, 1, 1)
    assert not_erased(open_storage(keyed.url), open_archive(keyed.url).erasures()) == ()
    assert holds_bytes(keyed.url, ANNE) == []
    assert read(keyed.url) == [(1, BEN, b"1")]


@pytest.mark.parametrize("says_so", [False, True])
def test_a_store_that_refuses_to_delete_keeps_one_object_and_the_others_go(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch, says_so: bool
) -> None:
    for number in range(3):
        keyed.backup({0: [batch(number, (ANNE, b"1"))]}, packed=False)
    locked = segments(keyed.url)[1].path
    remove = Root.remove_file

    def refuse(root: Root, name: str) -> None:
        if name != locked:
            remove(root, name)
        elif says_so:
            raise OSError(errno.EPERM, "a lock keeps it")

    monkeypatch.setattr(Root, "remove_file", refuse)
    report = erase(keyed.url, keys=["anne-4711"])
    assert (report.exit_code, report.deleted, [kept.path for kept in report.kept]) == (EXIT_INCOMPLETE, 2, [locked])
    assert ("a lock keeps it" in report.kept[0].why) == says_so
    assert read(keyed.url) == []
    monkeypatch.undo()
    without_spark(monkeypatch)
    report = erase(keyed.url, again=True, topics=[])
    assert (report.exit_code, report.deleted) == (EXIT_DONE, 1)
    assert holds_bytes(keyed.url, ANNE) == []


def test_records_that_are_archived_later_are_not_meant(keyed: Keyed) -> None:
    keyed.backup({0: [batch(0, (ANNE, b"1"), (BEN, b"1"))]})
    erase(keyed.url, keys=["anne-4711"])
    keyed.backup({0: [batch(2, (ANNE, b"is back"))]})
    assert read(keyed.url) == [(1, BEN, b"1"), (2, ANNE, b"is back")]


def test_a_second_erasure_of_the_same_key_changes_nothing(keyed: Keyed) -> None:
    keyed.backup({0: [batch(0, (ANNE, b"1"), (BEN, b"1"))]})
    erase(keyed.url, keys=["anne-4711"])
    storage = open_storage(keyed.url)
    before = {info.path for info in storage.list()}
    report = erase(keyed.url, keys=["anne-4711"])
    assert (report.exit_code, report.records, report.commits, report.run_id) == (EXIT_DONE, 0, 0, None)
    assert {info.path for info in storage.list() if not info.path.startswith("probes")} == before


def test_the_ledger_and_the_certificate_have_no_plain_key(keyed: Keyed, tmp_path: Path) -> None:
    private, public = tmp_path / "key.pem", tmp_path / "key.pub"
    for path, pem in zip((private, public), pem_pair(), strict=True):
        path.write_bytes(pem)
        path.chmod(0o600)
    keyed.backup({0: [batch(0, (ANNE, b"1"), (BEN, b"1"))]})
    file = tmp_path / "erased.json"
    report = erase(keyed.url, keys=["anne-4711"], certificate=str(file), signing_key_file=str(private))
    assert holds_bytes(keyed.url, ANNE) == []
    document = json.loads(file.read_bytes())
    assert verify_document(document, read_key(public), object_name="certificate") == "ed25519"
    assert (document["records"], document["erased_now"], document["found_again"], document["complete"]) == (
        1,
        1,
        0,
        True,
    )
    erasure = open_archive(keyed.url).erasures().documents[0]
    assert document["key_hashes"] == [hash_key(bytes.fromhex(erasure.salt), ANNE).hex()]
    assert bytes(open_storage(keyed.url).get(str(report.certificate))) == file.read_bytes()
    assert ANNE.decode() not in file.read_text()


def test_a_damaged_slice_is_reported_and_the_others_lose_the_records(keyed: Keyed) -> None:
    keyed.backup({0: [batch(0, (ANNE, b"1"))]}, packed=False)
    keyed.backup({0: [batch(1, (ANNE, b"2"), (BEN, b"1"))]}, packed=False)
    file = file_of(keyed.making, segments(keyed.url)[0].path)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    report = erase(keyed.url, keys=["anne-4711"])
    assert report.exit_code == EXIT_CORRUPT
    assert [(fault.base_offset, fault.damaged) for fault in report.faults] == [(0, True)]
    assert [row.reason for row in segments(keyed.url)] == [None, GapReason.ERASED]


def test_keys_in_other_encodings(keyed: Keyed, tmp_path: Path) -> None:
    keyed.backup({0: [batch(0, (b"\xff\x00", b"1"), (BEN, b"1"), (ANNE, b"1"))]})
    file = tmp_path / "keys"
    file.write_text("ff00\n616e6e652d34373131\n")
    assert erase(keyed.url, keys_file=str(file), key_encoding="hex").records == 2
    assert read(keyed.url) == [(1, BEN, b"1")]
    with pytest.raises(UsageError, match="not valid hex") as refused:
        erase(keyed.url, keys=["anne"], key_encoding="hex")
    assert "anne" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nothing says which records"),
        ({"keys": ["a"], "again": True}, "together"),
        ({"keys": ["a"], "topics": []}, "no topic"),
        ({"keys": ["a"], "topics": ["missing"]}, "missing"),
    ],
)
def test_what_is_not_clear_is_refused(keyed: Keyed, options: dict[str, object], message: str) -> None:
    keyed.backup({0: [batch(0, (ANNE, b"1"))]})
    with pytest.raises(UsageError, match=message):
        erase(keyed.url, **options)
