"""What is visible when, on every kind of storage, and what other programs make of the objects."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cramjam
import numpy as np
import pytest

from maxbrod.batch.headers import walk
from maxbrod.errors import MaxbrodError, StorageFullError
from maxbrod.layouts.kafka.contents import read_contents
from maxbrod.layouts.kafka.format import SegmentLimits, is_framed
from maxbrod.layouts.kafka.reader import read_logs
from maxbrod.layouts.kafka.slices import verify_slice
from maxbrod.layouts.kafka.writer import ArchiveWriter
from maxbrod.model import Codec
from maxbrod.sandbox.jars import DUMP_LOG_SEGMENTS, run_tool
from maxbrod.storage.local import Draft
from maxbrod.storage.stores import open_storage
from support.native_logs import archive, data_batch, logs, marker, new_storage

if TYPE_CHECKING:
    from maxbrod.layouts.kafka.writer import PartitionWriter
    from maxbrod.storage.interface import Storage, Writer

pytestmark = pytest.mark.full

NOISE = np.random.default_rng(5).bytes(1 << 20)


def append(part: PartitionWriter, batch: bytes) -> None:
    part.append(np.frombuffer(batch, np.uint8), walk(batch))


@pytest.mark.parametrize("mode", ["auto", "source", "zstd"])
def test_the_log_comes_back_from_every_storage(storage: Storage, mode: str) -> None:
    """Larger than one part of an upload, so that it goes in pieces."""
    chunks = [b"".join(data_batch(8 * i + j, value=NOISE, codec=Codec.LZ4) for j in range(4)) for i in range(3)]
    slices = archive(storage, chunks, mode=mode, limits=SegmentLimits(bytes_max=9 << 20))
    slices += archive(storage, chunks[:1], mode=mode, packed=True)

    if mode != "zstd":
        assert logs(storage, slices) == b"".join([*chunks, chunks[0]])
    assert [problem for row in slices for problem in verify_slice(storage, row)] == []
    for row in slices:
        size = storage.head(row.path).size
        assert (size == row.bytes) == (read_contents(storage, row.path, size) is None)
        assert sum(headers["count"].sum() for _, headers in read_logs(storage, row)) == row.records


@pytest.mark.parametrize("packed", [False, True])
def test_an_error_in_the_block_leaves_nothing_visible(storage: Storage, packed: bool) -> None:
    def interrupted() -> None:
        with ArchiveWriter(storage, run_id="run-1") as writer:
            for number in range(2):
                part = writer.partition(topic="t", topic_id="id", partition=number, packed=packed)
                for i in range(10):
                    append(part, data_batch(i, value=NOISE))
            raise MaxbrodError("the broker went away")

    with pytest.raises(MaxbrodError, match="went away"):
        interrupted()
    assert list(storage.list()) == []


def test_a_disk_that_fills_up_leaves_nothing_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_storage(str(tmp_path))
    created: list[Writer] = []
    original = storage.create

    def create(path: str) -> Writer:
        writer = original(path)
        write = writer.write

        def failing(data: Any) -> None:
            if len(created) > 1:
                raise StorageFullError("no space left", object_name=path)
            write(data)

        monkeypatch.setattr(writer, "write", failing)
        created.append(writer)
        return writer

    monkeypatch.setattr(storage, "create", create)

    def fill() -> None:
        with ArchiveWriter(storage, run_id="run-1") as writer:
            parts = [writer.partition(topic="t", topic_id="id", partition=i, packed=False) for i in range(2)]
            append(parts[0], data_batch(0, value=NOISE))
            append(parts[1], data_batch(0, value=NOISE))

    with pytest.raises(StorageFullError):
        fill()
    assert len(created) == 2
    assert list(storage.list()) == []
    assert list((tmp_path / ".maxbrod-tmp").iterdir()) == []


def test_an_object_that_cannot_be_committed_fails_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = new_storage()

    def refuse(_: Draft, target: Path) -> None:
        raise OSError(errno.ENOSPC, "no space left", str(target))

    monkeypatch.setattr(Draft, "publish", refuse)
    with pytest.raises(StorageFullError):
        archive(storage, [data_batch(0)], packed=True)
    assert list(storage.list()) == []


KILLED = """
import os, signal, sys
import numpy as np
from support.native_logs import data_batch
from maxbrod.batch.headers import walk
from maxbrod.layouts.kafka.format import SegmentLimits
from maxbrod.layouts.kafka.writer import ArchiveWriter
from maxbrod.storage.local import Draft
from maxbrod.storage.stores import open_storage
with ArchiveWriter(open_storage(sys.argv[1]), run_id="r", limits=SegmentLimits(records_max=3)) as writer:
    for packed in (True, False):
        part = writer.partition(topic="t", topic_id="id", partition=int(packed), packed=packed)
        for i in range(5):
            batch = np.frombuffer(data_batch(i, value=os.urandom(2 << 20)), np.uint8)
            part.append(batch, walk(batch))
    # The first segment is made durable in the background; the second has its first batch.
    writer._settle()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_while_writing_only_complete_segments_are_there(tmp_path: Path) -> None:
    """And even those are garbage: no row names them."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    ran = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=environment, check=False)

    assert ran.returncode == -signal.SIGKILL
    storage = open_storage(str(tmp_path))
    (found,) = storage.list()
    assert found.path.startswith("segments/t/id/0/")
    assert len(walk(storage.get(found.path), whole=True)) == 3


@pytest.mark.parametrize("mode", ["auto", "zstd"])
def test_zstd_gives_the_log_back(tmp_path: Path, mode: str) -> None:
    storage = open_storage(str(tmp_path / "archive"))
    chunks = [data_batch(i, value=b"a line of text\n" * 60_000) for i in range(4)]
    (row,) = archive(storage, chunks, mode=mode)
    file = tmp_path / "archive" / row.path

    assert is_framed(row.path)
    if shutil.which("zstd"):
        log = subprocess.run(["zstd", "-dc", str(file)], capture_output=True, check=True).stdout
        listed = subprocess.run(["zstd", "-lv", str(file)], capture_output=True, text=True, check=True).stdout
        assert f"# Zstandard Frames: {-(-row.raw_bytes // (1 << 20))}" in listed
        assert f"({row.raw_bytes} B)" in listed
    else:
        log = bytes(cramjam.zstd.decompress(file.read_bytes()))
    assert log == b"".join(chunks)


@pytest.mark.parametrize("mode", ["source", "zstd"])
def test_kafkas_own_tool_reads_a_segment(tmp_path: Path, mode: str) -> None:
    """Every codec, unpacked or not, with a marker; `isvalid` is Kafka's own check of each CRC."""
    parts = [data_batch(10 * i, 3, codec=codec, value=b"the value") for i, codec in enumerate(Codec)]
    storage = open_storage(str(tmp_path / "archive"))
    slices = archive(storage, [*parts, marker(100, 7, 1)], mode=mode)
    file = tmp_path / f"{100:020d}.log"
    file.write_bytes(logs(storage, slices))
    lines = run_tool(DUMP_LOG_SEGMENTS, "--files", str(file), "--print-data-log").splitlines()

    headers = [line for line in lines if line.startswith("baseOffset")]
    assert len(headers) == len(Codec) + 1
    assert all("isvalid: true" in line for line in headers)
    codecs = [line.split("compresscodec: ")[1].split(" ")[0] for line in headers]
    assert codecs == (["none", "gzip", "snappy", "lz4", "zstd", "none"] if mode == "source" else ["none"] * 6)
    assert sum("payload: the value" in line for line in lines) == 3 * len(Codec)


LIGHT = """
import os, sys
import numpy as np
from maxbrod.batch.headers import walk
from maxbrod.layouts.kafka.format import Compression
from maxbrod.layouts.kafka.reader import read_log, read_logs
from maxbrod.layouts.kafka.writer import ArchiveWriter
from maxbrod.storage.local import Draft
from maxbrod.storage.stores import open_storage
storage = open_storage(sys.argv[1])
batch = np.frombuffer(bytes.fromhex(sys.argv[2]), np.uint8)
for mode in ("auto", "source"):
    with ArchiveWriter(storage, run_id="r", compression=Compression.parse(mode)) as writer:
        part = writer.partition(topic="t", topic_id="id", partition=0, packed=False)
        part.append(batch, walk(batch), [(1, 0)])
    (row,) = part.slices
    assert read_log(storage, row).tobytes() == batch.tobytes()
    assert sum(headers.end for _, headers in read_logs(storage, row)) == batch.size
print([name for name in ("numba", "pandas", "pyarrow", "pyspark") if name in sys.modules])
"""


def test_writing_and_reading_raw_batches_loads_nothing_heavy(tmp_path: Path) -> None:
    """Each costs a task of Spark a second or so when it starts."""
    batch = data_batch(0, 5, codec=Codec.LZ4) + data_batch(5, 5) + marker(10, 1, 0)
    command = [sys.executable, "-c", LIGHT, str(tmp_path), batch.hex()]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (ran.stdout.strip(), ran.stderr) == ("[]", "")
