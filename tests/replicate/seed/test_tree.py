"""The tree without Kafka: what a listing knows, batches of bounded size, and segments in events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.errors import CorruptDataError, ObjectNotFoundError, UnavailableError
from maxbrod.layouts.parquet.events import EventType
from maxbrod.layouts.parquet.survey import LAYOUT
from maxbrod.layouts.tree import PATH, prune_tree, read_facts
from maxbrod.model import TopicPartition
from maxbrod.replicate.seed.control_topics import TreeSource
from maxbrod.replicate.seed.s3_events import ObjectChange, ObjectEvent
from maxbrod.replicate.seed.tree import Tree
from support.parquet_trees import local, rows, write

if TYPE_CHECKING:
    from collections.abc import Buffer, Mapping
    from pathlib import Path

WHERE = TopicPartition(topic="t", partition=3)
SOURCE = TreeSource("eu", "t", 3)


def add(path: Path, start: int, count: int, *, where: TopicPartition = WHERE) -> str:
    return write(local(path), [rows(count, start=start)], where=where, extra={"region": "eu"})[0].path


def test_a_listing_has_the_segments_of_one_topic_and_its_known_holes(tmp_path: Path) -> None:
    first, second = add(tmp_path, 5, 10), add(tmp_path, 20, 10)
    add(tmp_path, 0, 1, where=TopicPartition(topic="t.other", partition=3))
    (tmp_path / "data/eu/t/3/0/nonsense").write_bytes(b"")
    found = Tree(local(tmp_path), "data").listing("eu", "t")
    assert list(found) == [3]
    assert [each.path for each in found[3].segments] == [first, second]
    assert (found[3].empty, found[3].first_offset) == (((15, 20),), 5)
    assert Tree(local(tmp_path), "data").listing("us", "t") == {}


def test_a_tree_of_the_original_has_no_known_holes(tmp_path: Path) -> None:
    add(tmp_path, 5, 10)
    add(tmp_path, 20, 10)
    (tmp_path / PATH).unlink()
    found = Tree(local(tmp_path), "data").listing("eu", "t")[3]
    assert (len(found.segments), found.empty, found.first_offset) == (2, (), None)


def test_pruned_offsets_are_not_taken_for_offsets_without_records(tmp_path: Path) -> None:
    first = add(tmp_path, 0, 10)
    add(tmp_path, 10, 10)
    prune_tree(local(tmp_path), LAYOUT.survey(local(tmp_path)), {first})
    found = Tree(local(tmp_path), "data").listing("eu", "t")[3]
    assert (found.empty, found.first_offset) == ((), 10)


def test_damaged_facts_are_no_facts(tmp_path: Path) -> None:
    add(tmp_path, 5, 10)
    (tmp_path / PATH).write_bytes(b"{")
    assert Tree(local(tmp_path), "data").listing("eu", "t")[3].empty == ()


def test_a_segment_is_read_in_batches_from_an_offset_on(tmp_path: Path) -> None:
    """Never whole: the original has each segment in memory at once."""
    add(tmp_path, 0, 1000)
    tree = Tree(local(tmp_path), "data")
    (segment,) = tree.listing("eu", "t")[3].segments
    batches = list(tree.batches(SOURCE, segment, 333, records_max=100))
    assert [each.num_rows for each in batches] == [100] * 6 + [67]
    offsets = [offset for each in batches for offset in each.column("offset").to_pylist()]
    assert offsets == list(range(333, 1000))


def test_segments_that_are_gone_or_cut_off_say_so(tmp_path: Path) -> None:
    path = tmp_path / add(tmp_path, 0, 100)
    tree = Tree(local(tmp_path), "data")
    (segment,) = tree.listing("eu", "t")[3].segments
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorruptDataError):
        list(tree.batches(SOURCE, segment, 0, records_max=100))
    path.unlink()
    with pytest.raises(ObjectNotFoundError):
        list(tree.batches(SOURCE, segment, 0, records_max=100))


def test_an_event_about_a_segment_has_the_same_segment_as_a_listing(tmp_path: Path) -> None:
    path = add(tmp_path, 0, 100)
    tree = Tree(local(tmp_path), "data")
    event = tree.event_of(ObjectEvent(change=ObjectChange.CREATED, bucket="b", key=path, size=7, time_ns=9))
    assert event is not None
    assert (event.type, event.size, event.time_ns) == (EventType.CREATED, 7, 9)
    assert tree.segment_of(event) == tree.listing("eu", "t")[3].segments[0]
    assert tree.segment_of(event).path == path


@pytest.mark.parametrize(
    "key", ["data", "data/", "temp/1234", "other/eu/t/3/0/" + "0" * 20 + "-" + "0" * 20, "data/eu/t"]
)
def test_other_objects_are_no_segments(tmp_path: Path, key: str) -> None:
    tree = Tree(local(tmp_path), "data")
    assert tree.event_of(ObjectEvent(change=ObjectChange.CREATED, bucket="b", key=key, size=7, time_ns=9)) is None


def test_a_segment_that_could_not_be_stored_is_an_error_and_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The original returns no error when closing an upload fails."""
    add(tmp_path, 0, 10)
    storage = local(tmp_path)
    replace = type(storage).replace

    def failing(self: object, path: str, data: Buffer, *, metadata: Mapping[str, str] | None = None) -> None:
        if path != PATH:
            raise UnavailableError("the upload failed")
        replace(storage, path, data, metadata=metadata)

    with monkeypatch.context() as patch:
        patch.setattr(type(storage), "replace", failing)
        with pytest.raises(UnavailableError):
            add(tmp_path, 10, 10)
    assert read_facts(storage).coverage[WHERE].held == ((0, 10),)
    assert len(Tree(storage, "data").listing("eu", "t")[3].segments) == 1
