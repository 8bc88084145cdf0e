"""`maxbrod status` under failure: nothing looks better than it is."""

from __future__ import annotations

import json
import os
import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from maxbrod.archive.archive import PROOFS_KEPT, Proof, ProofKind, last_proof, open_archive, read_proofs, record_proof
from maxbrod.catalog.catalog import Catalog
from maxbrod.cli.main import run
from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, EXIT_FAILED, EXIT_INCOMPLETE, EXIT_USAGE
from maxbrod.inspect.status import gather
from support.archives import Place, commit_run
from support.catalog_rows import segment
from support.full_archive import fill

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from maxbrod.sandbox.s3 import S3Server


def looked(place: Place, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = run(["status", *place.arguments, "--json", *more])
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == code
    return code, {each["name"]: each for each in document["archives"][0]["promises"]}


def proof(kind: ProofKind = ProofKind.DEEP_CHECK, at: int = 1_800_000_000_000, **details: Any) -> Proof:
    return Proof(kind=kind, verdict="sound", sound=True, started_at_ms=at, finished_at_ms=at, details=details)


def test_a_check_is_remembered_in_the_archive_and_shown(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    archive = fill(place)
    assert looked(place, capsys)[1]["deep check"]["state"] == "WARN"
    assert run(["check", *place.arguments]) == EXIT_DONE
    (kept,) = read_proofs(archive.storage)
    assert (kept.kind, kept.sound) == (ProofKind.QUICK_CHECK, True)
    assert looked(place, capsys)[1]["deep check"]["state"] == "WARN", "a quick check reads no object"
    assert record_proof(archive.storage, proof(at=kept.finished_at_ms)) is None
    assert looked(place, capsys)[1]["deep check"]["state"] == "OK"
    # A check of some topics proves nothing about the archive.
    assert run(["check", *place.arguments, "orders"]) == EXIT_DONE
    assert len(read_proofs(archive.storage)) == 2


def test_a_deleted_segment_fails_at_once(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    archive = fill(place)
    archive.storage.delete([segment(0, 10).path])
    code, promises = looked(place, capsys)
    assert code == EXIT_CORRUPT
    assert promises["objects"]["state"] == "FAILED"
    assert "missing: orders-0 offsets [0, 10) in " in promises["objects"]["text"]
    assert run(["status", *place.arguments]) == EXIT_CORRUPT
    assert "FAILED  objects: missing: orders-0" in capsys.readouterr().out


def test_segments_that_a_compaction_can_merge_are_counted_from_rows(local_place: Place) -> None:
    archive = local_place.create()
    large, hour = 1 << 28, 3_600_000
    rows = [segment(each, each + 1, partition=0, bytes=large) for each in range(10)]
    rows += [segment(each, each + 1, partition=1, bytes=large) for each in range(9)]
    rows += [segment(each, each + 1, partition=2, bytes=1) for each in range(10)]
    rows += [segment(each, each + 1, partition=3, bytes=large, level=1) for each in range(10)]
    archive.catalog.commit(rows)
    written_at = rows[0].written_at

    def count(clock_ms: int) -> tuple[int, int]:
        found = gather(open_archive(archive.url), clock_ms).to_compact
        return found.segments, found.partitions

    # Too few, too small and compacted ones do not count, and neither do young ones.
    assert count(written_at + hour) == (10, 1)
    assert count(written_at + hour - 1) == (0, 0)


def test_every_row_is_read_once(local_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = fill(local_place)
    calls: list[object] = []
    portions = Catalog.portions

    def counted(self: Catalog, *columns: Any, **conditions: Any) -> Iterator[Any]:
        calls.append(columns)
        return portions(self, *columns, **conditions)

    monkeypatch.setattr(Catalog, "portions", counted)
    facts = gather(archive, 1_700_000_300_000)
    assert (facts.segments, facts.records) == (5, 37)
    assert len(calls) == 1


def test_a_backup_that_failed_is_not_ok(local_place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    archive = local_place.create()
    ended = {"command": "backup", "exit_code": EXIT_FAILED, "findings": ["the disk is full"]}
    commit_run(archive, "run-1", [segment(0, 10)], statistics=ended)
    code, promises = looked(local_place, capsys)
    assert code == EXIT_INCOMPLETE
    assert promises["backup"]["state"] == "FAILED"
    assert "the disk is full" in promises["backup"]["text"]
    assert promises["recovery point"]["state"] == "FAILED"


def test_an_archive_that_cannot_be_read_fails_and_hides_no_other(
    local_place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(local_place)
    log = min((local_place.folder / "catalog" / "segments" / "_delta_log").glob("*.json"))
    log.write_bytes(b"{")
    missing = str(tmp_path / "nothing")
    code = run(["status", missing, *local_place.arguments, "--json"])
    found = json.loads(capsys.readouterr().out)["archives"]
    assert code == EXIT_CORRUPT
    assert [(len(each["promises"]), each["promises"][0]["state"]) for each in found] == [(1, "FAILED")] * 2
    assert [each["exit_code"] for each in found] == [EXIT_CORRUPT, EXIT_USAGE]


def test_no_archive_and_a_price_that_is_none_are_usage_errors(
    local_place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["status"]) == EXIT_USAGE
    assert "no archive is named" in capsys.readouterr().err
    fill(local_place)
    assert run(["status", *local_place.arguments, "--price", "cheap"]) == EXIT_USAGE


def test_only_the_newest_proofs_of_each_kind_are_kept_and_unreadable_ones_prove_nothing(local_place: Place) -> None:
    storage = fill(local_place).storage
    for number in range(PROOFS_KEPT + 3):
        assert record_proof(storage, proof(at=1_800_000_000_000 + number)) is None
    assert record_proof(storage, proof(ProofKind.DRILL)) is None
    storage.put("proofs/9999999999999-deep-check-ffffffff.json", b'{"kind": "deep-check"}')
    found = read_proofs(storage)
    assert len([each for each in found if each.kind is ProofKind.DEEP_CHECK]) == PROOFS_KEPT
    newest = last_proof(found, ProofKind.DEEP_CHECK)
    assert newest is not None
    assert newest.finished_at_ms == 1_800_000_000_000 + PROOFS_KEPT + 2
    assert last_proof(found, ProofKind.QUICK_CHECK) is None


def test_a_check_that_may_not_write_still_checks_and_says_that_it_is_not_recorded(
    local_place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(local_place)
    (local_place.folder / "proofs").write_text("a file is in the way of the folder")
    os.utime(local_place.folder / "proofs", (0, 0))
    assert run(["check", *local_place.arguments]) == EXIT_DONE
    assert "not recorded for 'maxbrod status'" in capsys.readouterr().out


def test_a_full_disk_is_told_though_the_last_backup_was_complete(
    local_place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_run(
        local_place.create(), "run-1", [segment(0, 10)], statistics={"command": "backup", "exit_code": EXIT_DONE}
    )
    assert looked(local_place, capsys)[1]["room"]["state"] == "OK"
    total, used, _ = shutil.disk_usage(local_place.folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=total, used=used, free=4096))
    code, promises = looked(local_place, capsys)
    assert code != EXIT_DONE
    assert (promises["backup"]["state"], promises["room"]["state"]) == ("OK", "FAILED")
    assert "full" in promises["room"]["text"]


def test_a_store_that_has_died_fails_and_says_where(
    s3: S3Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = s3.store_options()
    config = tmp_path / "c.yaml"
    keys = "".join(
        f"    {name}: {options[name]}\n" for name in ("endpoint", "region", "access_key_id", "secret_access_key")
    )
    config.write_text(f"archive: s3://{options['bucket']}/a\nstorage:\n  deadline_s: 0\n  s3:\n{keys}")
    s3.close()
    assert run(["status", "-c", str(config), "--json"]) == EXIT_FAILED
    (archive,) = json.loads(capsys.readouterr().out)["archives"]
    (promise,) = archive["promises"]
    assert (promise["name"], promise["state"]) == ("archive", "FAILED")
    assert options["endpoint"].partition("://")[2] in promise["text"]


def test_a_follow_that_has_stopped_is_never_ok(local_place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    fill(local_place)
    code, promises = looked(local_place, capsys, "--recovery-point", "1s", "--strict")
    # Its last run was complete, and long ago: a stopped follow looks so, and so does a cluster without news.
    assert promises["recovery point"]["state"] in {"WARN", "FAILED"}
    assert "metrics of --follow" in (promises["recovery point"]["hint"] or "") or code
    assert code == EXIT_INCOMPLETE


def test_a_problem_without_a_place_is_named_without_an_empty_one(
    local_place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    local_place.create()
    _, promises = looked(local_place, capsys)
    assert promises["offsets"]["text"] == "empty: no run has stored anything here"
