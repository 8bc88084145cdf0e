"""What a broker has in its log is what comes out of a fetch: every byte, in order, and nothing undecided."""

from __future__ import annotations

import random
import threading
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from maxbrod.batch.decode import decode
from maxbrod.batch.headers import walk
from maxbrod.batch.transactions import committed_records, from_fetch
from maxbrod.errors import CorruptDataError, RefusedError, UnavailableError, UnsupportedFormatError
from maxbrod.kafka.fetch.ranges import FETCH_BYTES, read_range
from maxbrod.kafka.fetch.request import PartitionFetch, fetch_request, read_answer
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import Codec
from maxbrod.sandbox.events import orders, produce_records
from maxbrod.sandbox.surgery import compact, delete_records, expire
from maxbrod.sandbox.topics import create_topic, delete_topic, recreate_topic
from maxbrod.sandbox.traffic import Message, numbered, open_transaction, produce, produce_transaction
from support.kafka_reads import assert_tiled, bounds, client_of, fill, joined, log_bytes, partition_of, read_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.kafka.fetch.request import Chunk
    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.sandbox.cluster import Cluster

KEEP = {"retention.ms": "-1"}


@pytest.fixture
def client(cluster: Cluster) -> Iterator[KafkaClient]:
    with client_of(cluster) as opened:
        yield opened


@pytest.mark.parametrize("codec", list(Codec))
def test_the_bytes_of_every_codec_are_those_of_the_log(
    cluster: Cluster, client: KafkaClient, topic: str, codec: Codec
) -> None:
    create_topic(cluster, topic, config={**KEEP, "segment.bytes": str(1 << 20)})
    fill(cluster, topic, 15_000, codec=codec)
    # Answers of a few batches, which end in a cut one.
    assert read_all(client, partition_of(topic), fetch_bytes=300_000) == log_bytes(cluster, topic)


def test_records_are_a_slice_of_the_buffer_that_the_socket_wrote_into(
    cluster: Cluster, client: KafkaClient, topic: str
) -> None:
    topic_id = create_topic(cluster, topic, partitions=2)
    for partition in (0, 1):
        produce(cluster, topic, numbered(10, first=partition), partition=partition)
    deadline = Deadline.after(30)
    leader = client.leader(partition_of(topic), deadline=deadline)
    connection = client.connection(leader.node_id, deadline=deadline)
    requests = [
        PartitionFetch(topic=topic, topic_id=topic_id, partition=each, offset=0, bytes_max=1 << 20) for each in (0, 1)
    ]
    frame = connection.receive(connection.send(fetch_request(requests, bytes_max=1 << 20), deadline), deadline)
    answer = read_answer(frame)
    for partition in (0, 1):
        found = answer.partitions[topic_id, partition]
        assert np.shares_memory(found.records, frame)
        assert found.records.tobytes() == log_bytes(cluster, topic, partition=partition)


def test_a_batch_larger_than_the_fetch_size_arrives_whole(cluster: Cluster, client: KafkaClient, topic: str) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, [Message(value=random.Random(1).randbytes(900_000)) for _ in range(3)])
    assert read_all(client, partition_of(topic), fetch_bytes=1000) == log_bytes(cluster, topic)


def test_ranges_cut_anywhere_give_every_batch_once(cluster: Cluster, client: KafkaClient, topic: str) -> None:
    create_topic(cluster, topic, config=KEEP)
    fill(cluster, topic, 10_000, codec=Codec.LZ4)
    where = partition_of(topic)
    start, end = bounds(client, where)
    for seed in range(5):
        cuts = sorted({start, end, *random.Random(seed).sample(range(start, end), 7)})
        pieces = [list(read_range(client, where, low, high)) for low, high in pairwise(cuts)]
        for (low, high), chunks in zip(pairwise(cuts), pieces, strict=True):
            assert_tiled(chunks)
            assert (chunks[0].start, chunks[-1].end) == (low, high)
        assert b"".join(map(joined, pieces)) == log_bytes(cluster, topic)


def test_nothing_beyond_the_last_stable_offset_is_read(cluster: Cluster, client: KafkaClient, topic: str) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(5))
    where = partition_of(topic)
    with open_transaction(cluster, topic, numbered(5), transactional_id=topic) as undecided:
        assert bounds(client, where) == (0, undecided[0])
        whole = read_all(client, where)
        assert walk(whole, whole=True).last_offset[-1] == undecided[0] - 1
        with pytest.raises(UnavailableError, match=f"last stable offset, which is {undecided[0]}, to reach 10"):
            list(read_range(client, where, 0, 10, patience_s=1.5))
        uncommitted = joined(read_range(client, where, 0, 10, read_committed=False))
        assert walk(uncommitted, whole=True).last_offset[-1] == undecided[-1]


def test_the_aborted_list_leaves_exactly_the_committed_records(
    cluster: Cluster, client: KafkaClient, topic: str
) -> None:
    create_topic(cluster, topic)
    expected = []
    for number in range(6):
        messages = numbered(3, first=10 * number)
        commit = number % 2 == 0
        produce_transaction(cluster, topic, messages, transactional_id=f"{topic}-{number}", commit=commit)
        expected += [message.value for message in messages if commit]
    where = partition_of(topic)
    values = []
    for chunk in read_range(client, where, *bounds(client, where), fetch_bytes=100):
        aborted = from_fetch(chunk.data, chunk.headers, chunk.aborted)
        records = decode(chunk.data).filter(pa.array(committed_records(chunk.headers, aborted)))
        values += records.column("value").to_pylist()
    assert values == expected


def test_retention_that_overtook_the_reader_is_told_by_the_log_start(
    cluster: Cluster, client: KafkaClient, topic: str
) -> None:
    create_topic(cluster, topic)
    for first in range(0, 40, 10):
        produce(cluster, topic, numbered(10, first=first))
    delete_records(cluster, topic, before_offset=20)
    chunks = list(read_range(client, partition_of(topic), 0, 40))
    assert_tiled(chunks)
    assert (chunks[0].start, chunks[0].end, chunks[0].log_start_offset, len(chunks[0].headers)) == (0, 20, 20, 0)
    assert chunks[1].start == 20
    assert chunks[-1].end == 40
    # And where nothing at all is left of the range.
    expire(cluster, topic)
    (chunk,) = read_range(client, partition_of(topic), 25, 35)
    assert (chunk.start, chunk.end, chunk.log_start_offset, len(chunk.headers)) == (25, 35, 40, 0)


def test_a_compacted_range_ends_though_its_last_offsets_are_gone(
    cluster: Cluster, client: KafkaClient, topic: str
) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(50, keys=1), batch_size=1)
    end = compact(cluster, topic)
    chunks = list(read_range(client, partition_of(topic), 0, end - 1))
    assert_tiled(chunks)
    assert chunks[-1].end == end - 1
    assert read_all(client, partition_of(topic)) == log_bytes(cluster, topic)


def test_a_log_that_ends_before_the_range_is_refused(cluster: Cluster, client: KafkaClient, topic: str) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(5))
    with pytest.raises(RefusedError, match="truncated") as caught:
        list(read_range(client, partition_of(topic), 100, 200))
    assert caught.value.offset == 100


def test_a_topic_recreated_meanwhile_is_noticed(cluster: Cluster, client: KafkaClient, topic: str) -> None:
    create_topic(cluster, topic, config=KEEP)
    fill(cluster, topic, 10_000)
    chunks = read_range(client, partition_of(topic), 0, 10_000, fetch_bytes=200_000)
    next(chunks)
    recreate_topic(cluster, topic)
    fill(cluster, topic, 10_000, seed=9)
    with pytest.raises(RefusedError, match="deleted and created again"):
        # One answer may have been under way.
        list(chunks)


def test_another_incarnation_than_the_wanted_one_is_refused(cluster: Cluster, client: KafkaClient, topic: str) -> None:
    create_topic(cluster, topic)
    old, _ = recreate_topic(cluster, topic)
    produce(cluster, topic, numbered(5))
    with pytest.raises(RefusedError, match="deleted and created again"):
        list(read_range(client, partition_of(topic), 0, 5, topic_id=old))


def test_a_topic_deleted_meanwhile_is_refused(cluster: Cluster, client: KafkaClient, topic: str) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(5))
    topic_id = client.topic(topic, deadline=Deadline.after(60)).topic_id
    delete_topic(cluster, topic)
    with pytest.raises(RefusedError, match="the topic was deleted"):
        list(read_range(client, partition_of(topic), 0, 5, topic_id=topic_id))


@pytest.mark.parametrize("byte", [-1, 16], ids=["a record", "the magic"])
def test_a_batch_damaged_in_the_log_is_named_and_what_stands_before_it_handed_out(
    cluster: Cluster, client: KafkaClient, topic: str, byte: int
) -> None:
    create_topic(cluster, topic)
    fill(cluster, topic, 2500)
    good = log_bytes(cluster, topic)
    headers = walk(good)
    row = len(headers) // 2
    bad, at, size = (int(column[row]) for column in (headers["base_offset"], headers.position, headers.size))
    flip_bit(cluster, topic, at + range(size)[byte])
    before: list[Chunk] = []
    with pytest.raises((CorruptDataError, UnsupportedFormatError)) as caught:
        before.extend(read_range(client, partition_of(topic), 0, 2500))
    assert (caught.value.object_name, caught.value.offset) == (f"{topic}-0", bad)
    assert joined(before) == good[:at]


def test_a_reader_can_go_on_behind_a_damaged_batch(cluster: Cluster, client: KafkaClient, topic: str) -> None:
    create_topic(cluster, topic)
    fill(cluster, topic, 2500)
    good = log_bytes(cluster, topic)
    headers = walk(good)
    flip_bit(cluster, topic, int(headers.position[3]) - 1)
    with pytest.raises(CorruptDataError, match="checksum") as caught:
        list(read_range(client, partition_of(topic), 0, 2500))
    assert caught.value.offset is not None
    after = list(read_range(client, partition_of(topic), caught.value.offset + 1, 2500))
    assert joined(after) == good[int(headers.position[3]) :]


def flip_bit(cluster: Cluster, topic: str, position: int) -> None:
    (path,) = (cluster.log_dir(cluster.broker_ids[0]) / f"{topic}-0").glob("*.log")
    with path.open("r+b") as log:
        log.seek(position)
        byte = log.read(1)[0]
        log.seek(position)
        log.write(bytes([byte ^ 0x40]))


def test_a_partition_read_in_parallel_is_the_same_bytes(cluster: Cluster, topic: str) -> None:
    create_topic(cluster, topic, config=KEEP)
    records = orders(60_000)
    for _ in range(2):
        produce_records(cluster, topic, records, codec=Codec.NONE)
    where = partition_of(topic)
    several = FETCH_BYTES >> 3
    with client_of(cluster) as client:
        start, end = bounds(client, where)
        sequential = joined(read_range(client, where, start, end, fetch_bytes=several))
    assert len(sequential) > 4 * 5 * several, "each part takes several requests"
    cuts = [start + (end - start) * part // 4 for part in range(5)]
    pieces: dict[int, bytes] = {}

    def read(part: int) -> None:
        with client_of(cluster) as mine:
            pieces[part] = joined(read_range(mine, where, cuts[part], cuts[part + 1], fetch_bytes=several))

    threads = [threading.Thread(target=read, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert b"".join(pieces[part] for part in range(4)) == sequential == log_bytes(cluster, topic)
