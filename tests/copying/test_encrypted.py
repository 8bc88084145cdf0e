"""A copy goes from a plain archive to an encrypted one and back, and from one key to another: the storages do it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.config import StorageConfig
from maxbrod.errors import RefusedError
from maxbrod.storage.local import LocalStorage
from maxbrod.storage.sealing.identity import create_key_files
from support.copies import copy, run_of_topics, three_topics
from support.native_archives import look

if TYPE_CHECKING:
    from pathlib import Path


def keyed(path: Path) -> StorageConfig:
    return StorageConfig.model_validate({"encryption": {"key_file": str(path)}})


@pytest.mark.parametrize("options", [{}, {"topics": ["a", "orders"]}], ids=["whole", "chosen"])
def test_a_copy_is_encrypted_for_the_keys_of_the_target(tmp_path: Path, options: dict[str, list[str]]) -> None:
    for name in ("one", "two"):
        create_key_files(tmp_path / name, name)
    making = three_topics(tmp_path / "a")
    to_one = {"to_storage": {"encryption.key_file": str(tmp_path / "one")}}
    for _ in range(2):
        report = copy(tmp_path / "a", tmp_path / "b", read_back=True, **to_one, **options)  # type: ignore[arg-type]
        assert report.exit_code == 0
        run_of_topics(making, {"c": 3 * (making.runs - 4)})
    wanted = {where: log for where, log in look(tmp_path / "a").logs.items() if where[0] in {"a", "orders"}}
    found = look(tmp_path / "b", keyed(tmp_path / "one")).logs
    assert {where: log for where, log in found.items() if where[0] in {"a", "orders"}} == wanted
    stored = b"".join(
        bytes(LocalStorage(tmp_path / "b").get(info.path)) for info in LocalStorage(tmp_path / "b").list()
    )
    assert b"orders" not in stored
    # From one key to another, and out of encryption.
    from_one = {"from_storage": {"encryption.key_file": str(tmp_path / "one")}}
    to_two = {"to_storage": {"encryption.key_file": str(tmp_path / "two")}}
    assert copy(tmp_path / "b", tmp_path / "c", **from_one, **to_two, **options).exit_code == 0  # type: ignore[arg-type]
    assert look(tmp_path / "c", keyed(tmp_path / "two")).logs == found
    assert copy(tmp_path / "b", tmp_path / "d", **from_one, **options).exit_code == 0  # type: ignore[arg-type]
    assert look(tmp_path / "d").logs == found


def test_a_plain_copy_is_not_continued_with_a_key(tmp_path: Path) -> None:
    create_key_files(tmp_path / "one", "one")
    three_topics(tmp_path / "a")
    copy(tmp_path / "a", tmp_path / "b")
    with pytest.raises(RefusedError, match="not encrypted"):
        copy(tmp_path / "a", tmp_path / "b", storage=keyed(tmp_path / "one"))
