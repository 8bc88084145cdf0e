"""What a command says of a place that it cannot use: each mistake by its name, with its exit code."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from maxbrod.cli.main import run
from maxbrod.errors import EXIT_CORRUPT, EXIT_FAILED, EXIT_USAGE
from maxbrod.storage import remote
from support.archives import Place, commit_run
from support.catalog_rows import segment

if TYPE_CHECKING:
    from pathlib import Path


LOOKING = (["ls"], ["ls", "--runs"], ["show", "orders"], ["check"], ["gc"])
BACKING_UP = ["backup", "--bootstrap", "127.0.0.1:1", "--patience", "1s"]


@pytest.fixture
def written(local_place: Place) -> Place:
    commit_run(local_place.create(), "20260101T000000-000001", [segment(0, 10)])
    return local_place


def test_every_verb_says_that_a_catalog_is_lost_and_none_makes_another(
    written: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(written.folder / "catalog")
    before = sorted(written.folder.rglob("*"))
    for verb in LOOKING:
        assert run([*verb, *written.arguments, "--json"]) == EXIT_CORRUPT, verb
        told = json.loads(capsys.readouterr().out)
        assert "the catalog of the archive is missing" in told["message"]
        assert "do not back up" in told["hint"]
        assert told["retryable"] is False
    assert run([*BACKING_UP, *written.arguments]) == EXIT_CORRUPT
    assert sorted(written.folder.rglob("*")) == before


def test_every_verb_names_the_damaged_object_of_a_catalog(written: Place, capsys: pytest.CaptureFixture[str]) -> None:
    (data,) = (written.folder / "catalog/segments").glob("*.parquet")
    data.write_bytes(data.read_bytes()[:-20])
    for verb in LOOKING:
        assert run([*verb, *written.arguments, "--json"]) == EXIT_CORRUPT, verb
        told = json.loads(capsys.readouterr().out)
        assert data.name in told["object_name"]


@pytest.mark.parametrize("url", ["s3//bad", "s3:/bad", "gs//bad", "C:\\bad"])
def test_a_url_with_a_slip_is_bad_usage_and_no_folder(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for verb in (*LOOKING, BACKING_UP):
        assert run([*verb, "--archive", url]) == EXIT_USAGE, verb
    assert not list(tmp_path.iterdir())


def test_whoever_looks_is_told_that_the_store_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(remote, "WARN_FIRST_S", 0.0)
    keys = {"access_key_id": "a", "secret_access_key": "b", "region": "r"}
    storage = {"s3": {"endpoint": "http://127.0.0.1:1", **keys}, "deadline_s": 0.5}
    config = tmp_path / "maxbrod.yaml"
    config.write_text(json.dumps({"archive": "s3://bucket/archive", "storage": storage}))
    assert run(["ls", "--config", str(config)]) == EXIT_FAILED
    assert "waiting for the store" in capsys.readouterr().err
    assert run(["ls", "--config", str(config), "--json"]) == EXIT_FAILED
    told = capsys.readouterr()
    assert "waiting for the store" not in told.err
    assert "127.0.0.1:1 refuses connections" in json.loads(told.out)["message"]
    assert json.loads(told.out)["retryable"] is True
