"""Erasure from an encrypted archive: as from any other, and a public key is refused before anything is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.config import Config
from maxbrod.erase.verb import erase_archive
from maxbrod.errors import RefusedError
from maxbrod.storage.sealing.identity import create_key_files
from maxbrod.work.work import Work
from support.keyed_archives import Keyed, batch, without_spark
from support.native_archives import TOPIC, Making
from support.table_archives import query

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.erase.report import EraseReport


def test_a_person_leaves_an_encrypted_archive_and_a_public_key_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_spark(monkeypatch)
    create_key_files(tmp_path / "ops.key", "ops")

    def config(key: str) -> Config:
        section = {"encryption": {"key_file": str(tmp_path / key)}}
        options = {"topics": [TOPIC], "keys": ["anne"]}
        return Config.model_validate({"archive": str(tmp_path / "archive"), "storage": section, "erase": options})

    def erase(key: str) -> EraseReport:
        with Work(config(key)) as work:
            return erase_archive(work)

    making = Making(str(tmp_path / "archive"), storage=config("ops.key").storage)
    Keyed(making).backup({0: [batch(0, (b"anne", b"1"), (b"ben", b"1"))]})
    before = sorted(path for path in (tmp_path / "archive").rglob("*") if path.is_file())
    with pytest.raises(RefusedError, match="cannot read records"):
        erase("ops.key.pub")
    assert sorted(path for path in (tmp_path / "archive").rglob("*") if path.is_file()) == before
    report = erase("ops.key")
    assert (report.exit_code, report.records, report.deleted, report.found_again) == (0, 1, 1, 0)
    monkeypatch.setenv("MAXBROD_KEY_FILE", str(tmp_path / "ops.key"))
    assert [row["key"] for row in query(tmp_path / "archive")] == [b"ben"]
