"""What was retired stays retired without the catalog: generations, keys that were compacted away, undone prunes."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.generations import (
    Generation,
    GenerationChanges,
    GenerationStage,
    TopicGenerations,
    as_active,
    as_building,
    encode_generations,
)
from maxbrod.catalog.ledger import LEDGER, read_ledger
from maxbrod.catalog.rows import SLICE_FIELDS, Gap, Segment, decode_rows
from maxbrod.catalog.schema import Kind
from maxbrod.cli.main import run as command
from maxbrod.errors import RefusedError
from maxbrod.inspect.garbage import GRACE_S, collect_garbage
from maxbrod.model import GapReason
from support.histories import IDS, ORDERS, STATE, History, lose, records, repaired

ID = IDS["state"]
WHERE = f"state-{ID}-0"


@pytest.fixture
def history(tmp_path: Path) -> History:
    """A compacted topic, of which keys were deleted at the source since the first run."""
    history = History(str(tmp_path / "archive"))
    history.run({("state", 0): [records(0, 2000, value=b"deleted")]})
    history.run({("state", 0): [records(2000, 100)]}, packed=True)
    return history


def afresh(history: History) -> list[Segment | Gap]:
    """The rows of another reading of the first 2000 offsets: few keys are left, so that objects hold fewer offsets."""
    (_, slices) = history.write({("state", 0): [records(1990, 10)]})[STATE]
    place: dict[str, Any] = {"topic": "state", "topic_id": ID, "partition": 0, "run_id": history.run_id}
    values = {name: getattr(slices[0], name) for name in SLICE_FIELDS}
    return [
        Gap(**place, base_offset=0, end_offset=1990, reason=GapReason.COMPACTED, written_at=1),
        Segment(**place, **values, written_at=1),
    ]


def documents(history: History) -> list[Path]:
    """Without the one that begins the ledger."""
    return sorted((Path(history.url) / LEDGER).iterdir())[1:]


def generations(stage: GenerationStage) -> TopicGenerations:
    first = Generation(
        number=1,
        stage=GenerationStage.RETIRED if stage is GenerationStage.ACTIVE else GenerationStage.ACTIVE,
        began_at=1,
    )
    second = Generation(number=2, stage=stage, began_at=2, targets={0: 2000})
    return TopicGenerations(topic="state", topic_id=ID, generations=(first, second))


def states(stage: GenerationStage) -> pa.Table:
    return encode_generations([generations(stage)], run_id="run", written_at=5)


def build(history: History) -> None:
    added = pa.concat_tables([as_building(afresh(history), 2), states(GenerationStage.BUILDING)])
    history.open().catalog.commit((), generations=GenerationChanges(added=added))


def switch(history: History) -> None:
    catalog = history.open().catalog
    building = catalog.generation_rows([ID])
    changes = GenerationChanges(
        added=pa.concat_tables([as_active(building), states(GenerationStage.ACTIVE)]),
        removed=pa.concat_tables([building, catalog.generation_rows([ID], kind=Kind.GENERATIONS)]),
    )
    catalog.commit((), retired=catalog.rows(topic_id=ID, offsets=(0, 2000)), generations=changes)


def compact_by_key(history: History) -> None:
    catalog = history.open().catalog
    catalog.commit(afresh(history), retired=catalog.rows(topic_id=ID, offsets=(0, 2000)))


def renewed(history: History, how: str) -> dict[str, Any]:
    if how == "generation":
        build(history)
        switch(history)
    else:
        compact_by_key(history)
    assert history.holding()[WHERE][0] == (0, 1990, "compacted")
    return history.state()


@pytest.mark.parametrize("how", ["generation", "by key"])
@pytest.mark.parametrize("later", [False, True])
def test_deleted_keys_stay_deleted_without_the_catalog(history: History, how: str, later: bool) -> None:
    before = renewed(history, how)
    known = history.open().catalog.generations()
    if later:
        history.run({("state", 0): [records(2100, 10)]})
        before = history.state()
    for _ in range(2):
        lose(history.url, "catalog")
        report = repaired(history.url)
        assert (report.exit_code, report.notices) == (0, ())
        # As of the first runs the old reading is still there.
        assert history.state() == before
        assert history.open().catalog.generations() == known


def test_a_generation_under_construction_is_not_the_archive_after_a_rebuild(history: History) -> None:
    before = history.state()
    build(history)
    lose(history.url, "catalog")
    report = repaired(history.url)
    assert (report.exit_code, report.unnamed_slices, history.state()) == (0, 1, before)
    (topic,) = history.open().catalog.generations().values()
    assert [each.stage for each in topic.generations] == [GenerationStage.ACTIVE, GenerationStage.DROPPED]


def test_what_remains_of_the_old_catalog_tells_what_was_retired(history: History) -> None:
    before = renewed(history, "generation")
    lose(history.url, "catalog/segments/_delta_log", LEDGER)
    assert repaired(history.url).exit_code == 0
    assert history.state() == before


@pytest.mark.parametrize("how", ["generation", "by key"])
def test_where_nothing_says_which_reading_is_the_newest_a_rebuild_says_so(history: History, how: str) -> None:
    """As in archives of older releases, which have no ledger."""
    renewed(history, how)
    lose(history.url, "catalog", LEDGER)
    report = repaired(history.url)
    assert (report.exit_code, [each.kind for each in report.notices]) == (3, ["reading"])
    assert "several readings" in report.notices[0].message
    assert (report.notices[0].first_offset, report.notices[0].end_offset) == (1990, 2000)


def test_a_document_that_cannot_be_read_is_said(history: History) -> None:
    renewed(history, "by key")
    lose(history.url, "catalog")
    (document,) = documents(history)
    document.write_bytes(document.read_bytes()[:-1])
    report = repaired(history.url)
    assert (report.exit_code, [each.kind for each in report.notices]) == (3, ["ledger", "reading"])


def merge(history: History) -> None:
    """Two segments of a topic that is not compacted become one."""
    history.run({("orders", 0): [records(0, 10)]})
    history.run({("orders", 0): [records(10, 10)]})
    catalog = history.open().catalog
    rows = catalog.rows(topic_id=IDS["orders"])
    (_, slices) = history.write({("orders", 0): [records(0, 10), records(10, 10)]})[ORDERS]
    values = {name: getattr(slices[0], name) for name in SLICE_FIELDS}
    place: dict[str, Any] = {"topic": "orders", "topic_id": IDS["orders"], "partition": 0, "run_id": history.run_id}
    catalog.commit([Segment(**place, **values, level=1, written_at=1)], replaced=rows)


def test_what_was_merged_stands_in_for_a_lost_object_and_that_is_said(history: History) -> None:
    merge(history)
    (row,) = decode_rows(history.open().catalog.rows(topic_id=IDS["orders"]))
    assert isinstance(row, Segment)
    lose(history.url, "catalog", row.path)
    report = repaired(history.url)
    assert (report.exit_code, {each.kind for each in report.notices}) == (3, {"reading"})
    assert [each[:2] for each in history.holding()[f"orders-{IDS['orders']}-0"]] == [(0, 10), (10, 20)]


def test_where_an_object_is_lost_nothing_comes_back_that_was_removed(history: History) -> None:
    before = history.state()
    renewed(history, "generation")
    lose(history.url, "catalog")
    for path in (Path(history.url) / "segments").rglob("00000000000000001990-*"):
        path.unlink()
    report = repaired(history.url)
    assert (report.exit_code, report.gaps) == (4, {"compacted": 1990, "corrupt": 10})
    assert history.holding()[WHERE][2:] == before["now"][WHERE][1:]


def test_a_commit_that_was_overtaken_leaves_no_document(history: History) -> None:
    late = history.open().catalog
    assert isinstance(late, Catalog)
    rows = late.rows(topic_id=ID, offsets=(0, 2000))
    new = afresh(history)
    late.is_newest = lambda: True  # type: ignore[method-assign]
    history.run({("state", 0): [records(2100, 10)]})
    with pytest.raises(RefusedError):
        late.commit(new, retired=rows)
    assert not documents(history)


def compact_and_be_killed(history: History) -> Path:
    """Before the commit: the document and the objects are there."""
    catalog, copy = Path(history.url) / "catalog", Path(f"{history.url}-copy")
    shutil.copytree(catalog, copy)
    compact_by_key(history)
    shutil.rmtree(catalog)
    copy.rename(catalog)
    (document,) = documents(history)
    return document


@pytest.mark.parametrize("nonce", ["000000", "ffffff"])
def test_of_two_documents_for_one_version_the_committed_one_counts(
    history: History, nonce: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command was killed, and tried again: the first one names objects that are garbage."""
    killed = compact_and_be_killed(history)
    killed = killed.rename(killed.with_name(f"{killed.name.split('-')[0]}-{nonce}.parquet"))
    os.utime(killed, (1, 1))
    compact_by_key(history)
    (kept,) = {*documents(history)} - {killed}
    before = history.state()
    assert [Path(history.url) / each.path for each in read_ledger(history.open().storage).documents] == [kept]
    age(history)
    monkeypatch.setattr(Catalog, "recent_paths", lambda *_: set())  # as a day later
    assert len(collect_garbage(history.open(), delete=True).objects) == 1
    assert documents(history) == [kept]
    lose(history.url, "catalog")
    assert (repaired(history.url).exit_code, history.state()) == (0, before)


def test_a_document_of_a_commit_that_never_was_goes_with_its_objects(history: History) -> None:
    compact_and_be_killed(history)
    history.run({("state", 0): [records(2100, 10)]})
    before = history.state()
    age(history)
    assert len(collect_garbage(history.open(), delete=True).objects) == 1
    assert not documents(history)
    lose(history.url, "catalog")
    assert (repaired(history.url).exit_code, history.state()) == (0, before)


def test_a_commit_that_never_was_is_not_made_up_for_by_a_rebuild_of_a_whole_catalog(history: History) -> None:
    compact_and_be_killed(history)
    history.run({("state", 0): [records(2100, 10)]})
    before = history.state()
    assert repaired(history.url, rebuild=True).exit_code == 0
    assert history.state()["now"] == before["now"]


def test_a_document_of_a_commit_that_never_was_counts_only_until_the_next_one(history: History) -> None:
    compact_and_be_killed(history)
    history.run({("state", 0): [records(2100, 10)]})
    stale = documents(history)
    catalog = history.open().catalog
    merged = afresh(history)
    catalog.commit(merged, retired=catalog.rows(topic_id=ID, offsets=(0, 2000)))
    before = history.state()
    ledger = read_ledger(history.open().storage)
    assert [Path(history.url) / each for each in ledger.dead] == stale
    lose(history.url, "catalog")
    assert repaired(history.url).exit_code == 0
    assert history.state() == before


def test_what_a_prune_took_stays_away_when_its_undo_document_is_gone(history: History) -> None:
    """A pack stays as long as one slice of it is needed: its table of contents still lists the pruned ones."""
    for base in range(0, 40, 10):
        history.run({("orders", 0): [records(base, 10)], ("orders", 1): [records(base, 10)]}, packed=True)
    assert command(["prune", "-a", history.url, "--topic-bytes", "0", "--apply"]) == 0
    after = history.state()
    assert after["now"][f"orders-{IDS['orders']}-0"][0] == (0, 30, "pruned")
    lose(history.url, "catalog", "prunes")
    report = repaired(history.url)
    assert (report.exit_code, history.state()) == (0, after), report.notices


def test_what_an_undo_brought_back_stays(history: History) -> None:
    for base in range(0, 40, 10):
        history.run({("orders", 0): [records(base, 10)]})
    before = history.state()
    assert command(["prune", "-a", history.url, "--topic-bytes", "0", "--apply"]) == 0
    kept = {path: path.read_bytes() for path in (Path(history.url) / "prunes").iterdir()}
    assert command(["prune", "-a", history.url, "--undo", "--apply"]) == 0
    # The undo was killed before it deleted the document of the prune.
    for path, data in kept.items():
        path.write_bytes(data)
    lose(history.url, "catalog")
    repaired(history.url)
    assert history.state()["now"] == before["now"]


def test_gc_deletes_documents_that_tell_nothing_any_more(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of merged segments whose objects are gone, and of commits that never were."""
    merge(history)
    (merged,) = documents(history)
    compact_by_key(history)
    kept = [path for path in documents(history) if path != merged]
    shutil.copy(merged, merged.with_name(f"{merged.name.split('-')[0]}-ffffff.parquet"))
    age(history)
    monkeypatch.setattr(Catalog, "recent_paths", lambda *_: set())  # as a day later
    before = history.state()
    assert len(collect_garbage(history.open(), delete=True).objects) == 2
    assert documents(history) == kept
    lose(history.url, "catalog")
    assert (repaired(history.url).exit_code, history.state()) == (0, before)


def age(history: History) -> None:
    when = time.time() - 2 * GRACE_S
    for path in Path(history.url).rglob("*"):
        os.utime(path, (when, when))


def test_a_commit_that_follows_that_of_another_writer_has_one_document(history: History) -> None:
    late = history.open().catalog
    assert isinstance(late, Catalog)
    rows = late.rows(topic_id=ID, offsets=(0, 2000))
    new = afresh(history)
    late.is_newest = lambda: True  # type: ignore[method-assign]
    history.run({("state", 0): [records(2100, 10)]})
    late.commit(new, retired=rows, still_valid=lambda: True)
    assert (late.version, history.open().catalog.version, len(documents(history))) == (4, 4, 1)
    before = history.state()
    lose(history.url, "catalog")
    assert (repaired(history.url).exit_code, history.state()) == (0, before)
