"""A backup as a whole: how it grows, and what a crash or another writer does to it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from maxbrod.errors import RefusedError, UsageError
from maxbrod.layouts.foreign import ClusterFacts, ForeignGroup, ForeignTopic, WriteOptions
from maxbrod.layouts.registry import detect_layout
from maxbrod.model import TopicPartition
from maxbrod.storage.stores import open_storage
from support.tool_backups import FACTS, MANIFEST, WHERE, Tool, change_manifest, each_tool, some

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.storage.interface import Storage
    from support.plain_batches import Record

OTHER = TopicPartition(topic="orders", partition=1)


@each_tool
def test_the_layout_is_what_the_interface_asks_for(tool: Tool) -> None:
    layout = tool.layout

    assert layout.name == tool.name
    assert not any(loss.real for loss in layout.losses)


@each_tool
def test_nothing_is_found_where_nothing_is(tool: Tool, storage: Storage) -> None:
    assert not tool.layout.detect(storage)
    assert tool.layout.survey(storage).segments == ()


@each_tool
def test_a_backup_grows_from_run_to_run(tool: Tool, storage: Storage) -> None:
    for first in (0, 5, 20):
        tool.add(storage, some(first, 5), codec="lz4")
    survey = tool.layout.survey(storage)

    assert detect_layout(storage) == tool.name
    assert survey.faults == ()
    assert [(each.base_offset, each.end_offset) for each in survey.segments] == [(0, 5), (5, 10), (20, 25)]
    assert survey.positions == {WHERE: 25}
    assert tool.read_all(storage) == [*some(0, 5), *some(5, 5), *some(20, 5)]


@each_tool
def test_archives_of_several_tools_in_one_place_are_named_and_none_is_taken_for_all(
    tool: Tool, storage: Storage
) -> None:
    tool.add(storage, some(0, 5))
    storage.put("topics/orders/partition=0/orders+0-1.data", b"of another tool")
    with pytest.raises(UsageError, match=f"several tools are in this place: {tool.name}, avro") as caught:
        detect_layout(storage)
    assert caught.value.hint == f"name the layout of one: --layout {tool.name}"
    assert tool.layout.survey(storage).segments


@each_tool
def test_the_url_may_point_into_the_backups_folder(tool: Tool, tmp_path: Path) -> None:
    tool.add(open_storage(str(tmp_path)), some(0, 5))
    inside = open_storage(str(tmp_path / "maxbrod"))
    tool.add(inside, some(5, 5))

    assert tool.read_all(inside) == some(0, 10)
    assert tool.read_all(open_storage(str(tmp_path))) == some(0, 10)
    with pytest.raises(UsageError, match="not 'other'"):
        tool.layout.survey(inside, {"backup_id": "other"})


@each_tool
def test_a_second_backup_under_one_root_is_another_one(tool: Tool, storage: Storage) -> None:
    tool.add(storage, some(0, 5))
    survey = tool.layout.survey(storage, {"backup_id": "second"})
    options = WriteOptions(extra={"backup_id": "second"})
    written = tool.write(storage, some(0, 2), survey=survey, extra=options.extra)
    tool.layout.publish(storage, survey, written, options, FACTS)

    assert tool.layout.survey(storage, {"backup_id": "second"}).positions == {WHERE: 2}
    assert tool.layout.survey(storage, {"backup_id": "maxbrod"}).positions == {WHERE: 5}
    with pytest.raises(UsageError, match="several backups here: maxbrod, second"):
        tool.layout.survey(storage)


@each_tool
def test_what_was_written_and_not_published_is_not_archived(tool: Tool, storage: Storage) -> None:
    tool.write(storage, some(0, 5))
    survey = tool.layout.survey(storage)

    assert survey.segments == ()
    assert survey.positions == {}
    assert [fault.fatal for fault in survey.faults] == [False]
    # The next run begins anew, in the same folder.
    tool.add(storage, some(0, 7))
    assert tool.read_all(storage) == some(0, 7)


@each_tool
def test_a_run_that_died_between_writing_and_publishing_is_written_over(tool: Tool, storage: Storage) -> None:
    tool.add(storage, some(0, 5))
    tool.write(storage, some(5, 3))
    tool.add(storage, some(5, 9))

    assert tool.read_all(storage) == some(0, 14)


@each_tool
def test_publishing_again_changes_nothing(tool: Tool, storage: Storage) -> None:
    survey = tool.layout.survey(storage)
    written = tool.write(storage, some(0, 5), survey=survey, segment_records_max=2)
    tool.layout.publish(storage, survey, written, WriteOptions(), FACTS)
    once = {info.path: bytes(storage.get(info.path)) for info in storage.list()}
    tool.layout.publish(storage, survey, written, WriteOptions(), FACTS)

    assert {info.path: bytes(storage.get(info.path)) for info in storage.list()} == once


@each_tool
def test_another_writers_segments_are_never_lost(tool: Tool, storage: Storage) -> None:
    tool.add(storage, some(0, 2))
    survey = tool.layout.survey(storage)
    late = tool.write(storage, some(2, 1), survey=survey)
    tool.add(storage, some(2, 5), segment_records_max=2)

    with pytest.raises(RefusedError, match="another writer has added to orders-0"):
        tool.layout.publish(storage, survey, late, WriteOptions(), FACTS)
    assert tool.layout.survey(storage).positions == {WHERE: 7}


@each_tool
def test_a_new_backup_never_overwrites_one_that_was_not_seen(tool: Tool, storage: Storage) -> None:
    tool.add(storage, some(0, 5))
    before = {info.path: bytes(storage.get(info.path)) for info in storage.list()}
    with pytest.raises(RefusedError, match="there is a backup 'maxbrod' already"):
        tool.write(storage, some(0, 2), survey=tool.nothing)
    assert {info.path: bytes(storage.get(info.path)) for info in storage.list()} == before


@each_tool
def test_records_that_are_archived_already_are_refused(tool: Tool, storage: Storage) -> None:
    tool.add(storage, some(0, 5))
    with pytest.raises(RefusedError, match="after offset 4"):
        tool.write(storage, some(4, 2))


@each_tool
def test_what_is_known_of_the_cluster_is_kept(tool: Tool, storage: Storage) -> None:
    group = ForeignGroup(group_id="g", offsets={WHERE: 3, OTHER: 0})
    topics = {
        "orders": ForeignTopic(name="orders", partition_count=2, replication_factor=3, configs={"retention.ms": "5"}),
        "empty": ForeignTopic(name="empty", partition_count=7),
    }
    facts = ClusterFacts(cluster_id="c", brokers=("b:9092",), topics=topics, groups=(group,), taken_at_ms=77_000)
    tool.add(storage, some(0, 5), facts)
    tool.add(storage, some(5, 5))  # a run that saw no groups forgets none
    survey = tool.layout.survey(storage)

    assert survey.topics == topics
    assert survey.groups == (group,)
    assert (survey.cluster_id, survey.taken_at_ms) == ("c", 77_000)


@each_tool
@pytest.mark.parametrize("name", ["..", "a/b", "", "x" * 300, "a\0b", None, 5])
def test_a_topic_that_cannot_be_is_a_fault(tool: Tool, storage: Storage, name: object) -> None:
    tool.add(storage, some(0, 5))
    topic = {"name": name, "partitions": [{"partition_id": 0}]}
    change_manifest(storage, lambda manifest: manifest["topics"].append(topic))

    assert [fault.fatal for fault in tool.layout.survey(storage).faults] == [True]
    assert tool.read_all(storage) == some(0, 5)


@each_tool
@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b'{VERSION"backup_id": 5}',
        b"\xff",
        b'{"a":' * 100_000,
        b'{VERSION"backup_id": "x", "topics": 5}',
    ],
)
def test_a_broken_manifest_is_made_good_by_the_segments_themselves(tool: Tool, storage: Storage, text: bytes) -> None:
    tool.add(storage, some(0, 5))
    tool.add(storage, some(5, 5), codec="lz4")
    storage.replace(MANIFEST, text.replace(b"VERSION", b'"version": "1.0", ' if tool.name == "kbs" else b""))
    survey = tool.layout.survey(storage)

    assert tool.layout.detect(storage)
    assert survey.positions == {WHERE: 10}
    assert [fault.fatal for fault in survey.faults] == [False]
    assert tool.read_all(storage) == some(0, 10)
    with pytest.raises(RefusedError, match="manifest of this backup is damaged"):
        tool.layout.publish(storage, survey, [], WriteOptions(), FACTS)


def _killed_after(storage: Storage, writes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies after this number of objects was replaced."""
    real, left = storage.replace, iter(range(writes))

    def replace(path: str, data: bytes) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        real(path, data)

    monkeypatch.setattr(storage, "replace", replace)


@each_tool
@pytest.mark.parametrize("writes", range(6))
def test_a_crash_at_any_write_loses_nothing_and_doubles_nothing(
    tool: Tool, storage: Storage, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    tool.add(storage, some(0, 5))
    before = tool.layout.survey(storage).positions
    records: list[Record] = some(5, 6)
    facts = ClusterFacts(groups=(ForeignGroup(group_id="g", offsets={WHERE: 1}),), taken_at_ms=1)
    with monkeypatch.context() as patched:
        _killed_after(storage, writes, patched)
        with suppress(KeyboardInterrupt):
            tool.add(storage, records, facts, segment_records_max=2)
    survey = tool.layout.survey(storage)
    # The manifest is the moment at which it counts.
    assert survey.positions == ({WHERE: 11} if writes >= tool.writes_until_published else before)
    assert not any(fault.fatal for fault in survey.faults)
    position = survey.positions[WHERE]
    tool.add(storage, some(position, 12 - position), facts, segment_records_max=2)
    assert tool.read_all(storage) == some(0, 12)


@each_tool
def test_a_choice_that_the_layout_does_not_have_is_refused(tool: Tool, storage: Storage) -> None:
    with pytest.raises(UsageError, match="no option region"):
        tool.layout.survey(storage, {"region": "eu-1"})
