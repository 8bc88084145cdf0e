"""Records into segments and back: what both layouts promise of a single one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.batch.columns import RECORD_SCHEMA
from maxbrod.errors import RefusedError, UsageError
from maxbrod.layouts.foreign import WriteOptions
from maxbrod.model import TopicPartition
from support import plain_kbak, plain_kbs
from support.record_examples import record_lists, to_arrow
from support.tool_backups import GOLDEN_RECORDS, WHERE, Tool, each_tool, segment_of, some

if TYPE_CHECKING:
    from collections.abc import Callable

    from maxbrod.storage.interface import Storage
    from support.plain_batches import Record

PAGES: Final = Path(__file__).parents[3] / "docs" / "layouts"
CODECS = ["none", "zstd", "lz4"]
_ANNOTATED: Final = re.compile(r"((?:[0-9a-f]{2} )+) +\S.*")
PLAIN: Final[dict[str, Any]] = {"kbak": plain_kbak, "kbs": plain_kbs}


@each_tool
def test_a_segment_written_by_hand_is_read(tool: Tool, storage: Storage) -> None:
    storage.put("s", tool.golden)

    assert tool.read(storage, segment_of("s", GOLDEN_RECORDS)) == GOLDEN_RECORDS


@each_tool
def test_records_are_written_as_by_hand(tool: Tool, storage: Storage) -> None:
    [segment] = tool.write(storage, GOLDEN_RECORDS, codec="none")

    assert bytes(storage.get(segment.path)) == tool.golden
    assert segment.path == tool.golden_path


@each_tool
def test_the_annotated_segment_is_the_golden_one(tool: Tool) -> None:
    """The pages say what is true: the segments annotated there are those that the tests are held to."""
    lines = (PAGES / f"{tool.name}.md").read_text(encoding="utf-8").splitlines()
    annotated = [match[1] for line in lines if (match := _ANNOTATED.fullmatch(line))]

    assert bytes.fromhex("".join(annotated)) == tool.golden


@each_tool
@pytest.mark.parametrize("codec", CODECS)
@given(records=record_lists(), data=st.data())
def test_any_records_come_back_and_a_plain_reader_finds_the_same(
    tool: Tool, shelf: Callable[[], Storage], codec: str, records: list[Record], data: st.DataObject
) -> None:
    storage = shelf()
    limits: dict[str, Any] = {"segment_records_max": data.draw(st.none() | st.integers(1, 5))}
    written = tool.write(storage, records, codec=codec, **limits)

    assert [record for segment in written for record in tool.read(storage, segment)] == records
    stored = [bytes(storage.get(segment.path)) for segment in written]
    assert [record for each in stored for record in PLAIN[tool.name].read_segment(each)] == records


@each_tool
@pytest.mark.parametrize("codec", range(3))
@given(records=record_lists())
def test_what_another_writer_has_written_is_read(
    tool: Tool, shelf: Callable[[], Storage], codec: int, records: list[Record]
) -> None:
    storage = shelf()
    storage.put("s", PLAIN[tool.name].segment_of(records, codec))

    assert tool.read(storage, segment_of("s", records)) == records


@each_tool
@given(records=record_lists(size_max=20), data=st.data())
def test_where_a_segment_ends_does_not_depend_on_arrows_batches(
    tool: Tool, shelf: Callable[[], Storage], records: list[Record], data: st.DataObject
) -> None:
    options = WriteOptions(codec="none", segment_bytes_max=data.draw(st.integers(1, 500)))
    cuts = sorted({0, len(records), *data.draw(st.lists(st.integers(0, len(records)), max_size=4))})
    batch = to_arrow(records)
    parts = [batch.slice(start, end - start) for start, end in zip(cuts, [*cuts[1:], len(records)], strict=True)]
    trees = []
    for batches in ([batch], parts):
        storage = shelf()
        written = tool.layout.write(storage, WHERE, batches, options, survey=tool.nothing)
        trees.append({segment.path: bytes(storage.get(segment.path)) for segment in written})

    assert trees[0] == trees[1]


@each_tool
def test_an_object_too_large_to_hold_is_read_piece_by_piece(
    tool: Tool, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maxbrod.layouts.found.HELD_BYTES_MAX", 100)
    monkeypatch.setattr("maxbrod.layouts.found.PIECE_BYTES", 37)
    records = some(0, 50)
    for codec in CODECS:
        [segment] = tool.write(storage, records, survey=tool.nothing, codec=codec)
        assert tool.read(storage, segment) == records


@each_tool
def test_only_the_columns_that_are_asked_for_are_given(tool: Tool, storage: Storage) -> None:
    [segment] = tool.write(storage, some(0, 5))
    [batch] = tool.layout.read(storage, segment, columns=["value", "offset"])

    assert batch.schema.names == ["offset", "value"]
    with pytest.raises(UsageError, match="no such record column"):
        list(tool.layout.read(storage, segment, columns=["colour"]))


@each_tool
def test_every_batch_has_the_schema_of_records(tool: Tool, storage: Storage) -> None:
    batch = to_arrow(some(0, 4), timestamp_type=1, leader_epoch=3, producer_id=9, transactional=True)
    [segment] = tool.layout.write(storage, WHERE, [batch], WriteOptions(), survey=tool.nothing)
    [found] = tool.layout.read(storage, segment)

    assert found.schema.equals(RECORD_SCHEMA)
    found.validate(full=True)
    # What the layout is documented to lose has Kafka's own default.
    assert found.column("timestamp_type").to_pylist() == [0] * 4
    assert found.column("producer_id").to_pylist() == [-1] * 4


@each_tool
def test_transaction_markers_never_become_records(tool: Tool, storage: Storage) -> None:
    batch = to_arrow(some(0, 4), control=[False, True, False, True])
    [segment] = tool.layout.write(storage, WHERE, [batch], WriteOptions(), survey=tool.nothing)

    assert [record.offset for record in tool.read(storage, segment)] == [0, 2]


@each_tool
def test_no_records_make_no_segment(tool: Tool, storage: Storage) -> None:
    empty = pa.RecordBatch.from_pylist([], schema=RECORD_SCHEMA)

    assert tool.layout.write(storage, WHERE, [empty], WriteOptions(), survey=tool.nothing) == []
    assert list(storage.list()) == []


@each_tool
@given(records=record_lists(), data=st.data())
def test_offset_headers_stand_behind_any_headers_of_a_sliced_batch(
    tool: Tool, shelf: Callable[[], Storage], records: list[Record], data: st.DataObject
) -> None:
    storage, first = shelf(), data.draw(st.integers(0, len(records) - 1))
    options = WriteOptions(extra={"offset_headers": "true"})
    [segment] = tool.layout.write(storage, WHERE, [to_arrow(records).slice(first)], options, survey=tool.nothing)

    assert [record.headers[: -tool.added_headers] for record in tool.read(storage, segment)] == [
        record.headers for record in records[first:]
    ]


@each_tool
def test_records_that_do_not_rise_are_refused(tool: Tool, storage: Storage) -> None:
    with pytest.raises(RefusedError, match="order of offsets"):
        tool.write(storage, [*some(5, 2), *some(6, 1)])


@each_tool
@pytest.mark.parametrize("topic", ["..", "a/b", "", "x" * 250])
def test_a_topic_never_leads_out_of_its_folder(tool: Tool, storage: Storage, topic: str) -> None:
    where = TopicPartition(topic=topic, partition=0)
    with pytest.raises(UsageError, match="cannot be a topic"):
        tool.write(storage, some(0, 1), where=where)


@each_tool
@pytest.mark.parametrize("level", range(1, 23))
def test_every_level_of_zstd_can_be_read(tool: Tool, storage: Storage, level: int) -> None:
    [segment] = tool.write(storage, some(0, 50), level=level)

    assert tool.read(storage, segment) == some(0, 50)


@each_tool
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"codec": "snappy"}, "no codec"),
        ({"level": 0}, "no level"),
        ({"level": 23}, "no level"),
        ({"codec": "lz4", "level": 3}, "no level"),
        ({"segment_bytes_max": 1 << 40}, "a segment has"),
        ({"extra": {"colour": "red"}}, "no such option"),
        ({"extra": {"offset_headers": "yes"}}, "true or false"),
        ({"extra": {"backup_id": "../x"}}, "cannot be the id"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    tool: Tool, storage: Storage, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        tool.write(storage, some(0, 1), **options)
