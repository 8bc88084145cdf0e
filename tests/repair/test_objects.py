"""Lost and damaged objects leave a readable catalog as gaps: never silently, and never more than what is lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from maxbrod.backup.proof import plan_mending
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.rows import Gap, Segment, decode_rows
from maxbrod.cli.main import run as maxbrod
from maxbrod.config import Config
from maxbrod.model import MENDABLE, Codec, GapReason
from maxbrod.repair.report import Action
from maxbrod.repair.run import repair_archive
from maxbrod.work.work import Work
from support.histories import IDS, History, records, repaired
from support.sparkless import stay_without_spark

if TYPE_CHECKING:
    from maxbrod.notices import Notice


@pytest.fixture
def history(tmp_path: Path) -> History:
    history = History(str(tmp_path / "archive"))
    history.run({("orders", 0): [records(0, 10), records(10, 10)]})
    history.run({("orders", 0): [records(20, 10)], ("orders", 1): [records(0, 10)]}, packed=True)
    return history


def gaps(history: History) -> list[tuple[int, int, int, str]]:
    rows = decode_rows(history.open().catalog.rows())
    return [(row.partition, row.base_offset, row.end_offset, str(row.reason)) for row in rows if isinstance(row, Gap)]


def test_a_sound_archive_is_left_alone(history: History) -> None:
    version = history.open().catalog.version
    report = repaired(history.url, deep=True)
    assert (report.action, report.applied, report.exit_code) == (Action.NONE, False, 0)
    assert history.open().catalog.version == version


def test_a_lost_object_becomes_gaps_that_a_later_backup_reads_again(history: History) -> None:
    next((Path(history.url) / "packs").iterdir()).unlink()
    report = repaired(history.url)
    assert (report.action, report.exit_code, report.gaps) == (Action.TAKEN_OUT, 4, {"corrupt": 20})
    assert all(each.message.endswith(" is lost: the object is not there") for each in report.notices)
    assert gaps(history) == [(0, 20, 30, "corrupt"), (1, 0, 10, "corrupt")]
    assert {row.reason for row in history.open().catalog.gaps(MENDABLE)} == {GapReason.CORRUPT}
    assert plan_mending(history.open().catalog.gaps(MENDABLE), {}) == ()
    assert repaired(history.url).action is Action.NONE
    assert "repair" in [run.statistics.get("command") for run in history.open().catalog.runs()]


def test_without_apply_the_catalog_stays_as_it_is(history: History) -> None:
    next((Path(history.url) / "packs").iterdir()).unlink()
    report = repaired(history.url, apply=False)
    assert (report.action, report.applied, report.exit_code) == (Action.TAKEN_OUT, False, 4)
    assert gaps(history) == []


def test_whoever_only_looks_gets_every_notice_and_keeps_as_many_as_asked_for(history: History) -> None:
    next((Path(history.url) / "packs").iterdir()).unlink()
    everything = repaired(history.url, apply=False).notices
    told: list[Notice] = []
    config = Config.model_validate({"archive": history.url})
    with Work(config) as work:
        report = repair_archive(work, notices_max=1, on_notice=told.append)
    assert (len(everything), report.rows, report.partitions, report.exit_code) == (2, 2, 2, 4)
    assert (tuple(told), report.notices) == (everything, everything[:1])


def test_of_a_damaged_slice_the_sound_start_stays(history: History) -> None:
    before = history.holding()[f"orders-{IDS['orders']}-0"]
    segment = next((Path(history.url) / "segments").rglob("*.log"))
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    assert repaired(history.url).action is Action.NONE  # it exists, and is long enough
    report = repaired(history.url, deep=True)
    assert (report.action, report.salvaged_records) == (Action.TAKEN_OUT, 10)
    after = history.holding()[f"orders-{IDS['orders']}-0"]
    assert [row[:2] for row in after] == [(0, 10), (10, 20), (20, 30)]
    assert before[0][2].startswith(after[0][2])
    assert gaps(history) == [(0, 10, 20, "corrupt")]


def test_a_batch_that_is_larger_than_what_is_looked_into_is_neither_damage_nor_taken_out(
    history: History, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history.run({("orders", 0): [records(30, 2, value=bytes(1 << 20), codec=Codec.ZSTD)]})
    for module in ("batch.decode", "layouts.kafka.slices"):
        monkeypatch.setattr(f"maxbrod.{module}.DECOMPRESSED_BYTES_MAX", 1 << 20)
    version = history.open().catalog.version
    assert (repaired(history.url, deep=True).action, history.open().catalog.version) == (Action.NONE, version)
    monkeypatch.setenv("MAXBROD_CACHE", str(tmp_path / "cache"))
    stay_without_spark(monkeypatch)
    assert maxbrod(["check", "--deep", "-a", history.url]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "limit: orders-0 offsets [30, 32)" in text
    assert "a restore takes them as they are" in text
    assert "sound: " in text


def test_a_row_of_an_older_run_whose_object_is_lost_is_a_gap_as_of_that_run(history: History) -> None:
    history.run({("orders", 0): [records(30, 5, epoch=1), records(35, 5, epoch=1)]})
    older = history.run_id
    lost = next(
        row.path for row in decode_rows(history.open().catalog.rows(offsets=(30, 40))) if isinstance(row, Segment)
    )
    history.truncate("orders", 0, 35)
    history.run({("orders", 0): [records(35, 10, epoch=2)]})
    (Path(history.url) / str(lost)).unlink()
    assert repaired(history.url).action is Action.TAKEN_OUT
    assert gaps(history) == []
    then = history.holding(older)[f"orders-{IDS['orders']}-0"]
    assert then[-1] == (30, 40, "corrupt")


def test_a_commit_in_between_is_no_obstacle(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    next((Path(history.url) / "packs").iterdir()).unlink()
    commit = Catalog.commit
    beaten: list[bool] = []

    def late(self: Catalog, *arguments: object, **more: object) -> int:
        if not beaten:
            beaten.append(True)
            history.run({("orders", 0): [records(30, 5)]})
        return commit(self, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Catalog, "commit", late)
    assert repaired(history.url).gaps == {"corrupt": 20}
    assert history.holding()[f"orders-{IDS['orders']}-0"][-1][:2] == (30, 35)


def test_a_lost_snapshot_is_named_and_nothing_is_called_whole(history: History) -> None:
    lost = min((Path(history.url) / "snapshots").iterdir())
    lost.unlink()
    report = repaired(history.url)
    (notice,) = report.notices
    assert (report.action, report.applied, report.lost_snapshots, report.exit_code) == (Action.NONE, False, 1, 4)
    assert notice.message == f"snapshots/{lost.name} is lost: --as-of cannot name 1 run"
    next((Path(history.url) / "packs").iterdir()).unlink()
    assert [each.kind for each in repaired(history.url).notices] == ["corrupt", "corrupt", "snapshot"]
    assert replace(report, mended=True).exit_code == 4
