"""Hand-made log directories, byte by byte as brokers leave them: with records, as archives, and empty."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.batch.columns import number_column
from maxbrod.layouts.logdir.format import LAYOUT
from maxbrod.layouts.logdir.reader import read_batches
from maxbrod.layouts.registry import layout_of
from maxbrod.storage.stores import open_storage
from support.native_logs import ABORT, COMMIT, data_batch, marker

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.layouts.foreign import Survey

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
TARGET_ID = "AAAAAAAAAAAAAAAAAAAAAg"
CHECKPOINTS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint")


def transactional(offset: int, producer_id: int) -> bytes:
    return data_batch(offset, 2, attributes=0x10, producer_id=producer_id, producer_epoch=0, base_sequence=0)


LOGS = {
    "orders-0": [data_batch(offset, 10) for offset in range(0, 60, 10)],
    "orders-1": [
        data_batch(5, 5),
        transactional(10, 7),
        marker(12, 7, ABORT),
        transactional(13, 7),
        marker(15, 7, COMMIT),
    ],
}


def put_source(root: Path, logs: dict[str, list[bytes]] | None = None) -> Path:
    """An archive in the layout of log directories, which is only ever read."""
    for name, batches in (logs or LOGS).items():
        folder = root / name
        folder.mkdir(parents=True)
        (folder / f"{0:020}.log").write_bytes(b"".join(batches))
        (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}")
    return root


def put_target(
    root: Path,
    names: tuple[str, ...] = tuple(LOGS),
    *,
    node_id: int = 1,
    cluster_id: str = "target",
    topic_id: str = TARGET_ID,
    leader_epoch: int = 0,
) -> Path:
    """A broker's directory with empty partitions, and another partition that is none of ours."""
    root.mkdir(parents=True)
    (root / "meta.properties").write_text(f"version=1\ncluster.id={cluster_id}\nnode.id={node_id}\ndirectory.id=d\n")
    for name in names:
        put_empty(root / name, topic_id, leader_epoch)
    for name in CHECKPOINTS:
        (root / name).write_text("0\n1\nothers 4 44\n")
    (root / "cleaner-offset-checkpoint").write_text("")
    return root


def put_empty(folder: Path, topic_id: str = TARGET_ID, leader_epoch: int = 0) -> None:
    folder.mkdir()
    for suffix in ("log", "index", "timeindex"):
        (folder / f"{0:020}.{suffix}").write_bytes(b"")
    (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")
    (folder / "leader-epoch-checkpoint").write_text(f"0\n1\n{leader_epoch} 0\n")


def put_log(root: Path, batches: list[bytes], *, base: int = 0, name: str = "orders-0", suffix: str = "") -> Path:
    """A log file of a partition, in a log directory that may have others."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{base:020}.log{suffix}"
    file.write_bytes(b"".join(batches))
    return file


def put_checkpoint(file: Path, rows: list[str]) -> None:
    file.write_text("\n".join(["0", str(len(rows)), *rows]) + "\n")


def put_watermark(root: Path, offset: int, name: str = "orders 0") -> None:
    put_checkpoint(root / "replication-offset-checkpoint", [f"{name} {offset}"])


def run(first: int, count: int, *, size: int = 10, epoch: int = 0) -> list[bytes]:
    """Batches of ten records from an offset on."""
    return [data_batch(first + size * turn, size, leader_epoch=epoch) for turn in range(count)]


def survey(root: Path, **extra: str) -> Survey:
    return layout_of("logdir").survey(open_storage(str(root)), extra)


def raw(root: Path, found: Survey) -> bytes:
    """All batches in the survey."""
    storage = open_storage(str(root))
    pieces = (piece for each in found.segments for piece in read_batches(storage, each))
    return b"".join(data.tobytes() for data, _ in pieces)


def offsets(root: Path, found: Survey) -> list[int]:
    """All records that an application may see."""
    storage = open_storage(str(root))
    batches = (batch for each in found.segments for batch in LAYOUT.read(storage, each, columns=["offset"]))
    return [int(offset) for batch in batches for offset in number_column(batch.column("offset"))]


def fatal(found: Survey) -> list[str]:
    return [fault.message for fault in found.faults if fault.fatal]
