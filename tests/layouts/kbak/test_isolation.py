"""Backups that hold what no application ever saw: markers are left out, aborted records are said to be there."""

from __future__ import annotations

import json
import shutil
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from maxbrod.archive.surveyed import rows_of
from maxbrod.catalog.rows import Segment
from maxbrod.layouts.foreign import ClusterFacts, WriteOptions, describe
from maxbrod.layouts.kbak.survey import LAYOUT
from maxbrod.layouts.reader import Skipped, read_foreign
from maxbrod.storage.stores import open_storage
from support.plain_batches import Record
from support.record_examples import to_arrow, to_records
from support.samples import samples_of
from support.tool_backups import FACTS, KBAK, WHERE, some

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from maxbrod.batch.headers import BatchHeaders
    from maxbrod.storage.interface import Storage

MANIFEST = "maxbrod/manifest.json"
COMMIT, ABORT = struct.pack(">hh", 0, 1), struct.pack(">hh", 0, 0)
MARKED = [
    *some(0, 2),
    Record(offset=2, timestamp=5, key=ABORT, value=struct.pack(">hi", 0, 7)),
    Record(offset=3, timestamp=5, key=COMMIT, value=struct.pack(">hi", 0, 0), headers=[(b"x-original-offset", b"")]),
    Record(offset=4, timestamp=5, key=COMMIT, value=b"\0\0"),
    Record(offset=5, timestamp=5, key=COMMIT, value=None),
    Record(offset=6, timestamp=5, key=None, value=bytes(6)),
    Record(offset=7, timestamp=5, key=struct.pack(">hh", 0, 2), value=bytes(6)),
]


def add(storage: Storage, records: list[Record], level: str | None) -> None:
    written = LAYOUT.write(storage, WHERE, [to_arrow(records)], WriteOptions(), survey=KBAK.nothing)
    LAYOUT.publish(storage, KBAK.nothing, written, WriteOptions(), FACTS)
    manifest: dict[str, Any] = json.loads(bytes(storage.get(MANIFEST)))
    del manifest["isolation_level"]
    storage.replace(MANIFEST, json.dumps(manifest | ({} if level is None else {"isolation_level": level})).encode())


def seen(storage: Storage, columns: list[str] | None = None) -> list[pa.RecordBatch]:
    """What an application gets to see of everything."""
    segments = LAYOUT.survey(storage).segments
    return [batch for each in segments for batch in read_foreign(storage, describe("kbak", each), columns=columns)]


@pytest.mark.parametrize("level", ["read_uncommitted", None])
def test_markers_are_left_out_of_what_was_written_without_isolation(storage: Storage, level: str | None) -> None:
    add(storage, MARKED, level)
    left = [record for batch in seen(storage) for record in to_records(batch)]
    assert left == [record for record in MARKED if record.offset not in {2, 3}]
    (batch,) = seen(storage, ["offset"])
    assert (batch.schema.names, batch.column(0).to_pylist()) == (["offset"], [0, 1, 4, 5, 6, 7])
    assert not list(LAYOUT.check(storage, LAYOUT.survey(storage), deep=True)), "they are no fault of the segment"
    (row,) = (each for each in rows_of(LAYOUT.survey(storage)) if isinstance(each, Segment))
    assert row.reason == "unrecorded", "it gives fewer records than it has offsets"


def test_what_looks_like_a_marker_stays_where_none_can_be(storage: Storage) -> None:
    add(storage, MARKED, "read_committed")
    assert [record for batch in seen(storage) for record in to_records(batch)] == MARKED
    assert LAYOUT.survey(storage).doubts == ()


def test_aborted_records_must_be_accepted_where_they_are_known_to_be_there(storage: Storage) -> None:
    add(storage, MARKED, "read_uncommitted")
    (doubt,) = LAYOUT.survey(storage).doubts
    assert (doubt.refused, "--accept-gaps" in str(doubt.hint)) == (True, True)
    assert "isolation_level read_uncommitted" in doubt.what


def test_a_manifest_that_does_not_say_is_told_and_no_reason_to_refuse(storage: Storage) -> None:
    add(storage, MARKED, None)
    assert [doubt.refused for doubt in LAYOUT.survey(storage).doubts] == [False]


@pytest.mark.parametrize(("dataset", "doubts"), [("0.17.4-zstd-offset-headers", 1), ("0.25.2-none", 0)])
def test_the_tools_own_backups_give_no_marker(dataset: str, doubts: int, tmp_path: Path) -> None:
    shutil.copytree(samples_of("oso") / dataset, tmp_path / dataset)
    storage = open_storage(str(tmp_path))
    survey = LAYOUT.survey(storage)
    assert len(survey.doubts) == doubts
    txn = [each for each in survey.segments if each.where.topic == "smp-txn"]
    values = [
        value
        for each in txn
        for batch in read_foreign(storage, describe("kbak", each), columns=["value"])
        for value in batch.column(0).to_pylist()
    ]
    assert len(values) == (30 if doubts else 15)
    assert bytes(6) not in values


class Given:
    """Records of the offsets 0 to 11 as a transfer gives them: 0 to 4, and what was left out behind them."""

    def __init__(self) -> None:
        self.start, self.end, self.skipped = 0, 12, Skipped()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        self.skipped.note(left_out([(5, 1, True), (6, 5, False), (11, 1, True)]))
        yield to_arrow(some(0, 5))


def left_out(batches: list[tuple[int, int, bool]]) -> BatchHeaders:
    class Headers(dict[str, Any]):
        control = np.array([control for *_, control in batches])

    return Headers(  # type: ignore[return-value]
        base_offset=np.array([base for base, *_ in batches]), count=np.array([count for _, count, _ in batches])
    )


def test_what_was_left_out_is_counted_as_the_tool_counts_it(storage: Storage) -> None:
    """As 0.25.2 has it of partition 0 of `smp-txn`."""
    records = Given()
    written = LAYOUT.write(storage, WHERE, records, WriteOptions(), survey=KBAK.nothing)
    LAYOUT.publish(storage, KBAK.nothing, written, WriteOptions(), FACTS)
    manifest = json.loads(bytes(storage.get(MANIFEST)))
    (partition,) = manifest["topics"][0]["partitions"]
    (segment,) = partition["segments"]
    original = json.loads((samples_of("oso") / "0.25.2-none" / "manifest.json").read_text())
    topic = next(each for each in original["topics"] if each["name"] == "smp-txn")
    theirs = next(each for each in topic["partitions"] if each["partition_id"] == 0)
    for name in ("covered_start_offset", "covered_end_offset", "control_records_skipped", "aborted_records_dropped"):
        assert segment[name] == theirs["segments"][0][name]
    assert partition["covered_through"] == theirs["covered_through"]
    assert manifest["isolation_level"] == original["isolation_level"] == "read_committed"
    assert LAYOUT.survey(storage).positions == {WHERE: 12}


def test_what_is_uncommitted_never_becomes_committed_by_a_copy(storage: Storage) -> None:
    facts = ClusterFacts(taken_at_ms=1, committed=False)
    LAYOUT.publish(storage, KBAK.nothing, [], WriteOptions(), facts)
    LAYOUT.publish(storage, LAYOUT.survey(storage), [], WriteOptions(), FACTS)
    assert json.loads(bytes(storage.get(MANIFEST)))["isolation_level"] == "read_uncommitted"
