"""Hand-made log directories, byte by byte as brokers leave them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.batch.columns import number_column
from maxbrod.layouts.logdir.layout import LAYOUT
from maxbrod.layouts.logdir.reader import read_batches
from maxbrod.layouts.registry import layout_of
from maxbrod.storage.stores import open_storage
from support.native_logs import data_batch

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.layouts.foreign import Survey

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


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
