"""Objects that something else has deleted: found, given up only with consent, and no harm to everything else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from maxbrod.archive.holds import add_hold
from maxbrod.archive.undo import undo_prune
from maxbrod.check.run import check_archive
from maxbrod.cli.main import run
from support.prunable_archives import data, gaps, points, segments, years

if TYPE_CHECKING:
    import pytest

    from maxbrod.archive.archive import Archive
    from support.archives import Place

LOST = [data("orders", base, base + 10, age_days=0).path for base in (0, 10)]


def lifecycle_rule(archive: Archive) -> list[str]:
    """Deletes the oldest segments, a pack and snapshots, as a rule by age would."""
    gone = [*LOST, "packs/run-0-aa.log", "snapshots/run-0.json.zst", "snapshots/run-1.json.zst"]
    archive.storage.delete(gone)
    return gone


def told(capsys: pytest.CaptureFixture[str], place: Place, *words: str, exits: int = 0) -> str:
    capsys.readouterr()
    assert run(["check", *place.arguments, *words]) == exits
    return capsys.readouterr().out


def test_what_a_lifecycle_rule_deleted_becomes_a_gap_with_consent_and_comes_back(
    local_place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = years(local_place)
    kept = {path: bytes(archive.storage.get(path)) for path in (*LOST, "packs/run-0-aa.log")}
    snapshots = {
        f"snapshots/run-{n}.json.zst": bytes(archive.storage.get(f"snapshots/run-{n}.json.zst")) for n in (0, 1)
    }
    gone = lifecycle_rule(archive)
    assert "missing" in told(capsys, local_place, exits=4)
    version = local_place.open().catalog.version
    # Never silently.
    told(capsys, local_place, "--repair", exits=5)
    told(capsys, local_place, "--repair", "--json", exits=5)
    assert local_place.open().catalog.version == version

    said = told(capsys, local_place, "--repair", "--yes")
    assert all(path in said for path in gone)
    assert "whole" in said
    found = local_place.open()
    assert gaps(found, "orders")[0] == (0, 20, "pruned")
    assert gaps(found, "orders", 1) == [(0, 10, "pruned")]
    assert segments(found, "orders")[0] == (20, 30)
    assert len(points(found)) == 8
    assert json.loads(told(capsys, local_place, "--repair", "--json"))["verdict"] == "whole"

    for path, content in {**kept, **snapshots}.items():
        found.storage.put(path, content)
    assert undo_prune(found, apply=True).lost == ()
    assert segments(found, "orders")[0] == (0, 10)
    assert len(points(found)) == 10
    assert not check_archive(found).problems


def test_what_is_held_is_not_given_up(local_place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    archive = years(local_place)
    add_hold(archive, who="me", why="audit", topics=["orders"])
    lifecycle_rule(archive)
    told(capsys, local_place, "--repair", "--yes", exits=5)
    assert segments(local_place.open(), "orders")[0] == (0, 10)


def test_without_the_newest_snapshot_nothing_is_given_up(
    local_place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = years(local_place)
    archive.storage.delete(["snapshots/run-9.json.zst"])
    told(capsys, local_place, "--repair", "--yes", exits=5)
