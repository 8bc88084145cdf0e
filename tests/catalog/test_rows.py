"""Rows survive Arrow and Parquet exactly, and what cannot be understood is refused."""

from __future__ import annotations

from dataclasses import fields

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.catalog.rows import Gap, Row, Segment, decode_rows, encode_rows
from maxbrod.catalog.schema import SCHEMA, Kind, fields_of
from maxbrod.catalog.validity import check_rows
from maxbrod.errors import RefusedError, UnsupportedFormatError
from maxbrod.model import GapReason
from support.catalog_rows import INT64_MAX, gap, rows, run, segment


@given(st.lists(rows(), max_size=5))
def test_every_row_survives_arrow_and_parquet(originals: list[Row]) -> None:
    table = encode_rows(originals)
    assert table.schema.equals(SCHEMA)
    check_rows(table)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    assert decode_rows(pq.read_table(pa.BufferReader(sink.getvalue()))) == originals


def test_no_value_is_mistaken_for_another() -> None:
    table = encode_rows([segment(0, INT64_MAX, min_timestamp=None, max_timestamp=0, aborted=()), gap(0, 1)])
    values = table.to_pylist()
    assert values[0]["end_offset"] == INT64_MAX
    assert (values[0]["min_timestamp"], values[0]["max_timestamp"]) == (None, 0)
    assert (values[0]["aborted"], values[0]["reason"]) == ([], None)
    assert (values[1]["aborted"], values[1]["path"], values[1]["reason"]) == (None, None, "retention")


def test_columns_of_a_newer_release_are_passed_over() -> None:
    table = encode_rows([gap(0, 1)]).append_column("tint", pa.array(["mauve"]))
    assert decode_rows(table) == [gap(0, 1)]


@pytest.mark.parametrize(("cls", "kind"), [(Segment, Kind.DATA), (Gap, Kind.GAP)])
def test_a_row_has_the_fields_that_the_columns_of_its_kind_declare(cls: type[Row], kind: Kind) -> None:
    assert {each.name for each in fields(cls)} == set(fields_of(kind))


@pytest.mark.parametrize(("column", "value"), [("kind", "rumour"), ("reason", "boredom")])
def test_an_unknown_kind_or_reason_is_refused_when_read(column: str, value: str) -> None:
    table = encode_rows([gap(7, 8)])
    table = table.set_column(table.column_names.index(column), column, pa.array([value]))
    with pytest.raises(UnsupportedFormatError, match=value) as caught:
        decode_rows(table)
    assert caught.value.offset == 7


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (segment(5, 5), "end_offset 5 is not above"),
        (segment(6, 5), "end_offset 5 is not above"),
        (segment(-1, 5), "base_offset -1 is not an offset"),
        (gap(0, 5, partition=-1), "partition -1 is not a partition"),
        (gap(0, 5, topic_id=None), "topic_id None is not a topic id"),
        (segment(0, 5, path=None), "path None names no object"),
        (segment(0, 5, position=-1), "position -1 is not a position"),
        (segment(0, 5, bytes=0), "bytes 0 is not a size"),
        (gap(0, 5, reason="boredom"), "reason 'boredom' is not a known reason"),
        (run("r", written_at=None), "written_at None is not a time"),
    ],
)
def test_a_row_that_no_reader_could_use_is_refused_before_it_is_written(row: Row, complaint: str) -> None:
    good: list[Row] = [segment(0, 5), gap(5, 6, reason=GapReason.PRUNED), run("r")]
    check_rows(encode_rows(good))
    with pytest.raises(RefusedError, match=complaint):
        check_rows(encode_rows([*good, row]))
