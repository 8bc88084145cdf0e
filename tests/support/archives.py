"""Places for archives of every kind that can be run here, and archives with rows, objects and snapshots in them."""

# ruff: noqa: PLC0415 - a run that needs no archive must not pay for importing it, nor break with it

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from maxbrod.archive.archive import Archive
    from maxbrod.catalog.rows import Row
    from maxbrod.config import StorageConfig
    from maxbrod.kafka.state.cluster_state import ClusterState
    from maxbrod.model import PartitionId
    from maxbrod.storage.interface import Storage

_RUN_FIELDS: Final = {"started_at", "finished_at", "statistics", "written_at"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where an archive may be, and how to say so on the command line. `folder` is where its files really are."""

    url: str
    options: StorageConfig
    folder: Path
    arguments: list[str] = field(default_factory=list)

    def open(self) -> Archive:
        from maxbrod.archive.archive import open_archive

        return open_archive(self.url, self.options)

    def create(self) -> Archive:
        from maxbrod.archive.archive import open_for_writing

        return open_for_writing(self.url, self.options)


@pytest.fixture(params=["local", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    if request.param == "s3":
        return _s3_place(request, monkeypatch)
    if request.param == "local":
        return _place(str(tmp_path / "archive"))
    return _place(request.getfixturevalue("memory_url"))


@pytest.fixture
def local_place(tmp_path: Path) -> Place:
    return _place(str(tmp_path / "archive"))


def _place(url: str) -> Place:
    from maxbrod.config import StorageConfig
    from maxbrod.storage.stores import directory_of
    from maxbrod.storage.urls import parse_url

    return Place(url, StorageConfig(), directory_of(parse_url(url)), ["--archive", url])


def _s3_place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Place:
    from support.storages import s3_options

    server = request.getfixturevalue("s3")
    # Keys are never arguments.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
    url = f"{server.url}/archive"
    arguments = ["--archive", url, "--s3-endpoint", server.endpoint, "--s3-region", server.region]
    return Place(url, s3_options(server), server.object_path("archive"), arguments)


def damage(path: Path) -> None:
    """Change a byte of the first batch. The last bytes of an object may be a table of contents that no reader needs."""
    data = bytearray(path.read_bytes())
    data[80] ^= 0x10
    path.chmod(0o600)
    path.write_bytes(data)


def commit_run(archive: Archive, run_id: str, rows: Iterable[Row], **details: Any) -> None:
    """A run as a backup leaves it: objects as large as their slices, a snapshot, one commit."""
    from maxbrod.catalog.rows import Segment
    from support.catalog_rows import run

    rows = list(rows)
    ends: dict[str, int] = {}
    for row in rows:
        if isinstance(row, Segment):
            ends[row.path] = max(ends.get(row.path, 0), row.position + row.bytes)
    for path, end in ends.items():
        archive.storage.put(path, bytes(end))
    ended = run(run_id, **{name: details.pop(name) for name in _RUN_FIELDS & details.keys()})
    put_snapshot(archive.storage, run_id, **details)
    archive.catalog.commit([*rows, ended])


def put_snapshot(
    storage: Storage,
    run_id: str,
    *,
    topics: Mapping[str, str] | None = None,
    ends: Mapping[PartitionId, int] | None = None,
    cluster: ClusterState | None = None,
    recovery_points: Mapping[PartitionId, int | None] | None = None,
    behind: Mapping[PartitionId, int | None] | None = None,
    carried: Mapping[str, Any] | None = None,
) -> None:
    from maxbrod.archive.snapshot_document import Snapshot, encode
    from maxbrod.kafka.state.cluster_state import ClusterState, encode_state

    state: dict[str, Any] = dict.fromkeys(("brokers", "topics", "acls", "quotas", "users", "groups", "gaps"), ())
    empty = ClusterState(cluster_id="sandbox", taken_at_ms=1_700_000_000_001, **state)
    snapshot = Snapshot(
        run_id=run_id,
        taken_at_ms=1_700_000_000_001,
        cluster=encode_state(cluster or empty),
        ends=ends or {},
        topics=topics or {},
        recovery_points=recovery_points or {},
        behind=behind or {},
        carried=carried,
    )
    storage.put(f"snapshots/{run_id}.json.zst", encode(snapshot))
