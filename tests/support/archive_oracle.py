"""Holds an archive against what producers got acknowledged. Reads Delta's table and the objects, nothing of the engine.

`read_archive` proves what holds for every archive: rows tile, slices are there, are whole and do not share bytes, no
offset is there twice, and a row says the truth about its slice. `Holding.assert_equals` compares records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import google_crc32c

from maxbrod.config import StorageConfig
from maxbrod.storage.stores import open_storage
from support.plain_log import Batch, Record, read_log, unframe
from support.storages import delta_table

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage
    from support.ledger import Ledger

Key = tuple[str, int]
"""Topic id and partition."""


@dataclass
class Holding:
    """All that an archive holds."""

    rows: dict[Key, list[dict[str, Any]]] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)
    records: dict[Key, dict[int, Record]] = field(default_factory=dict)
    """Without control records."""
    logs: dict[Key, bytes] = field(default_factory=dict)
    gaps: dict[Key, list[tuple[int, int, str]]] = field(default_factory=dict)
    version: int = 0

    def range_of(self, key: Key) -> tuple[int, int]:
        return self.rows[key][0]["base_offset"], self.rows[key][-1]["end_offset"]

    def assert_equals(self, ledger: Ledger) -> None:
        """Every acknowledged record is there as it was written, and nothing else is."""
        expected = {key: records for key, records in ledger.records.items() if records}
        assert {key for key, records in self.records.items() if records} == set(expected)
        for key, records in expected.items():
            assert list(self.records[key]) == list(records), key
            assert self.records[key] == records, key

    def assert_prefix_of(self, ledger: Ledger) -> None:
        """What is there is true, and is all up to some offset: how an archive looks after a run that was killed."""
        for key, records in self.records.items():
            end = self.range_of(key)[1]
            assert records == {offset: each for offset, each in ledger.records[key].items() if offset < end}, key


def read_archive(url: str, options: StorageConfig | None = None) -> Holding:
    options = options or StorageConfig()
    storage = open_storage(url, options)
    table = delta_table(url, options)
    rows = table.to_pyarrow_table().to_pylist()
    held = Holding(version=table.version(), runs=[row for row in rows if row["kind"] == "run"])
    assert len({run["run_id"] for run in held.runs}) == len(held.runs)
    for row in sorted(rows, key=lambda row: row["base_offset"] or 0):
        if row["kind"] in {"data", "gap"}:
            held.rows.setdefault((row["topic_id"], row["partition"]), []).append(row)
    _check_tiling(held)
    _check_slices_apart(held)
    for key in held.rows:
        _read_partition(storage, held, key)
    return held


def _check_tiling(held: Holding) -> None:
    for key, rows in held.rows.items():
        assert all(row["base_offset"] < row["end_offset"] for row in rows), key
        for before, after in pairwise(rows):
            assert before["end_offset"] == after["base_offset"], (key, before, after)


def _check_slices_apart(held: Holding) -> None:
    slices = [row for rows in held.rows.values() for row in rows if row["kind"] == "data"]
    slices.sort(key=lambda row: (row["path"], row["position"]))
    for before, after in pairwise(slices):
        if before["path"] == after["path"]:
            assert before["position"] + before["bytes"] <= after["position"], (before, after)


def _read_partition(storage: Storage, held: Holding, key: Key) -> None:
    records: dict[int, Record] = {}
    logs = []
    for row in held.rows[key]:
        if row["kind"] == "gap":
            held.gaps.setdefault(key, []).append((row["base_offset"], row["end_offset"], row["reason"]))
            continue
        log = read_slice(storage, row)
        batches = read_log(log)
        _check_row(row, log, batches)
        for batch in batches:
            if not batch.control:
                assert not records.keys() & batch.records.keys()
                records |= batch.records
        logs.append(log)
    assert list(records) == sorted(records)
    held.records[key], held.logs[key] = records, b"".join(logs)


def read_slice(storage: Storage, row: dict[str, Any]) -> bytes:
    """The log of one row, its digest verified."""
    stored = bytes(storage.get_range(row["path"], row["position"], row["bytes"]))
    assert row["digest"] == f"crc32c:{google_crc32c.value(stored):08x}", row
    return unframe(stored) if row["path"].endswith(".zst") else stored


def _check_row(row: dict[str, Any], log: bytes, batches: list[Batch]) -> None:
    assert batches, row
    for before, after in pairwise(batches):
        assert before.last_offset < after.base_offset
    records = [record for batch in batches for record in batch.records.values()]
    assert row["raw_bytes"] == len(log)
    assert row["base_offset"] == batches[0].base_offset
    assert row["end_offset"] == batches[-1].last_offset + 1
    assert row["records"] == len(records)
    assert (row["first_leader_epoch"], row["last_leader_epoch"]) == (
        batches[0].leader_epoch,
        batches[-1].leader_epoch,
    )
    assert row["max_timestamp"] == max((each.timestamp_ms for each in records), default=None)
