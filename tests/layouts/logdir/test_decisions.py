"""A transaction whose coordinator had decided to commit it is committed, though no marker says so; no other is."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.model import TopicPartition
from support.log_directories import fatal, offsets, put_log, put_watermark, survey
from support.metadata_logs import ORDERS, batch, ints, partition, put_metadata, tags, text, topic
from support.native_logs import ABORT, COMMIT, data_batch, marker, pack
from support.plain_batches import Record

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.layouts.foreign import Survey

ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT = 1, 2, 3, 4
STATES = "__transaction_state-0"


def transactional(offset: int, epoch: int = 5) -> bytes:
    return data_batch(offset, 2, attributes=0x10, producer_id=7, producer_epoch=epoch, base_sequence=0)


def state(offset: int, status: int, *, epoch: int, own_epochs: bool = True, where: str = "orders") -> bytes:
    """As coordinators write it since transactions have epochs of their own, or before that."""
    key = struct.pack(">hh", 0, 1) + b"t"
    head = struct.pack(">qhib", 7, epoch, 60_000, status)
    times = struct.pack(">qq", 1, 1)
    if own_epochs:
        partitions = b"\x02" + text(where) + ints(0) + b"\0"
        value = (
            struct.pack(">h", 1) + head + partitions + times + tags(t0=struct.pack(">q", 7), t2=struct.pack(">h", 2))
        )
    else:
        listed = struct.pack(">ih", 1, len(where)) + where.encode() + struct.pack(">ii", 1, 0)
        value = struct.pack(">h", 0) + head + listed + times
    return pack([Record(offset=offset, timestamp=1, key=key, value=value)])


def put(root: Path, log: list[bytes], *states: bytes) -> Survey:
    put_log(root, log)
    put_log(root, list(states), name=STATES)
    return survey(root)


def seen(root: Path, found: Survey) -> list[int]:
    where = TopicPartition(topic="orders", partition=0)
    mine = tuple(each for each in found.segments if each.where == where)
    return offsets(root, type(found)(layout=found.layout, segments=mine))


LOG = [data_batch(0), transactional(1)]


def test_a_transaction_that_was_prepared_to_commit_counts_and_is_told(tmp_path: Path) -> None:
    found = put(tmp_path, LOG, state(0, ONGOING, epoch=5), state(1, PREPARE_COMMIT, epoch=6))
    assert seen(tmp_path, found) == [0, 1, 2]
    (fault,) = found.faults
    assert not fault.fatal
    assert "prepared to commit" in fault.message


@pytest.mark.parametrize(("status", "epoch"), [(ONGOING, 5), (PREPARE_ABORT, 6)])
def test_a_transaction_that_nobody_had_committed_is_no_loss(tmp_path: Path, status: int, epoch: int) -> None:
    found = put(tmp_path, LOG, state(0, status, epoch=epoch))
    assert seen(tmp_path, found) == [0]
    assert not fatal(found)
    assert len(found.faults) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"status": PREPARE_COMMIT, "epoch": 7},
        {"status": PREPARE_COMMIT, "epoch": 6, "where": "ledger"},
        {"status": PREPARE_COMMIT, "epoch": 5, "own_epochs": False},
        {"status": COMPLETE_COMMIT, "epoch": 6},
    ],
)
def test_the_decision_on_another_transaction_never_counts(tmp_path: Path, fields: dict[str, Any]) -> None:
    found = put(tmp_path, LOG, state(0, **fields))
    assert seen(tmp_path, found) == [0]
    assert len(fatal(found)) == 1


def test_without_epochs_of_their_own_all_copies_must_be_there(tmp_path: Path) -> None:
    for name in ("a", "b"):
        put_log(tmp_path / name, LOG)
    put_log(tmp_path / "a", [state(0, PREPARE_COMMIT, epoch=5, own_epochs=False)], name=STATES)
    put_metadata(tmp_path / "a", [batch(0, topic("orders", ORDERS), partition(ORDERS, 0, 1, 2))])
    assert seen(tmp_path, survey(tmp_path)) == [0, 1, 2]
    put_metadata(tmp_path / "a", [batch(0, topic("orders", ORDERS), partition(ORDERS, 0, 1, 2, 3))])
    assert seen(tmp_path, survey(tmp_path)) == [0]


@pytest.mark.parametrize(("kind", "expected"), [(ABORT, [0]), (COMMIT, [0, 1, 2])])
def test_where_the_log_is_cut_the_marker_above_decides(tmp_path: Path, kind: int, expected: list[int]) -> None:
    put_watermark(tmp_path, 3)
    log = [*LOG, marker(3, 7, kind), transactional(4, epoch=6)]
    found = put(tmp_path, log, state(0, PREPARE_COMMIT, epoch=7))
    assert seen(tmp_path, found) == expected
    assert all("left out" in each for each in fatal(found))


def test_a_state_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    odd = pack([Record(offset=0, timestamp=1, key=b"\0\0\0\x01t", value=b"\0\x09")])
    found = put(tmp_path, LOG, odd)
    assert any("has the version 9" in fault.message for fault in found.faults)
    assert len(fatal(found)) == 1
