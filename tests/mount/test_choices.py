"""What is mounted: layouts, names, several archives, runs and times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest

from maxbrod.batch.decode import decode
from maxbrod.errors import RefusedError, UsageError
from maxbrod.layouts.registry import FOREIGN
from maxbrod.model import Codec
from support.conversions import convert
from support.mounts import RawClient, mounted, read_all
from support.native_logs import COMMIT, NAME, data_batch, marker
from support.sparkless import without_spark
from support.table_archives import write

WHERE = (NAME.topic, NAME.partition)
LOG = [data_batch(10 * i, 10, codec=list(Codec)[i % 5]) for i in range(300)]
"""Record n has the timestamp 1000 + n."""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    url: Path = tmp_path_factory.mktemp("chosen") / "archive"
    write(url, [b"".join(LOG[:200])], run_id="run-1", written_at=1)
    write(url, [b"".join(LOG[200:])], run_id="run-2", written_at=2)
    return url


def names(client: RawClient) -> list[str]:
    return sorted(topic.name for topic in client.ask(MetadataRequest(topics=None), 12).topics)


def ends(client: RawClient, where: tuple[str, int]) -> tuple[int, int]:
    found = []
    for timestamp in (-2, -1):
        kind = ListOffsetsRequest.ListOffsetsTopic
        partition = kind.ListOffsetsPartition(partition_index=where[1], current_leader_epoch=-1, timestamp=timestamp)
        request = ListOffsetsRequest(
            replica_id=-1, isolation_level=0, topics=[kind(name=where[0], partitions=[partition])], timeout_ms=1000
        )
        found.append(client.ask(request, 7).topics[0].partitions[0].offset)
    return found[0], found[1]


def expected(count: int) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return [(number, 1000 + number, b"k", b"value") for number in range(count)]


def seen(data: bytes) -> list[tuple[int, int, bytes | None, bytes | None]]:
    found = decode(data, columns=["offset", "timestamp_ms", "key", "value"]).to_pylist()
    return [(row["offset"], row["timestamp_ms"], row["key"], row["value"]) for row in found]


@pytest.mark.parametrize("layout", FOREIGN)
def test_archives_of_other_tools_are_encoded_on_the_way(layout: str, archive: Path, tmp_path: Path) -> None:
    with without_spark():
        convert(archive, tmp_path / "other", layout)
    with mounted(tmp_path / "other") as found, RawClient(found.bootstrap) as client:
        assert ends(client, WHERE) == (0, 3000)
        assert seen(read_all(client, WHERE, 0)) == expected(3000)
        assert seen(read_all(client, WHERE, 2995))[-5:] == expected(3000)[-5:]


def test_as_of_a_run_the_log_ends_where_that_run_left_it(archive: Path) -> None:
    with mounted(archive, as_of="run-1") as found, RawClient(found.bootstrap) as client:
        assert ends(client, WHERE) == (0, 2000)
        assert seen(read_all(client, WHERE, 0)) == expected(2000)


@pytest.mark.parametrize("until", [1000, 1001, 1995, 2000, 3333, 9999])
def test_until_a_time_later_records_are_not_there(archive: Path, until: int) -> None:
    count = min(until - 1000, 3000)
    with mounted(archive, until=str(until)) as found, RawClient(found.bootstrap) as client:
        assert ends(client, WHERE) == (0, count)
        assert seen(read_all(client, WHERE, 0)) == expected(count)


def test_topics_get_other_names(archive: Path) -> None:
    with mounted(archive, prefix="old.") as found, RawClient(found.bootstrap) as client:
        assert names(client) == ["old.orders"]
    with mounted(archive, rename=["orders=invoices"]) as found, RawClient(found.bootstrap) as client:
        assert names(client) == ["invoices"]
        assert seen(read_all(client, ("invoices", 3), 0)) == expected(3000)


def test_several_archives_are_one_cluster(archive: Path, tmp_path: Path) -> None:
    write(tmp_path / "second", [data_batch(0, 5)], topic="payments", topic_id="payments-id-0123456789")
    with mounted(archive, tmp_path / "second") as found, RawClient(found.bootstrap) as client:
        assert names(client) == ["orders", "payments"]
        assert ends(client, ("payments", 3)) == (0, 5)
        assert ends(client, WHERE) == (0, 3000)


def test_two_archives_with_the_same_topic_are_refused(archive: Path, tmp_path: Path) -> None:
    write(tmp_path / "second", [data_batch(0, 5)])
    with pytest.raises(UsageError, match="would both be orders"), mounted(archive, tmp_path / "second"):
        pass


def test_the_newest_incarnation_has_the_name(tmp_path: Path) -> None:
    url = tmp_path / "archive"
    write(url, [data_batch(0, 5)], topic_id="first-id-0123456789-0", run_id="run-1", written_at=1)
    write(url, [data_batch(100, 7)], topic_id="second-id-0123456789-", run_id="run-2", written_at=2)
    with mounted(url) as found, RawClient(found.bootstrap) as client:
        assert names(client) == ["orders", "orders@1"]
        assert ends(client, WHERE) == (100, 107)
        assert ends(client, ("orders@1", 3)) == (0, 5)


@pytest.mark.parametrize(("option", "value"), [("topics", ["nothing"]), ("rename", ["nothing=x"]), ("until", "soon")])
def test_a_word_that_matches_nothing_is_a_mistake(archive: Path, option: str, value: Any) -> None:
    with pytest.raises(UsageError), mounted(archive, **{option: value}):
        pass


@pytest.mark.parametrize("address", ["0.0.0.0:0", "192.0.2.1:9092"])
def test_anything_but_loopback_is_refused_without_tls_or_sasl(archive: Path, address: str) -> None:
    with pytest.raises(RefusedError), mounted(archive, listen=address, advertise="192.0.2.1"):
        pass


def test_a_marker_at_the_end_belongs_to_the_log(tmp_path: Path) -> None:
    write(tmp_path / "archive", [data_batch(0, 3, producer_id=9, attributes=0x10) + marker(3, 9, COMMIT)])
    with mounted(tmp_path / "archive") as found, RawClient(found.bootstrap) as client:
        assert ends(client, WHERE) == (0, 4)
