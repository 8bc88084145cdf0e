"""A listing finds what is gone of an archive, in any layout, and nothing where nothing is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.archive.archive import open_archive
from maxbrod.model import TopicPartition
from maxbrod.restore.archived import _added, listed_losses
from maxbrod.restore.items import Restored
from maxbrod.restore.plan.mapping import build_map, encode_map
from maxbrod.storage.local import LocalStorage
from support.conversions import convert
from support.log_directories import TOPIC_ID, put_source
from support.native_logs import data_batch

if TYPE_CHECKING:
    from pathlib import Path

LAYOUTS = ["kafka", "kbak", "kbs", "binlog", "avro", "parquet"]


@pytest.fixture(params=LAYOUTS)
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    source = put_source(tmp_path / "source", {"orders-0": [data_batch(each, 10) for each in range(0, 60, 10)]})
    report = convert(source, tmp_path / "tree", request.param, segment_records=10, accept_loss=True)
    assert report.exit_code == 0
    return tmp_path / "tree"


def losses(tree: Path) -> list[tuple[int, int, str]]:
    archive = open_archive(str(tree))
    (topic_id,) = set(archive.catalog.rows(columns=["topic_id"])["topic_id"].to_pylist())
    return [
        (each.first, each.end, each.object_name)
        for found in listed_losses(archive, {topic_id}).values()
        for each in found
    ]


def test_of_a_whole_archive_nothing_is_lost(tree: Path) -> None:
    assert losses(tree) == []


@pytest.mark.parametrize("tree", ["kafka", "kbak", "kbs"], indirect=True)
@pytest.mark.parametrize("how", ["missing", "cut"])
def test_objects_that_are_gone_or_too_short_are_found_by_listing(tree: Path, how: str) -> None:
    """In layouts whose catalog or manifest names objects; in others a survey finds what is missing."""
    rows = open_archive(str(tree)).catalog.rows().to_pylist()
    row = rows[3] if how == "missing" else rows[-1]
    victim = tree / row["path"]
    named = {(each["base_offset"], each["end_offset"]) for each in rows if each["path"] == row["path"]}
    if how == "missing":
        victim.unlink()
    else:
        # Behind the slices of a pack stands its table of contents.
        victim.write_bytes(victim.read_bytes()[: row["position"] + row["bytes"] - 5])
        named = {(row["base_offset"], row["end_offset"])}
    found = losses(tree)
    assert {(first, end) for first, end, _ in found} == named
    assert all(victim.name in name for _, _, name in found)


def test_a_listing_is_all_that_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = put_source(tmp_path / "source", {"orders-0": [data_batch(each, 10) for each in range(0, 60, 10)]})
    convert(source, tmp_path / "tree", "kafka", segment_records=10)
    archive = open_archive(str(tmp_path / "tree"))

    def refuse(*_: object) -> None:
        raise AssertionError("an object was asked for")

    monkeypatch.setattr(LocalStorage, "head", refuse)
    monkeypatch.setattr(LocalStorage, "get_ranges", refuse)
    assert listed_losses(archive, {TOPIC_ID}) == {}


def restored(offsets: list[int]) -> Restored:
    """These records at their own offsets, as if each were a batch."""
    made = build_map(offsets, [1] * len(offsets), offsets, base=0)
    where = TopicPartition(topic="orders", partition=0)
    return Restored(where=where, end=0, records=made.records, map=encode_map(made))


@given(st.lists(st.integers(0, 40), unique=True, max_size=20).map(sorted), st.integers(0, 20), st.integers(0, 5))
def test_a_second_attempt_that_reads_some_records_again_counts_each_once(
    offsets: list[int], cut: int, again: int
) -> None:
    whole = _added(restored(offsets[:cut]), restored(offsets[max(cut - again, 0) :]))
    assert (whole.records, whole.map) == (len(offsets), restored(offsets).map)
