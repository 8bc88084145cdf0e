"""A rebuilt catalog brings no erased record back, and still says that the records are missing on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.catalog.rows import decode_rows
from maxbrod.model import GapReason
from maxbrod.storage.stores import open_storage
from support.erasures import erase, holds_bytes, read
from support.histories import lose, repaired
from support.keyed_archives import Keyed, batch, topic_state, without_spark
from support.native_archives import TOPIC, Making, opened, segments

if TYPE_CHECKING:
    from pathlib import Path

ANNE, BEN = b"anne-4711", b"ben-0815"


@pytest.mark.parametrize("lost", [["catalog"], ["catalog", "ledger"]])
@pytest.mark.parametrize("old_objects", [False, True])
def test_a_rebuilt_catalog_brings_nobody_back_also_if_old_objects_are_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: list[str], old_objects: bool
) -> None:
    without_spark(monkeypatch)
    keyed = Keyed(Making(str(tmp_path / "archive")))
    keyed.states = {TOPIC: topic_state()}
    keyed.backup({0: [batch(0, (ANNE, b"1"), (ANNE, b"2"))]}, packed=False)
    keyed.backup({0: [batch(2, (ANNE, b"1"), (BEN, b"1"), (ANNE, b"2"), (BEN, b"2"))]}, packed=False)
    storage = open_storage(keyed.url)
    before = {row.path: bytes(storage.get(row.path)) for row in segments(keyed.url)}
    erase(keyed.url, keys=["anne-4711"])
    if old_objects:
        for path, data in before.items():
            storage.put(path, data)
    for folder in lost:
        lose(keyed.url, folder)
    report = repaired(keyed.url)
    # Objects that overlap, and nothing that says which of them is newer: somebody should look.
    assert report.exit_code == (3 if old_objects and "ledger" in lost else 0), report.notices
    assert read(keyed.url) == [(3, BEN, b"1"), (5, BEN, b"2")]
    reasons = {row.reason for row in decode_rows(opened(keyed.url).catalog.rows())}  # type: ignore[union-attr]
    assert reasons <= ({GapReason.ERASED, None} if old_objects and "ledger" in lost else {GapReason.ERASED})
    if old_objects:
        assert erase(keyed.url, again=True, topics=[]).found_again == 0
        assert holds_bytes(keyed.url, ANNE) == []
