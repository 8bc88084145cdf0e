"""A real broker takes what we encode, and Kafka's own clients and tools read back the same."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from maxbrod.batch.decode import decode
from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.batch.patch import patch
from maxbrod.batch.transactions import committed_records, from_fetch, from_markers
from maxbrod.model import Codec
from maxbrod.sandbox.jars import CONSOLE_CONSUMER, DUMP_LOG_SEGMENTS, run_tool
from maxbrod.sandbox.surgery import compact
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import Message, open_transaction, produce, produce_transaction
from support import raw_requests as wire
from support.java_oracle import CODECS, JavaOracle, JavaRecord
from support.java_records import RECORDS, at_offsets, to_arrow, to_java
from support.raw_requests import ANY_TIME

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

# Debian called it kafkacat for long.
KCAT = shutil.which("kcat") or shutil.which("kafkacat")
INVALID_RECORD = 87
CORRUPT_MESSAGE = 2
# Text that the console tools can print on one line.
PLAIN = [
    JavaRecord(
        timestamp_ms=1_700_000_000_000 + row,
        key=None if row % 5 == 0 else f"key-{row}".encode(),
        value=None if row % 7 == 0 else f'{{"row":{row}}}'.encode(),
        headers=(("h", f"{row}".encode()),) if row % 3 == 0 else (),
    )
    for row in range(50)
]


def segment(cluster: Cluster, topic: str, partition: int = 0) -> Path:
    (log,) = sorted((cluster.log_dir(cluster.broker_ids[0]) / f"{topic}-{partition}").glob("*.log"))
    return log


@pytest.mark.parametrize("codec", list(Codec))
def test_a_broker_accepts_our_batches_and_java_reads_them_equal(
    cluster: Cluster, java: JavaOracle, topic: str, codec: Codec
) -> None:
    create_topic(cluster, topic, config=ANY_TIME)
    batch = encode(to_arrow(RECORDS), codec=codec).tobytes()

    assert wire.produce(cluster, topic, batch) == (0, None)
    assert java.consume(cluster.bootstrap, topic, 0) == at_offsets(RECORDS)
    assert to_java(decode(segment(cluster, topic).read_bytes())) == at_offsets(RECORDS)


@pytest.mark.parametrize("codec", list(Codec))
def test_the_console_consumer_prints_what_we_encoded(cluster: Cluster, topic: str, codec: Codec) -> None:
    create_topic(cluster, topic, config=ANY_TIME)
    assert wire.produce(cluster, topic, encode(to_arrow(PLAIN), codec=codec).tobytes()) == (0, None)
    printed = run_tool(
        CONSOLE_CONSUMER,
        *("--bootstrap-server", cluster.bootstrap, "--topic", topic, "--from-beginning"),
        *("--max-messages", str(len(PLAIN))),
        *(f"--formatter-property=print.{what}=true" for what in ("timestamp", "offset", "headers", "key")),
    )

    assert printed.splitlines() == [
        "\t".join(
            [
                f"CreateTime:{record.timestamp_ms}",
                f"Offset:{row}",
                ",".join(f"{key}:{value.decode()}" for key, value in record.headers if value) or "NO_HEADERS",
                "null" if record.key is None else record.key.decode(),
                "null" if record.value is None else record.value.decode(),
            ]
        )
        for row, record in enumerate(PLAIN)
    ]


@pytest.mark.skipif(KCAT is None, reason="kcat is not installed: see scripts/install-test-tools")
@pytest.mark.parametrize("codec", list(Codec))
def test_kcat_prints_what_we_encoded(cluster: Cluster, topic: str, codec: Codec) -> None:
    create_topic(cluster, topic, config=ANY_TIME)
    assert wire.produce(cluster, topic, encode(to_arrow(PLAIN), codec=codec).tobytes()) == (0, None)
    ran = subprocess.run(
        [str(KCAT), "-Cqe", "-b", cluster.bootstrap, "-t", topic, "-p0", "-obeginning", "-f", "%T|%o|%h|%K|%k|%S|%s\n"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    def sized(data: bytes | None) -> str:
        return "-1|" if data is None else f"{len(data)}|{data.decode()}"

    assert ran.stdout.splitlines() == [
        f"{record.timestamp_ms}|{row}|"
        + ",".join(f"{key}={value.decode()}" for key, value in record.headers if value)
        + f"|{sized(record.key)}|{sized(record.value)}"
        for row, record in enumerate(PLAIN)
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_what_the_java_producer_wrote_decodes_equal_from_a_fetch_and_from_the_log(
    cluster: Cluster, java: JavaOracle, topic: str, codec: str
) -> None:
    create_topic(cluster, topic, config=ANY_TIME)
    java.produce(cluster.bootstrap, topic, 0, RECORDS, codec)
    fetched, _ = wire.fetch(cluster, topic, 0)

    assert to_java(decode(fetched)) == at_offsets(RECORDS)
    assert to_java(decode(segment(cluster, topic).read_bytes())) == at_offsets(RECORDS)
    assert {Codec(code).name.lower() for code in walk(fetched).codec} == {codec}


def test_a_fetch_cut_by_the_broker_gives_its_whole_batches(cluster: Cluster, java: JavaOracle, topic: str) -> None:
    create_topic(cluster, topic, config=ANY_TIME)
    many = [JavaRecord(timestamp_ms=row, value=b"x" * 700) for row in range(200)]
    java.produce(cluster.bootstrap, topic, 0, many, "none", batch_size="5000")
    whole = segment(cluster, topic).read_bytes()
    fetched, _ = wire.fetch(cluster, topic, 0, max_bytes=40_000)
    headers = walk(fetched)

    assert headers.tail > 0
    assert whole.startswith(fetched[: headers.end])
    assert len(headers) == int((walk(whole).position + walk(whole).size <= len(fetched)).sum())


def test_an_idempotent_broker_accepts_patched_batches_in_sequence(
    cluster: Cluster, java: JavaOracle, topic: str
) -> None:
    """Restoring is this: archived bytes under a new producer id, epoch and sequence."""
    create_topic(cluster, topic, config=ANY_TIME)
    data = encode(to_arrow(RECORDS * 3, 5_000), codec=Codec.LZ4, batch_bytes_max=3_000)
    headers = walk(data)
    counts = headers["count"].astype(np.int64)
    patched = patch(
        data, headers, producer_id=987_654, producer_epoch=0, base_sequence=(np.cumsum(counts) - counts), base_offset=0
    )
    for start, size in zip(patched.position.tolist(), patched.size.tolist(), strict=True):
        assert wire.produce(cluster, topic, data[start : start + size].tobytes()) == (0, None)

    assert java.consume(cluster.bootstrap, topic, 0) == at_offsets(RECORDS * 3)


def test_a_broker_refuses_a_batch_with_holes_in_its_offsets(cluster: Cluster, topic: str) -> None:
    create_topic(cluster, topic, config=ANY_TIME)
    records = to_arrow(RECORDS)
    holes = encode(records.take(pa.array([1, 2, 4])), codec=Codec.ZSTD).tobytes()

    assert wire.produce(cluster, topic, holes)[0] == INVALID_RECORD


def test_a_broker_refuses_a_damaged_batch_that_was_patched(cluster: Cluster, topic: str) -> None:
    create_topic(cluster, topic, config=ANY_TIME)
    data = encode(to_arrow(RECORDS))
    headers = walk(data)
    data[-1] ^= 1
    patch(data, headers, producer_id=5, producer_epoch=0, base_sequence=0)

    assert wire.produce(cluster, topic, data.tobytes())[0] == CORRUPT_MESSAGE


# What kafka-dump-log prints, against what we decode

BATCH = re.compile(r"^baseOffset: ")
RECORD = re.compile(r"^\| offset: ")


def dump(log: Path) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Batches and records that kafka-dump-log prints, as fields."""
    lines = run_tool(DUMP_LOG_SEGMENTS, "--files", str(log), "--print-data-log").splitlines()

    def fields(line: str) -> dict[str, str]:
        return dict(re.findall(r"(\w+): (\[[^\]]*\]|\S+)", line))

    return [fields(line) for line in lines if BATCH.match(line)], [fields(line) for line in lines if RECORD.match(line)]


def check_against_dump(log: Path) -> int:
    """Compare every header and every record of a broker's log file with the dump; returns how many records."""
    batches, records = dump(log)
    data = log.read_bytes()
    headers = walk(data)
    decoded = decode(data)
    ours = [
        {
            "baseOffset": str(headers["base_offset"][row]),
            "lastOffset": str(headers.last_offset[row]),
            "count": str(headers["count"][row]),
            "baseSequence": str(headers["base_sequence"][row]),
            "producerId": str(headers["producer_id"][row]),
            "producerEpoch": str(headers["producer_epoch"][row]),
            "partitionLeaderEpoch": str(headers["leader_epoch"][row]),
            "isTransactional": str(headers.transactional[row]).lower(),
            "isControl": str(headers.control[row]).lower(),
            "position": str(headers.position[row]),
            "size": str(headers.size[row]),
            "magic": str(headers["magic"][row]),
            "compresscodec": Codec(headers.codec[row]).name.lower(),
            "crc": str(headers["crc"][row]),
            "isvalid": "true",
        }
        for row in range(len(headers))
    ]
    assert [{name: batch[name] for name in ours[0]} for batch in batches] == ours

    def size(blob: bytes | None) -> str:
        return str(-1 if blob is None else len(blob))

    wanted = [
        {
            "offset": str(row["offset"]),
            "CreateTime": str(row["timestamp_ms"]),
            "keySize": size(row["key"]),
            "valueSize": size(row["value"]),
            "sequence": str(row["sequence"]),
            "headerKeys": "[" + ",".join(header["key"].decode() for header in row["headers"]) + "]",
        }
        for row in decoded.to_pylist()
    ]
    assert [{name: record[name] for name in wanted[0]} for record in records] == wanted
    return len(records)


@pytest.mark.parametrize("codec", CODECS)
def test_a_brokers_log_decodes_to_what_dump_log_prints(
    cluster: Cluster, java: JavaOracle, topic: str, codec: str
) -> None:
    create_topic(cluster, topic, config=ANY_TIME)
    java.produce(cluster.bootstrap, topic, 0, RECORDS[:3] + RECORDS[4:] + PLAIN, codec, batch_size="1000")

    assert check_against_dump(segment(cluster, topic)) == len(RECORDS) - 1 + len(PLAIN)


def test_a_transactional_log_decodes_to_what_dump_log_prints(cluster: Cluster, java: JavaOracle, topic: str) -> None:
    create_topic(cluster, topic, config=ANY_TIME)
    messages = [Message(key=b"k%d" % row, value=b"v") for row in range(10)]
    produce_transaction(cluster, topic, messages, transactional_id=f"{topic}-a")
    produce_transaction(cluster, topic, messages, transactional_id=f"{topic}-b", commit=False)
    produce(cluster, topic, messages)
    with open_transaction(cluster, topic, messages[:3], transactional_id=f"{topic}-c"):
        fetched, aborted_starts = wire.fetch(cluster, topic, 0)
        log = segment(cluster, topic).read_bytes()
        headers = walk(log)
        found = from_markers(log, headers)

        assert check_against_dump(segment(cluster, topic)) == 10 + 1 + 10 + 1 + 10 + 3
        assert [each.first_offset for each in found.aborted] == [11]
        assert [first for _, first in found.undecided] == [32]
        # The broker's own list, for all that is stable.
        stable = walk(fetched)
        assert int(stable.last_offset[-1]) == 31
        assert from_fetch(fetched, stable, aborted_starts) == found.aborted
        committed = decode(fetched).filter(committed_records(stable, found.aborted))
        assert to_java(committed) == java.consume(cluster.bootstrap, topic, 0)


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_a_compacted_log_decodes_to_what_dump_log_prints(
    cluster: Cluster, java: JavaOracle, topic: str, codec: str
) -> None:
    create_topic(cluster, topic, config={"cleanup.policy": "compact", "delete.retention.ms": "86400000"})
    keyed = [
        JavaRecord(timestamp_ms=row, key=b"k%d" % (row % 7), value=None if row % 7 == 3 else b"%d" % row)
        for row in range(100)
    ]
    # A transaction that is wholly overwritten leaves emptied batches behind.
    java.produce(cluster.bootstrap, topic, 0, keyed, codec, batch_size="300")
    produce_transaction(cluster, topic, [Message(key=b"k1", value=b"old")], transactional_id=topic)
    java.produce(cluster.bootstrap, topic, 0, keyed, codec, batch_size="300")
    compact(cluster, topic)

    logs = sorted((cluster.log_dir(cluster.broker_ids[0]) / f"{topic}-0").glob("*.log"))
    cleaned = [log for log in logs if log.stat().st_size]
    assert sum(check_against_dump(log) for log in cleaned) < 30
    everything = b"".join(log.read_bytes() for log in cleaned)
    headers = walk(everything)
    assert (headers["count"] < headers["last_offset_delta"] + 1).any(), "compaction left no holes to read"
    visible = decode(everything).filter(committed_records(headers, from_markers(everything, headers).aborted))
    assert to_java(visible) == java.consume(cluster.bootstrap, topic, 0)
