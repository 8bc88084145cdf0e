"""An archive survives the loss of its catalog: what could be read before can be read after, at the same offsets."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from maxbrod.catalog.rows import Gap, Segment, decode_rows
from maxbrod.cli.main import run as command
from maxbrod.errors import CorruptDataError, UsageError
from maxbrod.model import GapReason, PartitionId
from maxbrod.repair.report import Action
from support.histories import IDS, History, in_transaction, lose, marker, records, repaired
from support.native_archives import compact, without_spark


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(str(tmp_path / "archive"))


def eventful(history: History) -> History:
    """Segments, packs, frames, gaps, transactions across segments, a truncation, and leftovers of a killed run."""
    history.run({("orders", 0): [records(0, 10), records(10, 10)], ("orders", 1): [records(5, 5)]}, segment_bytes=1)
    history.run({("orders", 0): [records(20, 5)], ("state", 0): [records(0, 3), records(2000, 3)]}, packed=True)
    history.run({("orders", 1): [records(30, 5)]}, log_starts={PartitionId(topic_id=IDS["orders"], partition=1): 30})
    history.run({("orders", 1): [in_transaction(35, 3, 7)]})
    history.run({("orders", 1): [records(38, 2), marker(40, 7, 0)]}, aborted=((7, 35),))
    history.run({("orders", 0): [records(25, 50, value=b"a" * 200)]}, mode="zstd")
    history.write({("orders", 0): [records(75, 5)]})
    history.run({("orders", 0): [records(75, 5, epoch=3), records(80, 20, epoch=3)]})
    history.truncate("orders", 0, 80)
    history.run({("orders", 0): [records(80, 40, epoch=5)]})
    return history


def test_a_lost_catalog_is_rebuilt_from_the_objects_alone(history: History) -> None:
    before = eventful(history).state()
    # The row that the aborted transaction began in cannot know of it before its marker is archived.
    lose(history.url, "catalog")
    with pytest.raises(CorruptDataError, match="the catalog of the archive is missing") as lost:
        history.open()
    assert "maxbrod repair" in (lost.value.hint or "")

    report = repaired(history.url)

    assert (report.action, report.applied, report.exit_code) == (Action.REBUILT, True, 0), report.notices
    after = history.state()
    spread = f"orders-{IDS['orders']}-1"
    for seen in (before, after):
        for view in seen.values():
            if isinstance(view, dict) and spread in view:
                view[spread] = [row[:3] for row in view[spread]]
    assert after == before


def parts(url: str) -> list[str]:
    return sorted(str(each.relative_to(url)) for each in (Path(url) / "catalog").rglob("*") if each.is_file())


@pytest.mark.full
def test_after_the_loss_of_any_single_part_of_the_catalog_everything_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maxbrod.catalog.catalog._CHECKPOINT_EVERY", 5)
    history = eventful(History(str(tmp_path / "archive")))
    before, lost = history.state(), []
    for number, name in enumerate(parts(history.url)):
        url = str(tmp_path / f"without-{number}")
        shutil.copytree(history.url, url)
        lose(url, name)
        damaged = History.__new__(History)
        damaged.url = url
        report = repaired(url)
        assert report.exit_code == 0, (name, report)
        assert damaged.state() == before, name
        lost.append((name, report.action))
    assert repaired(url).action is Action.NONE
    assert {action for _, action in lost} == {Action.NONE, Action.REBUILT}
    # Without the pointer to the checkpoint nothing is lost, for the log is listed.
    assert dict(lost)["catalog/segments/_delta_log/_last_checkpoint"] is Action.NONE


def test_each_damaged_entry_of_the_log_is_corruption_that_is_named_and_has_a_way_out(history: History) -> None:
    history.run({("orders", 0): [records(0, 10)]})
    history.run({("orders", 0): [records(10, 10)]})
    before = history.state()
    entry = Path(history.url) / "catalog/segments/_delta_log/00000000000000000002.json"
    whole = entry.read_bytes()
    for at in range(0, len(whole), 41):
        entry.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        if at < whole.index(b"\n"):
            # Only what nobody reads may change unnoticed: Delta's own notes about the commit.
            with suppress(CorruptDataError):
                assert history.state() == before
            continue
        with pytest.raises(CorruptDataError, match=r"00000000000000000002\.json") as damaged:
            history.open()
        assert damaged.value.exit_code == 4
        assert "maxbrod repair" in (damaged.value.hint or "")
    report = repaired(history.url)
    assert report.action is Action.REBUILT
    assert history.state() == before


def test_a_repair_changes_nothing_without_being_told_to(history: History) -> None:
    history.run({("orders", 0): [records(0, 10)]})
    lose(history.url, "catalog")
    before = sorted(Path(history.url).rglob("*"))
    report = repaired(history.url, apply=False)
    assert (report.action, report.applied, report.exit_code) == (Action.REBUILT, False, 4)
    assert sorted(Path(history.url).rglob("*")) == before


def test_the_old_catalog_is_kept_aside(history: History) -> None:
    history.run({("orders", 0): [records(0, 10)]})
    lose(history.url, "catalog/segments/_delta_log/00000000000000000001.json")
    (Path(history.url) / "catalog/segments/_delta_log/00000000000000000002.json").write_bytes(b"{}")
    left = {name: (Path(history.url) / name).read_bytes() for name in parts(history.url)}
    report = repaired(history.url)
    assert report.kept_aside is not None
    for name, data in left.items():
        assert (Path(history.url) / report.kept_aside / name.removeprefix("catalog/")).read_bytes() == data


def test_a_rebuilt_catalog_goes_on_with_later_versions_than_any_run_had(history: History) -> None:
    for base in range(0, 50, 10):
        history.run({("orders", 0): [records(base, 10)]})
    lose(history.url, "catalog")
    repaired(history.url)
    history.run({("orders", 0): [records(50, 10)]})
    runs = [run.run_id for run in history.open().catalog.runs()]
    assert runs == [*sorted(runs[:5]), runs[5], history.run_id]
    assert repaired(history.url).action is Action.NONE


def test_a_hole_that_nothing_explains_is_said_and_left_to_the_next_backup(history: History) -> None:
    history.run({("orders", 0): [records(0, 10)]})
    history.run({("orders", 0): [records(10, 10)]})
    history.run({("orders", 0): [records(20, 10)]})
    lose(history.url, "catalog")
    for path in (Path(history.url) / "segments").rglob("00000000000000000010-*"):
        path.unlink()
    report = repaired(history.url)
    assert report.exit_code == 3
    assert [(each.kind, each.first_offset, each.end_offset) for each in report.notices] == [("unexplained", 10, 20)]
    gaps = [row for row in decode_rows(history.open().catalog.rows()) if isinstance(row, Gap)]
    assert [(row.base_offset, row.end_offset, row.reason) for row in gaps] == [(10, 20, GapReason.UNEXPLAINED)]


def test_the_first_segment_is_missed_as_well(history: History) -> None:
    history.run({("orders", 0): [records(0, 10)]})
    history.run({("orders", 0): [records(10, 10)]})
    lose(history.url, "catalog")
    next((Path(history.url) / "segments").rglob("00000000000000000000-*")).unlink()
    assert repaired(history.url).gaps == {"unexplained": 10}


def test_leftovers_of_a_killed_run_are_taken_only_where_they_follow_the_archive(history: History) -> None:
    history.run({("orders", 0): [records(0, 10)]})
    history.write({("orders", 0): [records(10, 5)]})
    history.write({("orders", 0): [records(20, 5)]})
    lose(history.url, "catalog")
    report = repaired(history.url)
    rows = history.holding()[f"orders-{IDS['orders']}-0"]
    assert [row[:2] for row in rows] == [(0, 10), (10, 15)]
    assert report.unnamed_slices == 1


def test_of_two_histories_of_a_log_the_one_with_the_younger_leader_epoch_is_the_archive(history: History) -> None:
    history.run({("orders", 0): [records(0, 10, epoch=1)]})
    history.write({("orders", 0): [records(10, 30, epoch=1, value=b"lost")]})
    history.run({("orders", 0): [records(10, 5, epoch=2)]})
    lose(history.url, "catalog")
    report = repaired(history.url)
    rows = history.holding()[f"orders-{IDS['orders']}-0"]
    assert [row[:2] for row in rows] == [(0, 10), (10, 15)]
    assert b"lost" not in rows[1][2]
    assert (report.exit_code, report.unnamed_slices) == (0, 1)


def test_a_pack_without_its_end_is_recognised_and_never_guessed_at(history: History) -> None:
    history.run({("orders", 0): [records(0, 10)], ("orders", 1): [records(0, 10)]}, packed=True)
    lose(history.url, "catalog")
    pack = next((Path(history.url) / "packs").iterdir())
    pack.write_bytes(pack.read_bytes()[:-1])
    report = repaired(history.url)
    assert report.exit_code == 4
    assert [each.kind for each in report.notices] == ["unknown object", "unexplained", "unexplained"]
    assert report.gaps == {"unexplained": 20}


def test_what_remains_of_the_old_catalog_tells_of_packs_of_older_releases(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maxbrod.layouts.kafka.writer.has_contents", lambda _: False)
    history.run({("orders", 0): [records(0, 10)], ("orders", 1): [records(0, 10)]}, packed=True)
    before = history.state()
    lose(history.url, "catalog/segments/_delta_log")
    assert repaired(history.url).exit_code == 0
    assert history.state() == before


def test_damaged_bytes_become_a_gap_and_the_sound_batches_around_them_stay(history: History) -> None:
    history.run({("orders", 0): [records(base, 10) for base in range(0, 50, 10)]})
    lose(history.url, "catalog")
    segment = next((Path(history.url) / "segments").rglob("*.log"))
    data = bytearray(segment.read_bytes())
    data[2 * len(data) // 5 + 80] ^= 1
    segment.write_bytes(data)
    report = repaired(history.url)
    assert (report.exit_code, report.gaps) == (4, {"corrupt": 10})
    rows = history.holding()[f"orders-{IDS['orders']}-0"]
    assert [row[:2] for row in rows] == [(0, 20), (20, 30), (30, 50)]
    assert rows[1][2] == "corrupt"


def test_the_sound_start_of_a_damaged_slice_in_frames_is_copied(history: History) -> None:
    noise = b"".join(number.to_bytes(4, "big") for number in range(100_000))
    batches = [records(base, 2, value=noise) for base in range(0, 20, 2)]
    history.run({("orders", 0): batches}, mode="zstd")
    lose(history.url, "catalog")
    segment = next((Path(history.url) / "segments").rglob("*.log.zst"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    report = repaired(history.url)
    assert report.exit_code == 4
    assert report.salvaged_records > 0
    first, gap = history.holding()[f"orders-{IDS['orders']}-0"]
    assert (first[0], gap[1], gap[2]) == (0, 20, "corrupt")
    assert first[1] == gap[0] == report.salvaged_records


def test_there_must_be_an_archive(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no archive"):
        repaired(str(tmp_path / "nothing"))


def test_an_aborted_transaction_across_plain_segments_and_packs_stays_aborted(history: History) -> None:
    history.run({("orders", 0): [in_transaction(0, 3, 7), in_transaction(3, 3, 8)]})
    history.run({("orders", 0): [records(6, 3)]}, packed=True)
    history.run({("orders", 0): [marker(9, 7, 0), marker(10, 8, 1)]}, packed=True, aborted=((7, 0),))
    history.run({("orders", 0): [in_transaction(11, 3, 8), marker(14, 8, 0)]}, aborted=((8, 11),))
    lose(history.url, "catalog")
    assert repaired(history.url).exit_code == 0
    rows = [row for row in decode_rows(history.open().catalog.rows()) if isinstance(row, Segment)]
    hidden = {(each.producer_id, each.first_offset) for row in rows for each in row.aborted}
    assert {(each.producer_id, each.first_offset) for each in rows[0].aborted} == {(7, 0)}
    assert hidden == {(7, 0), (8, 11)}


def test_a_compacted_archive_comes_back_with_its_levels_and_codecs(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = b"".join(number.to_bytes(4, "big") for number in range(500))
    for base in range(0, 40, 10):
        batches = [records(base, 5, epoch=base // 10, value=noise), records(base + 5, 5, epoch=base // 10 + 1)]
        history.run({("orders", 0): batches, ("state", 0): [records(base, 10, epoch=2)]}, mode="zstd")
    without_spark(monkeypatch)
    compact(history.url)

    def rows() -> list[Segment]:
        found = [row for row in decode_rows(history.open().catalog.rows()) if isinstance(row, Segment)]
        return [replace(row, written_at=0) for row in found]

    before, state = rows(), history.state()
    assert {row.level for row in before} == {1}
    assert len(before) < 8
    for objects in ("with what was merged", "without it"):
        lose(history.url, "catalog")
        assert repaired(history.url).exit_code == 0
        assert rows() == before, objects
        assert history.state() == state
        named = {row.path for row in before}
        for path in (*Path(history.url).glob("segments/**/*.log*"), *Path(history.url).glob("packs/*")):
            if str(path.relative_to(history.url)) not in named:
                path.unlink()


def pruned(history: History) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state of an archive before and after a prune whose objects still exist."""
    for base in range(0, 40, 10):
        history.run({("orders", 0): [records(base, 10)], ("orders", 1): [records(base, 10)]}, packed=base % 20 == 0)
    before = history.state()
    assert command(["prune", "-a", history.url, "--topic-bytes", "0", "--apply"]) == 0
    after = history.state()
    assert after["now"][f"orders-{IDS['orders']}-0"][0] == (0, 30, "pruned")
    return before, after


def test_what_was_pruned_stays_away_without_the_catalog_and_can_still_be_undone(history: History) -> None:
    before, after = pruned(history)
    lose(history.url, "catalog")
    report = repaired(history.url)
    # Nothing tells whether the prune was committed: that is said.
    assert (report.exit_code, [each.kind for each in report.notices]) == (3, ["pruned"])
    assert history.state() == after
    assert command(["prune", "-a", history.url, "--undo", "--apply"]) == 0
    assert history.state() == before


def test_what_was_pruned_stays_away_if_a_part_of_the_catalog_is_lost(history: History) -> None:
    _, after = pruned(history)
    entry = sorted((Path(history.url) / "catalog/segments/_delta_log").glob("*.json"))[2]
    entry.write_bytes(b"{")
    for left in ("the document", "rows"):
        report = repaired(history.url, rebuild=True)
        assert (report.exit_code, history.state()) == (0, after), left
        shutil.rmtree(Path(history.url) / "prunes", ignore_errors=True)


def test_what_a_prune_took_and_an_undo_brought_back_is_rebuilt(history: History) -> None:
    before, _ = pruned(history)
    assert command(["prune", "-a", history.url, "--undo", "--apply"]) == 0
    lose(history.url, "catalog")
    assert repaired(history.url).exit_code == 0
    assert history.state() == before


def test_a_run_that_only_the_catalog_recorded_is_missed_by_name(history: History) -> None:
    history.run({("orders", 0): [records(0, 10)]}, packed=True)
    history.run({("orders", 0): [records(10, 10)]}, packed=True, snapshot=False)
    lose(history.url, "catalog")
    report = repaired(history.url)
    (notice,) = report.notices
    assert (report.exit_code, notice.kind) == (3, "run")
    assert f"run {history.run_id} is lost" in notice.message
    assert [row[:2] for row in history.holding()[f"orders-{IDS['orders']}-0"]] == [(0, 10), (10, 20)]


def test_a_run_whose_entry_of_the_log_is_damaged_is_missed_by_name(history: History) -> None:
    history.run({("orders", 0): [records(0, 10)]})
    assert command(["hold", "add", "-a", history.url, "--topic", "orders", "--why", "audit"]) == 0
    run = history.open().catalog.runs()[-1]
    max((Path(history.url) / "catalog/segments/_delta_log").glob("*.json")).write_bytes(b"{")
    report = repaired(history.url)
    assert any(f"whether run {run.run_id} was committed" in each for each in report.unknown)
    assert run.run_id not in {each.run_id for each in history.open().catalog.runs()}
