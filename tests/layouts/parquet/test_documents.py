"""The examples in the documents are the bytes that are written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa

from maxbrod.batch.columns import conform
from maxbrod.layouts.internal_topics import decode_commit
from maxbrod.layouts.parquet.events import Checkpoint, decode_checkpoint
from support.parquet_trees import local, write
from support.processes import TESTS

if TYPE_CHECKING:
    from pathlib import Path

HEXADECIMAL = re.compile(r"((?:[0-9a-f]{2} )+) +\S")


def example(document: str, before: str) -> bytes:
    """The bytes of the first example after a line of a document."""
    text = (TESTS.parent / "docs" / "layouts" / document).read_text().split(before, 1)[1]
    lines = text.split("```")[1].strip().splitlines()
    found = [HEXADECIMAL.match(line) for line in lines]
    assert all(found)
    return b"".join(bytes.fromhex(each[1]) for each in found if each)


def test_a_segment_begins_as_documented(tmp_path: Path) -> None:
    storage = local(tmp_path)
    record = {
        "offset": pa.array([5], pa.int64()),
        "timestamp_ms": pa.array([1_700_000_000_123], pa.int64()),
        "key": pa.array([b"k"], pa.binary()),
        "value": pa.array([b"v"], pa.binary()),
    }
    (segment,) = write(storage, [conform(pa.RecordBatch.from_pydict(record))], codec="none")
    documented = example("parquet.md", "The beginning of an uncompressed segment")
    assert len(documented) == 34
    assert bytes(storage.get(segment.path))[:34] == documented


def test_a_checkpoint_is_as_documented() -> None:
    documented = example("parquet.md", "A checkpoint:")
    record = Checkpoint(region="us-east-1", topic="t", partition=7, offset=99, time_ns=1_600_000_000_123_456_789)
    assert decode_checkpoint(documented) == record
    assert record.encode() == documented


def test_a_commit_is_as_documented() -> None:
    commit = decode_commit(example("internal-topics.md", "A commit of version 3"))
    assert (commit.offset, commit.leader_epoch, commit.metadata) == (42, 7, "ok")
    assert commit.commit_timestamp_ms == 1_700_000_000_000
