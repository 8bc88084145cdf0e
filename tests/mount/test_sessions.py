"""Fetch sessions, waits, isolation levels, and partitions whose objects are damaged or gone."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from maxbrod.layouts.kafka.format import SegmentLimits
from maxbrod.storage.local import LocalStorage
from support.archives import damage
from support.mounts import RawClient, end_of, fetch_request, mounted, partitions_of
from support.native_logs import ABORT, COMMIT, NAME, data_batch, marker
from support.table_archives import write

WHERE = (NAME.topic, NAME.partition)
NOT_FOUND, INVALID_EPOCH, STORAGE_ERROR = 70, 71, 56
EMPTY = (NAME.topic, 0)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    url: Path = tmp_path_factory.mktemp("sessions") / "archive"
    write(url, [b"".join(data_batch(10 * i, 10) for i in range(100))])
    return url


@pytest.fixture(scope="module")
def bootstrap(archive: Path) -> Any:
    with mounted(archive) as found:
        yield found.bootstrap


@pytest.mark.parametrize("version", [7, 11, 12])
def test_a_session_remembers_partitions_and_answers_only_news(bootstrap: str, version: int) -> None:
    with RawClient(bootstrap) as client:
        first = client.ask(fetch_request({WHERE: 0, EMPTY: 0}, session=(0, 0), partition_bytes_max=1), version)
        assert first.session_id > 0
        assert partitions_of(first).keys() == {WHERE, EMPTY}
        session = first.session_id
        end = end_of(bytes(partitions_of(first)[WHERE].records))
        # The position moves on; the empty partition is neither named nor answered.
        second = client.ask(fetch_request({WHERE: end}, session=(session, 1), partition_bytes_max=1), version)
        assert second.session_id == session
        assert partitions_of(second).keys() == {WHERE}
        # Nothing is named: the session's position is read again.
        third = client.ask(fetch_request({}, session=(session, 2), partition_bytes_max=1), version)
        assert bytes(partitions_of(third)[WHERE].records) == bytes(partitions_of(second)[WHERE].records)
        forgotten = fetch_request({}, session=(session, 3), forgotten={NAME.topic: [NAME.partition]}, wait_ms=1)
        assert partitions_of(client.ask(forgotten, version)) == {}


@pytest.mark.parametrize("version", [7, 12])
def test_an_unknown_session_and_a_wrong_epoch_are_errors(bootstrap: str, version: int) -> None:
    with RawClient(bootstrap) as client:
        assert client.ask(fetch_request({WHERE: 0}, session=(12345, 1)), version).error_code == NOT_FOUND
        session = client.ask(fetch_request({WHERE: 0}, session=(0, 0)), version).session_id
        assert client.ask(fetch_request({}, session=(session, 7)), version).error_code == INVALID_EPOCH
        # A session survives another's mistake, and ends when its client says so.
        assert client.ask(fetch_request({}, session=(session, 1)), version).error_code == 0
        assert client.ask(fetch_request({WHERE: 0}, session=(session, -1)), version).session_id == 0
        assert client.ask(fetch_request({}, session=(session, 2)), version).error_code == NOT_FOUND


def test_at_the_end_of_the_log_the_wait_is_honoured(bootstrap: str) -> None:
    with RawClient(bootstrap) as client:
        began = time.monotonic()
        answer = partitions_of(client.ask(fetch_request({WHERE: 1000}, wait_ms=300), 12))[WHERE]
        assert (answer.error_code, bytes(answer.records or b"")) == (0, b"")
        assert time.monotonic() - began >= 0.3


def test_too_few_bytes_are_answered_when_the_wait_is_over(bootstrap: str) -> None:
    with RawClient(bootstrap) as client:
        request = fetch_request({WHERE: 990}, wait_ms=200, bytes_min=1 << 20)
        assert end_of(bytes(partitions_of(client.ask(request, 12))[WHERE].records)) == 1000


def test_a_read_committed_client_learns_of_aborted_transactions(tmp_path: Path) -> None:
    transactional: dict[str, Any] = {"attributes": 0x10, "producer_epoch": 0, "base_sequence": 0}
    log = [
        data_batch(0, 5, producer_id=7, **transactional),
        data_batch(5, 5, producer_id=8, **transactional),
        marker(10, 7, ABORT),
        marker(11, 8, COMMIT),
        data_batch(12, 5),
    ]
    write(tmp_path / "archive", [b"".join(log)], aborted=[[(7, 0)]])
    with mounted(tmp_path / "archive") as found, RawClient(found.bootstrap) as client:
        for version in (4, 11, 12):
            committed = partitions_of(client.ask(fetch_request({WHERE: 0}, isolation=1, wait_ms=9000), version))[WHERE]
            assert [(each.producer_id, each.first_offset) for each in committed.aborted_transactions] == [(7, 0)]
            assert committed.last_stable_offset == committed.high_watermark == 17
            every = partitions_of(client.ask(fetch_request({WHERE: 0}), version))[WHERE]
            assert every.aborted_transactions is None
            assert bytes(every.records) == bytes(committed.records)
        late = partitions_of(client.ask(fetch_request({WHERE: 12}, isolation=1), 12))[WHERE]
        assert late.aborted_transactions == []


@pytest.mark.parametrize("harm", ["damaged", "gone", "short"])
def test_a_damaged_object_is_an_error_of_its_partition_and_never_skipped(tmp_path: Path, harm: str) -> None:
    batches = [data_batch(10 * i, 10, value=b"x" * 500) for i in range(60)]
    rows = write(tmp_path / "archive", [b"".join(batches)], limits=SegmentLimits(bytes_max=100_000))
    assert len(rows) > 2
    file = tmp_path / "archive" / rows[1].path
    if harm == "damaged":
        damage(file)
    elif harm == "gone":
        file.unlink()
    else:
        file.chmod(0o600)
        file.write_bytes(file.read_bytes()[:100])
    with mounted(tmp_path / "archive") as found, RawClient(found.bootstrap) as client:
        before = partitions_of(client.ask(fetch_request({WHERE: 0}, wait_ms=9000), 12))[WHERE]
        assert end_of(bytes(before.records)) == rows[1].base_offset
        for _ in range(2):
            asked = fetch_request({WHERE: rows[1].base_offset, EMPTY: 0}, wait_ms=200)
            answers = partitions_of(client.ask(asked, 12))
            assert answers[WHERE].error_code == STORAGE_ERROR
            assert not answers[WHERE].records
            assert answers[EMPTY].error_code == 0
        after = partitions_of(client.ask(fetch_request({WHERE: rows[2].base_offset}, wait_ms=9000), 12))[WHERE]
        assert (after.error_code, end_of(bytes(after.records))) == (0, 600)


def test_an_answer_comes_in_time_while_the_store_is_slow_and_the_load_goes_on(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, reads = threading.Event(), []
    read = LocalStorage.get_ranges

    def get_ranges(self: LocalStorage, path: str, ranges: Any) -> Any:
        if path.endswith(".log"):
            reads.append(path)
            assert slow.wait(30)
        return read(self, path, ranges)

    monkeypatch.setattr(LocalStorage, "get_ranges", get_ranges)
    with mounted(archive) as found, RawClient(found.bootstrap) as client, RawClient(found.bootstrap) as other:
        for asking in (client, other, client):
            answer = partitions_of(asking.ask(fetch_request({WHERE: 0}, wait_ms=50), 12))[WHERE]
            assert (answer.error_code, bytes(answer.records or b"")) == (0, b"")
        slow.set()
        answer = partitions_of(client.ask(fetch_request({WHERE: 0}, wait_ms=20_000), 12))[WHERE]
        assert end_of(bytes(answer.records)) == 1000
        assert len(reads) == 1  # however many have asked
