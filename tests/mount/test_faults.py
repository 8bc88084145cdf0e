"""A store that is away, slow or busy; clients that misbehave; a mount that stops; an archive that is pruned."""

from __future__ import annotations

import socket
import struct
import threading
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kafka.protocol.metadata import MetadataRequest

from maxbrod.archive.archive import open_for_writing
from maxbrod.catalog.rows import Gap
from maxbrod.config import StorageConfig
from maxbrod.errors import UnavailableError
from maxbrod.model import GapReason
from maxbrod.mount import loads, view
from maxbrod.sandbox.process import free_ports, wait_for
from maxbrod.sandbox.proxy.faults import AnswerError, HttpMatch, Latency, ProxyFault, Refuse, Stall
from maxbrod.work.work import Work
from support.client_readers import read_with_librdkafka
from support.mounts import RawClient, end_of, fetch_request, mounted, partitions_of, read_all
from support.native_logs import NAME, data_batch
from support.storages import s3_section
from support.table_archives import write

if TYPE_CHECKING:
    from obstore.store import S3Store

    from maxbrod.sandbox.proxy.server import FaultProxy
    from maxbrod.sandbox.s3 import S3Server

WHERE = (NAME.topic, NAME.partition)
RECORDS = HttpMatch(method="GET", path="/segments/")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    write(tmp_path / "archive", [b"".join(data_batch(10 * number, 10) for number in range(20))])
    return tmp_path / "archive"


# The store


@pytest.mark.parametrize(
    "fault",
    [Refuse(), AnswerError(on=RECORDS), Latency(on=RECORDS, answer_s=1.0, times=2), Stall(on=RECORDS, times=2)],
    ids=["away", "busy", "slow", "silent"],
)
def test_a_store_that_fails_for_a_while_is_waited_for_and_nothing_is_skipped(
    archive: Path, s3: S3Server, s3_store: S3Store, s3_proxy: FaultProxy, fault: ProxyFault
) -> None:
    for path in archive.rglob("*"):
        if path.is_file():
            s3_store.put(f"archive/{path.relative_to(archive)}", path.read_bytes())
    options = s3_section(s3, s3={"endpoint": s3_proxy.endpoint}, request_timeout_s=2, deadline_s=30)
    with mounted(f"{s3.url}/archive", storage=StorageConfig.model_validate(options)) as found:
        away = s3_proxy.add(fault)
        back = threading.Timer(2.5, s3_proxy.clear)
        with RawClient(found.bootstrap) as client:
            # In time, and without an error that a client would take for the end of the log.
            answer = partitions_of(client.ask(fetch_request({WHERE: 0}, wait_ms=200), 12))[WHERE]
            assert bytes(answer.records or b"") == b""
            assert answer.error_code in {0, 56}
            # The rest of the mount answers.
            assert client.ask(MetadataRequest(topics=None), 12).topics
        back.start()
        try:
            seen = read_with_librdkafka(found.bootstrap, NAME.topic, "read_committed")
        finally:
            back.join()
        assert s3_proxy.fired[away] >= 1
    assert [record.offset for record in seen] == list(range(200))


def test_a_catalog_that_cannot_be_read_is_an_error_of_the_topic_and_is_asked_for_again(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loads, "RETRY_S", 0.2)
    away = threading.Event()
    away.set()
    load = view.ServedTopic.load

    def failing(topic: view.ServedTopic) -> Any:
        if away.is_set():
            raise UnavailableError("the store answers 503")
        return load(topic)

    monkeypatch.setattr(view.ServedTopic, "load", failing)
    with mounted(archive) as found, RawClient(found.bootstrap) as client:
        answer = partitions_of(client.ask(fetch_request({WHERE: 0}, wait_ms=100), 12))[WHERE]
        assert answer.error_code == 56
        away.clear()

        def is_read() -> bool:
            answer = partitions_of(client.ask(fetch_request({WHERE: 0}, wait_ms=300), 12))[WHERE]
            return end_of(bytes(answer.records or b"")) == 200

        wait_for("the rows of the catalog", is_read, timeout_s=30)


# Clients


def test_connections_beyond_the_bound_are_refused_and_others_are_served(archive: Path) -> None:
    with mounted(archive, connections_max=20) as found, ExitStack() as open_ones:
        known = open_ones.enter_context(RawClient(found.bootstrap))
        assert known.ask(MetadataRequest(topics=None), 12).topics
        hostile = [open_ones.enter_context(RawClient(found.bootstrap)) for _ in range(40)]
        for client in hostile:
            # Half a frame, and then silence. A refused one may be closed already.
            try:
                client.socket.sendall(struct.pack(">i", 1000) + bytes(500))
            except OSError:
                continue
        closed = 0
        for client in hostile:
            client.socket.settimeout(0.05)
            try:
                closed += client.socket.recv(1) == b""
            except TimeoutError:
                pass
            except OSError:
                closed += 1
        assert closed == 21
        assert end_of(read_all(known, WHERE, 0)) == 200


def test_a_client_that_never_takes_its_answer_delays_nobody(archive: Path) -> None:
    with mounted(archive) as found, RawClient(found.bootstrap) as lazy, RawClient(found.bootstrap) as client:
        lazy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(50):
            lazy.send(fetch_request({WHERE: 0}), 12)
        assert end_of(read_all(client, WHERE, 0)) == 200


# The end


def test_a_mount_that_stops_answers_whoever_waits(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    works: list[Work] = []
    enter = Work.__enter__

    def entered(work: Work) -> Work:
        works.append(work)
        return enter(work)

    monkeypatch.setattr(Work, "__enter__", entered)
    with ExitStack() as open_ones:
        found = open_ones.enter_context(mounted(archive))
        client = open_ones.enter_context(RawClient(found.bootstrap))
        assert end_of(read_all(client, WHERE, 0)) == 200
        waiting = fetch_request({WHERE: 200}, wait_ms=50_000)
        client.send(waiting, 12)
        with RawClient(found.bootstrap) as other:
            assert other.ask(MetadataRequest(topics=None), 12).topics  # the loop has turned
        works[-1].stop.set()
        answer = partitions_of(client.receive(waiting, 12))[WHERE]
        assert (answer.error_code, answer.high_watermark) == (0, 200)
        with pytest.raises(ConnectionError):
            client.frame()


def test_health_readiness_and_figures_are_told(archive: Path) -> None:
    (port,) = free_ports(1)

    def told(path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return str(answer.read().decode())

    with mounted(archive, metrics_port=port, processes=2) as found:
        for node in found.bootstrap.split(","):
            with RawClient(node) as client:
                client.ask(fetch_request({WHERE: 0}, wait_ms=5000), 12)
        assert told("/healthz")
        assert told("/readyz")
        both = 'maxbrod_mount_requests_total{api="Fetch"} 2.0'
        wait_for("the figures of both processes", lambda: both in told("/metrics"), timeout_s=30)
        lines = told("/metrics").splitlines()
        figures = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(figures["maxbrod_mount_sent_bytes_total"]) > 0
    assert float(figures["maxbrod_mount_store_requests_total"]) >= 1
    assert float(figures["maxbrod_mount_store_dollars_total"]) > 0


# The archive


def test_what_was_pruned_beside_the_mount_is_a_gap(tmp_path: Path) -> None:
    first = write(tmp_path / "archive", [data_batch(0, 10)], run_id="run-1")
    write(tmp_path / "archive", [data_batch(10, 10)], run_id="run-2", written_at=2)
    with mounted(tmp_path / "archive") as found, RawClient(found.bootstrap) as client:
        opened = open_for_writing(str(tmp_path / "archive"))
        rows = opened.catalog.rows(columns=None)
        pruned = rows.filter(rows["path"].to_numpy(zero_copy_only=False) == first[0].path)
        gap = Gap(
            topic=NAME.topic,
            topic_id=NAME.topic_id,
            partition=NAME.partition,
            base_offset=0,
            end_offset=10,
            reason=GapReason.PRUNED,
            run_id="run-3",
            written_at=3,
        )
        opened.catalog.commit([gap], replaced=pruned)
        opened.storage.delete([first[0].path])
        answers = [partitions_of(client.ask(fetch_request({WHERE: 5}, wait_ms=2000), 12))[WHERE] for _ in range(3)]
        assert [answers[-1].error_code, end_of(bytes(answers[-1].records))] == [0, 20]
