"""An archive that changes while it is mounted: it grows, it is compacted, objects are collected."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from maxbrod.storage.local import LocalStorage
from support.mounts import RawClient, end_of, fetch_request, mounted, partitions_of, read_all
from support.native_logs import NAME, data_batch
from support.table_archives import compact, write

WHERE = (NAME.topic, NAME.partition)


def test_a_mount_keeps_one_version(tmp_path: Path) -> None:
    write(tmp_path / "archive", [data_batch(0, 10)], run_id="run-1")
    with mounted(tmp_path / "archive") as found, RawClient(found.bootstrap) as client:
        write(tmp_path / "archive", [data_batch(10, 10)], run_id="run-2", written_at=2)
        assert end_of(read_all(client, WHERE, 0)) == 10


def test_a_mount_that_follows_wakes_whoever_waits_at_the_end(tmp_path: Path) -> None:
    write(tmp_path / "archive", [data_batch(0, 10)], run_id="run-1")
    with mounted(tmp_path / "archive", follow=True, every="100ms") as found, RawClient(found.bootstrap) as client:
        assert end_of(read_all(client, WHERE, 0)) == 10
        client.send(fetch_request({WHERE: 10}, wait_ms=30_000), 12)
        writing = threading.Thread(
            target=write, args=(tmp_path / "archive", [data_batch(10, 10)]), kwargs={"run_id": "run-2", "written_at": 2}
        )
        writing.start()
        answer = partitions_of(client.receive(fetch_request({}), 12))[WHERE]
        writing.join()
        assert (answer.error_code, answer.high_watermark, end_of(bytes(answer.records))) == (0, 20, 20)


@pytest.mark.parametrize("grown", [False, True])
def test_records_whose_object_was_collected_are_found_where_they_are_now(tmp_path: Path, grown: bool) -> None:
    first = write(tmp_path / "archive", [data_batch(0, 10)], run_id="run-1")
    second = write(tmp_path / "archive", [data_batch(10, 10)], run_id="run-2", written_at=2)
    with mounted(tmp_path / "archive") as found, RawClient(found.bootstrap) as client:
        compact(tmp_path / "archive")
        if grown:
            write(tmp_path / "archive", [data_batch(20, 10)], run_id="run-3", written_at=3)
        for row in (*first, *second):
            (tmp_path / "archive" / row.path).unlink(missing_ok=True)
        answers = [partitions_of(client.ask(fetch_request({WHERE: 0}, wait_ms=2000), 12))[WHERE] for _ in range(3)]
        assert answers[-1].error_code == 0
        assert end_of(bytes(answers[-1].records)) == 20
        # What came meanwhile is not shown.
        assert answers[-1].high_watermark == 20


def test_a_warm_topic_is_in_memory_before_a_client_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "archive", [data_batch(0, 10)])
    loaded, read = threading.Event(), LocalStorage.get_ranges

    def get_ranges(self: LocalStorage, path: str, ranges: Any) -> Any:
        found = read(self, path, ranges)
        if path.endswith(".log"):
            loaded.set()
        return found

    monkeypatch.setattr(LocalStorage, "get_ranges", get_ranges)
    with mounted(tmp_path / "archive", warm=["orders"]):
        assert loaded.wait(30)
