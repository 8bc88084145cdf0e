"""Runs restores into log directories in this process, without Spark, and looks at the logs that they leave."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from maxbrod.batch.headers import walk
from maxbrod.cli.main import run
from maxbrod.config import Config
from maxbrod.errors import MaxbrodError
from maxbrod.restore.cold import run as engine
from maxbrod.restore.plan.request import RestoreRequest
from maxbrod.work.work import Work
from support.sparkless import without_spark

if TYPE_CHECKING:
    from pathlib import Path


def restore(source: Path, *directories: Path, **request: Any) -> dict[str, Any]:
    work = engine.ColdRestore(Work(Config(archive=str(source))), RestoreRequest(**request), directories)
    with without_spark():
        return work.run(work.plan()).as_dict()


def refused(source: Path, *directories: Path) -> MaxbrodError:
    """Nothing is changed by it."""
    before = [contents(each) for each in directories]
    with pytest.raises(MaxbrodError) as caught:
        restore(source, *directories)
    assert [contents(each) for each in directories] == before
    return caught.value


class Cold:
    """`maxbrod restore --to-logdir` with one archive and some directories."""

    def __init__(self, archive: object, *directories: Path) -> None:
        self._place = ["restore", "--archive", str(archive)]
        for each in directories:
            self._place += ["--to-logdir", str(each)]

    def __call__(self, capsys: pytest.CaptureFixture[str], *words: str, exits: int = 0) -> dict[str, Any]:
        with without_spark():
            code = run([*self._place, *words, "--json"])
        told = capsys.readouterr()
        assert code == exits, told
        document: dict[str, Any] = json.loads(told.out)
        return document


def log_of(folder: Path, first: int = 0, end: int | None = None) -> bytes:
    """A partition's log, all segments one after another; of its batches those in [first, end)."""
    data = b"".join(each.read_bytes() for each in sorted(folder.glob("*.log")))
    headers = walk(np.frombuffer(data, np.uint8))
    kept = headers["base_offset"] >= first
    if end is not None:
        kept &= headers.last_offset < end
    rows = np.flatnonzero(kept)
    return data[int(headers.position[rows[0]]) : int((headers.position + headers.size)[rows[-1]])] if rows.size else b""


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, by name."""
    return {
        str(each.relative_to(directory)): each.read_bytes()
        for each in sorted(directory.rglob("*"))
        if each.is_file() and not each.is_symlink()
    }
