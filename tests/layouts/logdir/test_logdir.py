"""A broker's directory is read as a broker would load it, byte for byte, and never written to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.batch.headers import BatchHeaders
from maxbrod.errors import RefusedError, UsageError
from maxbrod.layouts.foreign import ClusterFacts, WriteOptions
from maxbrod.layouts.logdir.reader import read_batches
from maxbrod.layouts.registry import detect_layout, layout_of
from maxbrod.model import Codec, TopicPartition
from maxbrod.storage.stores import open_storage
from support.log_directories import TOPIC_ID, fatal, offsets, put_checkpoint, put_log, put_watermark, raw, run, survey
from support.native_logs import ABORT, COMMIT, data_batch, marker
from support.old_messages import message, wrapper
from support.plain_batches import Record

if TYPE_CHECKING:
    from pathlib import Path

WHERE = TopicPartition(topic="orders", partition=0)


def transactional(offset: int, producer_id: int, count: int = 2) -> bytes:
    return data_batch(offset, count, attributes=0x10, producer_id=producer_id, producer_epoch=0, base_sequence=0)


def test_segments_are_found_and_their_batches_given_byte_for_byte(tmp_path: Path) -> None:
    first, second = run(0, 3, epoch=1), [*run(30, 2, epoch=2), data_batch(50, 5, codec=Codec.ZSTD, leader_epoch=2)]
    put_log(tmp_path, first)
    put_log(tmp_path, second, base=30)
    found = survey(tmp_path)
    assert not found.faults
    assert [(each.base_offset, each.end_offset, each.records) for each in found.segments] == [(0, 30, 30), (30, 55, 25)]
    assert [(each.first_leader_epoch, each.last_leader_epoch) for each in found.segments] == [(1, 1), (2, 2)]
    assert raw(tmp_path, found) == b"".join(first + second)
    assert offsets(tmp_path, found) == list(range(55))
    assert found.positions == {WHERE: 55}
    assert detect_layout(open_storage(str(tmp_path))) == "logdir"


def test_the_topics_own_id_and_the_cluster_are_known(tmp_path: Path) -> None:
    put_log(tmp_path, run(0, 1))
    put_log(tmp_path, run(0, 1), name="orders-3")
    (tmp_path / "orders-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}\n")
    (tmp_path / "meta.properties").write_text("#\nversion=1\nnode.id=1\ncluster.id=abc-123\n")
    found = survey(tmp_path)
    assert (found.topics["orders"].topic_id, found.topics["orders"].partition_count) == (TOPIC_ID, 4)
    assert found.cluster_id == "abc-123"
    rows = open_archive(str(tmp_path)).catalog.rows().to_pylist()
    assert {row["topic_id"] for row in rows if row["kind"] == "data"} == {TOPIC_ID}


def test_directories_of_two_clusters_are_never_mixed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        put_log(tmp_path / name, run(0, 1))
        (tmp_path / name / "meta.properties").write_text(f"cluster.id={name}\n")
    with pytest.raises(RefusedError, match="several clusters: a, b"):
        survey(tmp_path)


def test_records_of_aborted_transactions_are_never_seen_and_never_lost(tmp_path: Path) -> None:
    log = [transactional(0, 7), transactional(2, 8), marker(4, 7, ABORT), marker(5, 8, COMMIT), transactional(6, 7)]
    later = [transactional(8, 9), marker(10, 7, COMMIT), marker(11, 9, ABORT)]
    put_log(tmp_path, log)
    put_log(tmp_path, later, base=8)
    found = survey(tmp_path)
    assert not found.faults
    assert offsets(tmp_path, found) == [2, 3, 6, 7]
    assert raw(tmp_path, found) == b"".join(log + later)


def test_a_transaction_that_began_a_segment_before_its_abort_is_never_seen(tmp_path: Path) -> None:
    put_log(tmp_path, [data_batch(0), transactional(1, 7)])
    put_log(tmp_path, [transactional(3, 7), marker(5, 7, ABORT), transactional(6, 7), marker(8, 7, COMMIT)], base=3)
    assert offsets(tmp_path, survey(tmp_path)) == [0, 6, 7]


def test_a_transaction_without_an_end_is_never_seen_and_is_told(tmp_path: Path) -> None:
    put_log(tmp_path, [data_batch(0), transactional(1, 7), data_batch(3)])
    found = survey(tmp_path)
    assert offsets(tmp_path, found) == [0, 3]
    (fault,) = fatal(found)
    assert "producer 7 has no marker" in fault


def test_old_messages_are_read(tmp_path: Path) -> None:
    records = [Record(offset=offset, timestamp=offset, key=b"k", value=b"v") for offset in range(9)]
    log = [message(0, records[0]), message(1, records[1]), wrapper(1, Codec.GZIP, records[2:5])]
    put_log(tmp_path, [*log, wrapper(0, Codec.SNAPPY, records[5:9]), data_batch(9, 3)])
    found = survey(tmp_path)
    assert not found.faults
    assert offsets(tmp_path, found) == list(range(12))
    assert found.segments[0].records == 12


def test_compaction_leaves_holes_that_are_explained(tmp_path: Path) -> None:
    put_log(tmp_path, [data_batch(3, 2), data_batch(40, 1)])
    put_log(tmp_path, [data_batch(70, 1)], base=50)
    put_checkpoint(tmp_path / "cleaner-offset-checkpoint", ["orders 0 71"])
    found = survey(tmp_path)
    assert not found.faults
    assert offsets(tmp_path, found) == [3, 4, 40, 70]
    assert [(each.base_offset, each.end_offset, each.reason) for each in found.gaps] == [(41, 70, "compacted")]


def test_files_that_a_broker_would_not_load_are_not_read(tmp_path: Path) -> None:
    put_log(tmp_path, run(0, 1))
    put_log(tmp_path, run(10, 1), base=10, suffix=".deleted")
    put_log(tmp_path, run(20, 1), base=20, suffix=".cleaned")
    put_log(tmp_path, run(0, 1), name=f"gone-0.{'a' * 32}-delete")
    put_log(tmp_path, run(0, 9), name=f"orders-0.{'b' * 32}-future")
    found = survey(tmp_path)
    assert offsets(tmp_path, found) == list(range(10))
    assert set(found.topics) == {"orders"}
    assert len(found.faults) == 2
    assert not fatal(found)


def test_a_finished_cleaning_takes_the_place_of_what_it_covers(tmp_path: Path) -> None:
    put_log(tmp_path, run(0, 2))
    put_log(tmp_path, run(20, 2), base=20)
    put_log(tmp_path, run(40, 2), base=40)
    put_log(tmp_path, [data_batch(5, 1), data_batch(39, 1)], suffix=".swap")
    found = survey(tmp_path)
    assert offsets(tmp_path, found) == [5, 39, *range(40, 60)]
    assert not fatal(found)


def test_a_swap_of_a_cleaning_that_went_on_is_not_used(tmp_path: Path) -> None:
    put_log(tmp_path, run(0, 2))
    put_log(tmp_path, [data_batch(5, 1)], suffix=".swap")
    put_log(tmp_path, [data_batch(5, 1)], suffix=".cleaned")
    assert offsets(tmp_path, survey(tmp_path)) == list(range(20))


def test_what_was_deleted_below_the_log_start_does_not_come_back(tmp_path: Path) -> None:
    put_log(tmp_path, run(0, 3))
    put_checkpoint(tmp_path / "log-start-offset-checkpoint", ["orders 0 10"])
    assert offsets(tmp_path, survey(tmp_path)) == list(range(10, 30))


@pytest.mark.parametrize("check_crc", ["true", "false"])
def test_a_log_that_begins_within_a_batch_is_read_without_what_stands_before(tmp_path: Path, check_crc: str) -> None:
    batches = run(0, 3)
    put_log(tmp_path, batches)
    put_checkpoint(tmp_path / "log-start-offset-checkpoint", ["orders 0 17"])
    found = survey(tmp_path, check_crc=check_crc)
    (segment,) = found.segments
    assert (segment.base_offset, segment.end_offset, segment.records) == (17, 30, 13)
    assert offsets(tmp_path, found) == list(range(17, 30))
    assert raw(tmp_path, found).endswith(batches[2]), "the others are the same bytes"


def test_a_log_that_begins_within_a_compressed_message_is_read_from_there_on(tmp_path: Path) -> None:
    inner = [Record(offset=each, timestamp=each, key=None, value=b"v", headers=[]) for each in range(10)]
    put_log(tmp_path, [wrapper(1, Codec.GZIP, inner)])
    put_checkpoint(tmp_path / "log-start-offset-checkpoint", ["orders 0 4"])
    found = survey(tmp_path)
    assert [(each.base_offset, each.end_offset, each.records) for each in found.segments] == [(4, 10, 6)]
    assert offsets(tmp_path, found) == list(range(4, 10))


def test_records_above_the_high_watermark_are_left_out_and_told(tmp_path: Path) -> None:
    put_log(tmp_path, run(0, 5))
    put_watermark(tmp_path, 30)
    found = survey(tmp_path)
    assert offsets(tmp_path, found) == list(range(30))
    assert found.positions == {WHERE: 30}
    (fault,) = fatal(found)
    assert "offsets 30 to 49" in fault
    assert "uncommitted_tail" in fault
    taken = survey(tmp_path, uncommitted_tail="true")
    assert not taken.faults
    assert offsets(tmp_path, taken) == list(range(50))


def test_unknown_options_are_refused(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    with pytest.raises(UsageError, match="no option tail"):
        layout_of("logdir").survey(storage, {"tail": "true"})
    with pytest.raises(UsageError, match="true or false"):
        layout_of("logdir").survey(storage, {"uncommitted_tail": "yes"})
    with pytest.raises(UsageError, match="has no option uncommitted_tail"):
        layout_of("kbak").survey(storage, {"uncommitted_tail": "true"})


def test_a_log_directory_is_never_written_to(tmp_path: Path) -> None:
    put_log(tmp_path, run(0, 1))
    before = sorted(tmp_path.rglob("*"))
    opened = open_archive(str(tmp_path))
    layout, storage = layout_of("logdir"), open_storage(str(tmp_path))
    found = layout.survey(storage)
    with pytest.raises(RefusedError, match="never written"):
        layout.write(storage, WHERE, [], WriteOptions(), survey=found)
    with pytest.raises(RefusedError, match="never written"):
        layout.publish(storage, found, [], WriteOptions(), ClusterFacts())
    with pytest.raises(RefusedError, match="never written"):
        opened.storage.put("restores/x", b"")
    assert sorted(tmp_path.rglob("*")) == before


def test_batches_travel_with_their_headers(tmp_path: Path) -> None:
    put_log(tmp_path, run(0, 2))
    (segment,) = survey(tmp_path).segments
    ((_, headers),) = read_batches(open_storage(str(tmp_path)), segment)
    assert isinstance(headers, BatchHeaders)
    assert headers["base_offset"].tolist() == [0, 10]


def test_a_checkpoint_that_a_broker_has_not_written_to_yet_is_nothing_to_tell(tmp_path: Path) -> None:
    put_log(tmp_path, run(0, 3))
    put_watermark(tmp_path, 30)
    (tmp_path / "cleaner-offset-checkpoint").touch()
    (tmp_path / "log-start-offset-checkpoint").touch()
    found = survey(tmp_path)
    assert found.faults == ()
    assert offsets(tmp_path, found) == list(range(30))
