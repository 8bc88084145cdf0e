"""`check` and `gc`: what they say and how they end."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from maxbrod.cli.main import run
from maxbrod.model import GapReason
from support.archives import Place, commit_run
from support.catalog_rows import gap, segment
from support.full_archive import fill

if TYPE_CHECKING:
    import pytest


ORPHAN = "packs/run-9-ff.log"


def test_a_whole_archive_ends_with_0(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    fill(place)
    assert run(["check", *place.arguments]) == 0
    assert "whole: every offset up to the end of the archive is archived or explained" in capsys.readouterr().out


def test_missing_objects_end_with_4_and_are_named(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    archive = fill(place)
    path = segment(0, 10).path
    archive.storage.delete([path])
    assert run(["check", *place.arguments]) == 4
    shown = capsys.readouterr().out
    assert f"missing: orders-0 offsets [0, 10) in {archive.storage.name_of(path)}: the object is not there" in shown
    assert run(["check", *place.arguments, "--json"]) == 4
    document = json.loads(capsys.readouterr().out)
    assert (document["exit_code"], document["problems"][0]["kind"]) == (4, "missing")


def test_unexplained_offsets_end_with_3(local_place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    archive = local_place.create()
    commit_run(archive, "run-1", [gap(0, 5, reason=GapReason.UNEXPLAINED), segment(5, 10)])
    assert run(["check", *local_place.arguments]) == 3
    assert "unexplained: orders-0 offsets [0, 5): not archived" in capsys.readouterr().out


def test_garbage_is_only_shown_unless_deletion_is_asked_for(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    archive = fill(place)
    archive.storage.put(ORPHAN, b"garbage")
    os.utime(place.folder / ORPHAN, (0, 0))
    assert run(["gc", *place.arguments]) == 0
    shown = capsys.readouterr().out
    assert ORPHAN in shown
    assert "nothing was changed; repeat with --delete" in shown
    assert archive.storage.head(ORPHAN).size == 7

    assert run(["gc", *place.arguments, "--delete", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["deleted"], document["bytes"], [each["path"] for each in document["objects"]]) == (
        True,
        7,
        [ORPHAN],
    )
    assert not [found for found in archive.storage.list("packs") if found.path == ORPHAN]
