"""No row gets into the program that makes no sense, from whichever catalog it comes and whoever asks for it."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.archive.archive import open_archive
from maxbrod.archive.surveyed import SurveyedCatalog
from maxbrod.catalog import catalog as catalog_module
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.rows import Row, Run, decode_rows, encode_rows
from maxbrod.catalog.schema import ABORTED_TYPE, SCHEMA
from maxbrod.catalog.validity import find_fault
from maxbrod.cli.main import run as maxbrod
from maxbrod.errors import EXIT_CORRUPT, CorruptDataError
from maxbrod.model import GapReason
from maxbrod.storage.stores import open_storage
from maxbrod.table.read.options import parse_options
from maxbrod.table.read.splits import open_table
from support.catalog_rows import gap, many_segments, rows, run, segment

if TYPE_CHECKING:
    from pathlib import Path


DEEP = "[" * 5000 + "]" * 5000
HOSTILE: list[tuple[str, Row, dict[str, Any]]] = [
    ("kind", segment(0, 5), {"kind": "rumour"}),
    ("kind", segment(0, 5), {"kind": None}),
    ("reason", gap(0, 5), {"reason": "boredom"}),
    ("path", segment(0, 5), {"path": "../../etc/passwd"}),
    ("path", segment(0, 5), {"path": "segments/../../x"}),
    ("path", segment(0, 5), {"path": "/etc/passwd"}),
    ("path", segment(0, 5), {"path": "segments//x"}),
    ("path", segment(0, 5), {"path": "a\\b"}),
    ("path", segment(0, 5), {"path": "x" * 256}),
    ("path", segment(0, 5), {"path": None}),
    ("path", run("r"), {"path": "/etc/passwd"}),
    ("partition", segment(0, 5), {"partition": -1}),
    ("partition", segment(0, 5), {"partition": 2**31 - 1}),
    ("base_offset", segment(0, 5), {"base_offset": -5}),
    ("end_offset", segment(5, 6), {"end_offset": 5}),
    ("position", segment(0, 5), {"position": -1}),
    ("position", segment(0, 5), {"position": 2**63 - 5}),
    ("bytes", segment(0, 5), {"bytes": 0}),
    ("raw_bytes", segment(0, 5), {"raw_bytes": -1}),
    ("records", segment(0, 5), {"records": 6}),
    ("records", segment(0, 5), {"records": -1}),
    ("control_records", segment(0, 5), {"control_records": 6}),
    ("topic", segment(0, 5), {"topic": "a/b"}),
    ("topic", segment(0, 5), {"topic": "\x1b[2J"}),
    ("topic", segment(0, 5), {"topic": None}),
    ("topic_id", segment(0, 5), {"topic_id": ""}),
    ("run_id", segment(0, 5), {"run_id": None}),
    ("written_at", segment(0, 5), {"written_at": None}),
    ("codec", segment(0, 5), {"codec": None}),
    ("digest", segment(0, 5), {"digest": None}),
    ("last_leader_epoch", segment(0, 5), {"last_leader_epoch": None}),
    ("aborted", segment(0, 5), {"aborted": [None]}),
    ("aborted", segment(0, 5), {"aborted": [{"producer_id": 1, "first_offset": None, "last_offset": 1}]}),
    ("details", segment(0, 5), {"details": "{}"}),
    ("details", run("r"), {"details": None}),
    ("details", run("r"), {"details": "no JSON"}),
    ("details", run("r"), {"details": "[]"}),
    ("details", run("r"), {"details": DEEP}),
    ("details", run("r"), {"details": json.dumps({"started_at": "now", "finished_at": 1, "statistics": {}})}),
    ("details", run("r"), {"details": json.dumps({"started_at": 2**70, "finished_at": 1, "statistics": {}})}),
    ("details", run("r"), {"details": json.dumps({"started_at": True, "finished_at": 1, "statistics": {}})}),
    ("details", run("r"), {"details": json.dumps({"started_at": 1, "finished_at": 1, "statistics": []})}),
    ("details", run("r"), {"details": '{"started_at": 1, "finished_at": 1, "statistics": {"x": NaN}}'}),
    (
        "details",
        run("r"),
        {"details": f'{{"started_at": 1, "finished_at": 1, "statistics": {{"x": {DEEP[4950:5050]}}}}}'},
    ),
    ("topic", segment(0, 5), {"topic": "orders\u202egpj"}),
    ("topic", segment(0, 5), {"topic": "or\u200bders"}),
]


def mutated(row: Row, changes: dict[str, Any]) -> pa.Table:
    """A row that our own writers would never let through."""
    (values,) = encode_rows([row]).to_pylist()
    return pa.Table.from_pylist([{**values, **changes}], schema=SCHEMA)


def ask_everything(catalog: Catalog | SurveyedCatalog) -> None:
    decode_rows(catalog.rows())
    catalog.positions()
    catalog.runs()
    catalog.gaps(list(GapReason))


def hostile_archive(folder: Path, table: pa.Table, monkeypatch: pytest.MonkeyPatch) -> str:
    """An archive whose catalog has a sound row and these."""
    catalog = Catalog.create(open_storage(str(folder)))
    catalog.commit([segment(100, 105), run("first", snapshot=None)])
    monkeypatch.setattr(catalog_module, "check_rows", lambda _: None)
    catalog.commit(table)
    monkeypatch.undo()
    return str(folder)


@pytest.mark.parametrize(("column", "row", "changes"), HOSTILE, ids=range(len(HOSTILE)))
def test_a_row_that_makes_no_sense_is_named_with_its_column(column: str, row: Row, changes: dict[str, Any]) -> None:
    table = mutated(row, changes)
    fault = find_fault(table)
    if fault is None:
        # What a run remembers is text in a column: it is looked at where it is read.
        with pytest.raises(CorruptDataError, match=rf"{column}.*in run"):
            decode_rows(table)
    else:
        assert fault.column == column


@pytest.mark.parametrize("number", [0, 1, 3, 5, 10, 13, 18, 30, 32, 36, 37, 42])
def test_every_verb_says_so_and_ends_with_4(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    column, row, changes = HOSTILE[number]
    url = hostile_archive(tmp_path / "archive", mutated(row, changes), monkeypatch)
    # Who does not look at that column, or at runs, has nothing to say about it.
    reader = ["ls", "--runs"] if isinstance(row, Run) else ["show", "orders"]
    for verb in (["check"], reader, ["ls"], ["gc"]):
        code = maxbrod([*verb, "-a", url])
        told = capsys.readouterr()
        assert "Traceback" not in told.err
        assert code == EXIT_CORRUPT or verb in (["ls"], ["gc"]), (verb, told)
        assert code != EXIT_CORRUPT or column in told.err


def test_the_table_of_spark_goes_through_the_same_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = hostile_archive(tmp_path, mutated(segment(0, 5), {"path": "../x"}), monkeypatch)
    with pytest.raises(CorruptDataError, match=r"path '\.\./x' names no object.*orders-0, at offset 0"):
        open_table(parse_options({"path": url})).catalog.rows()


def test_counts_that_overflow_together_are_refused_not_shown_as_negative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    big = [mutated(segment(5 * n, 5 * n + 5), {"bytes": 2**62, "raw_bytes": 2**62}) for n in range(3)]
    url = hostile_archive(tmp_path / "archive", pa.concat_tables(big), monkeypatch)
    assert maxbrod(["ls", "-a", url]) == EXIT_CORRUPT
    assert "64 bits" in capsys.readouterr().err
    spans = [gap(0, 2**62, partition=partition) for partition in range(3)]
    fault = find_fault(encode_rows(spans))
    assert fault is not None
    assert fault.column == "end_offset"


def test_a_catalog_with_columns_of_other_types_is_not_opened(tmp_path: Path) -> None:
    Catalog.create(open_storage(str(tmp_path)))
    table = tmp_path / "catalog" / "segments"
    wrong = SCHEMA.set(2, pa.field("partition", pa.string()))
    write_deltalake(table, wrong.empty_table(), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(CorruptDataError, match="column partition is of type string"):
        Catalog.open(open_storage(str(tmp_path)))


@pytest.mark.parametrize(
    "changes", [{"bytes": 2**70}, {"records": "many"}, {"path": "../x"}, {"records": -1}, {"topic": "a/b"}]
)
def test_what_other_layouts_say_goes_through_the_same_gate(changes: dict[str, Any]) -> None:
    foreign = segment(0, 5, details="{}", digest="")
    assert SurveyedCatalog("x", [foreign]).rows().num_rows == 1
    with pytest.raises(CorruptDataError) as caught:
        SurveyedCatalog("x", [foreign, segment(5, 10, details="{}", digest="", **changes)])
    assert caught.value.exit_code == EXIT_CORRUPT


def test_a_million_rows_pass() -> None:
    """`maxbrod bench planning` tells how long that takes."""
    assert find_fault(many_segments(1000, 1000)) is None


_values: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): st.none()
    | st.text(max_size=8)
    | st.sampled_from(["data", "gap", "run", "..", "/", "retention", "{}"]),
    pa.int32(): st.none() | st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.none() | st.integers(-(2**63), 2**63 - 1),
    pa.bool_(): st.none() | st.booleans(),
    ABORTED_TYPE: st.none()
    | st.lists(
        st.none()
        | st.fixed_dictionaries(
            {
                name: st.none() | st.integers(-(2**63), 2**63 - 1)
                for name in ("producer_id", "first_offset", "last_offset")
            }
        ),
        max_size=2,
    ),
}


@given(st.data(), st.lists(rows(), min_size=1, max_size=3))
def test_whatever_stands_in_a_row_it_is_admitted_whole_or_refused(data: st.DataObject, originals: list[Row]) -> None:
    values = encode_rows(originals).to_pylist()
    for name in data.draw(st.lists(st.sampled_from(SCHEMA.names), min_size=1, max_size=3)):
        values[0][name] = data.draw(_values[SCHEMA.field(name).type])
    table = pa.Table.from_pylist(values, schema=SCHEMA)
    fault = find_fault(table)
    if fault is not None:
        assert fault.column in SCHEMA.names
        return
    # What a run remembers is text in a column: it is looked at where it is read.
    with suppress(CorruptDataError):
        assert len(decode_rows(table)) == len(originals)


def test_columns_that_are_read_alone_are_looked_at_too() -> None:
    table = mutated(segment(0, 5), {"path": "/x"})
    assert find_fault(table.select(["kind", "path"])) is not None
    assert find_fault(table.select(["kind", "base_offset"])) is None


def test_an_archive_of_sound_rows_answers_everything(tmp_path: Path) -> None:
    catalog = Catalog.create(open_storage(str(tmp_path)))
    catalog.commit([segment(0, 5), gap(5, 6, reason=GapReason.CORRUPT), run("r", snapshot=None)])
    ask_everything(catalog)
    assert open_archive(str(tmp_path)).catalog.rows().num_rows == 2
