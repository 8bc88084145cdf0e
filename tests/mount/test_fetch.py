"""What clients get from a mount is what the archive holds: batch for batch, from any offset, within any limits."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxbrod.archive.archive import open_for_writing
from maxbrod.batch.headers import walk
from maxbrod.catalog.rows import Gap
from maxbrod.layouts.kafka.format import SegmentLimits
from maxbrod.model import Codec, GapReason
from support.mounts import RawClient, fetch_request, mounted, partitions_of, read_all
from support.native_logs import Batch, batches, data_batch
from support.table_archives import write

WHERE = ("orders", 3)
OUT_OF_RANGE, UNKNOWN, STORAGE_ERROR = 1, 3, 56


def without_epochs(data: bytes) -> bytes:
    """The log with the leader epoch -1 in every batch of magic 2, written the slow way."""
    out, at = bytearray(data), 0
    while at < len(out):
        length, magic = struct.unpack_from(">8xi4xb", out, at)
        if magic == 2:
            out[at + 12 : at + 16] = b"\xff\xff\xff\xff"
        at += 12 + length
    return bytes(out)


LOG = [
    data_batch(10 + 10 * i, 7, value=bytes([i % 251]) * 900, codec=list(Codec)[i % 5], leader_epoch=57)
    for i in range(1200)
]
"""Batches of 7 records, with holes of 3 offsets between them: offsets 10 to 12,007."""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    url: Path = tmp_path_factory.mktemp("mount") / "archive"
    write(url, [b"".join(LOG[:500]), b"".join(LOG[500:])], limits=SegmentLimits(bytes_max=1 << 20))
    return url


@pytest.fixture(scope="module")
def bootstrap(archive: Path) -> Any:
    with mounted(archive) as found:
        yield found.bootstrap


def test_a_consumer_reads_exactly_the_archived_log_with_epochs_unknown(bootstrap: str) -> None:
    with RawClient(bootstrap) as client:
        found = read_all(client, WHERE, 10)
    assert found == without_epochs(b"".join(LOG))
    assert set(walk(found)["leader_epoch"].tolist()) == {-1}


@given(offset=st.integers(10, 12_007), size=st.sampled_from([0, 1, 100, 5000, 70_000, 1 << 20, 2**31 - 1]))
@settings(deadline=None, max_examples=60)
def test_any_offset_and_any_limit_give_the_batch_that_contains_it(bootstrap: str, offset: int, size: int) -> None:
    expected = [batch for batch in LOG if struct.unpack_from(">q", batch)[0] + 7 > offset]
    with RawClient(bootstrap) as client:
        request = fetch_request({WHERE: offset}, partition_bytes_max=size, wait_ms=10_000 if expected else 1)
        answer = partitions_of(client.ask(request, 12))[WHERE]
    found = bytes(answer.records or b"")
    assert answer.error_code == 0
    assert without_epochs(b"".join(expected)).startswith(found)
    if expected:
        assert found
        assert len(walk(found)) == 1 or len(found) <= size


@pytest.mark.parametrize("version", range(4, 13))
def test_every_version_of_fetch_gives_the_same_bytes(bootstrap: str, version: int) -> None:
    with RawClient(bootstrap) as client:
        request = fetch_request({WHERE: 35}, bytes_min=1000, wait_ms=10_000)
        answer = partitions_of(client.ask(request, version))[WHERE]
    found = bytes(answer.records)
    assert found
    assert without_epochs(b"".join(LOG[2:])).startswith(found)
    assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (0, 12_007, 12_007)
    assert version < 5 or answer.log_start_offset == 10


@given(log=batches())
@settings(deadline=None, max_examples=25)
def test_all_that_a_log_can_hold_comes_through(log: list[Batch], tmp_path_factory: pytest.TempPathFactory) -> None:
    url = tmp_path_factory.mktemp("any") / "archive"
    write(url, [b"".join(batch.data for batch in log)])
    with mounted(url) as found, RawClient(found.bootstrap) as client:
        assert read_all(client, WHERE, log[0].first) == without_epochs(b"".join(batch.data for batch in log))


def test_an_offset_outside_of_the_log_is_an_error(bootstrap: str) -> None:
    with RawClient(bootstrap) as client:
        for offset in (9, 12_008, -1):
            assert partitions_of(client.ask(fetch_request({WHERE: offset}), 12))[WHERE].error_code == OUT_OF_RANGE


def test_an_unknown_topic_or_partition_is_an_error_of_its_own(bootstrap: str) -> None:
    places = {WHERE: 10, ("orders", 4): 0, ("orders", -1): 0, ("other", 0): 0}
    with RawClient(bootstrap) as client:
        answers = partitions_of(client.ask(fetch_request(places, wait_ms=10_000), 12))
    assert {where: each.error_code for where, each in answers.items()} == {
        WHERE: 0,
        **dict.fromkeys([("orders", 4), ("orders", -1), ("other", 0)], UNKNOWN),
    }


def test_a_position_in_the_hole_before_the_first_batch_is_not_out_of_range(tmp_path: Path) -> None:
    first, *_ = write(tmp_path / "archive", [b"".join(LOG[:2])])
    opened = open_for_writing(str(tmp_path / "archive"))
    hole = Gap(
        topic=first.topic,
        topic_id=first.topic_id,
        partition=first.partition,
        base_offset=0,
        end_offset=10,
        reason=GapReason.COMPACTED,
        run_id="run-1",
        written_at=1,
    )
    opened.catalog.commit([hole])
    with mounted(tmp_path / "archive") as found, RawClient(found.bootstrap) as client:
        assert read_all(client, WHERE, 4) == without_epochs(b"".join(LOG[:2]))
        answer = partitions_of(client.ask(fetch_request({WHERE: 4}, wait_ms=10_000), 12))[WHERE]
    assert (answer.error_code, answer.log_start_offset) == (0, 0)
