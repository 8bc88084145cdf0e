"""A memory is one place for every process of a user, and for nobody else."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest

from maxbrod.catalog.catalog import Catalog
from maxbrod.config import StorageConfig
from maxbrod.errors import RefusedError
from maxbrod.storage import stores
from maxbrod.storage.stores import directory_of, open_storage
from maxbrod.storage.urls import parse_url
from support.storages import delta_table

if TYPE_CHECKING:
    from pathlib import Path

READ = (
    "import sys; from maxbrod.storage.stores import open_storage; print(open_storage(sys.argv[1]).get('x').tobytes())"
)


def test_a_memory_of_one_name_is_one_memory_in_every_process(memory_url: str) -> None:
    open_storage(memory_url).put("x", b"from here")
    assert [info.path for info in open_storage(memory_url).list()] == ["x"]
    assert list(open_storage(f"{memory_url}/another").list()) == []
    ran = subprocess.run([sys.executable, "-c", READ, memory_url], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "b'from here'"


def test_errors_call_it_by_its_url(memory_url: str) -> None:
    assert open_storage(f"{memory_url}/a").name_of("x") == f"{memory_url}/a/x"


def test_delta_opens_the_same_place(memory_url: str) -> None:
    Catalog.create(open_storage(memory_url))
    assert delta_table(memory_url, StorageConfig()).version() == 0
    assert any(info.path.startswith("catalog/segments/_delta_log/") for info in open_storage(memory_url).list())


def test_nobody_else_may_look_into_it(memory_url: str) -> None:
    open_storage(memory_url).put("x", b"x")
    assert directory_of(parse_url(memory_url)).parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("trap", ["open folder", "link", "file"])
def test_a_folder_that_others_could_reach_is_refused(
    trap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "_MEMORY_FILE_SYSTEM", tmp_path)
    folder = directory_of(parse_url("memory://x")).parent
    folder.rmdir()
    if trap == "open folder":
        folder.mkdir()
        folder.chmod(0o755)
    elif trap == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.touch(mode=0o700)
    with pytest.raises(RefusedError, match="not private to this user"):
        open_storage("memory://x")


def test_without_a_memory_file_system_the_temporary_folder_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "_MEMORY_FILE_SYSTEM", tmp_path / "none")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    open_storage("memory://x").put("y", b"y")
    assert [path.name for path in tmp_path.glob("maxbrod-memory-*/x/*") if path.is_file()] == ["y"]
