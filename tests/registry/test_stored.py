"""A captured registry in an archive: only what changed is stored, and damage is noticed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from maxbrod.config import StorageConfig
from maxbrod.errors import CorruptDataError
from maxbrod.registry.model import RegistryState, SubjectVersion, decode_registry, encode_registry
from maxbrod.registry.stored import read_stored, store
from maxbrod.storage.interface import Storage
from maxbrod.storage.stores import open_storage
from support.registries import serving
from support.registry_states import captured, filled


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "archive"), StorageConfig())


def state_of(count: int) -> RegistryState:
    versions = [
        SubjectVersion(subject=f"topic-{number}-value", version=1, id=number, schema=f'"text {number}"' * 10)
        for number in range(1, count + 1)
    ]
    return RegistryState(versions={version.place: version for version in versions}, modes={"": "READWRITE"})


def test_a_registry_comes_out_of_an_archive_as_it_went_in(storage: Storage) -> None:
    with serving(filled()) as double:
        state = captured(double)
    assert decode_registry(encode_registry(state)) == state
    stored = store(storage, "run-1", state, None)
    assert read_stored(storage, stored.path).state == state


def test_a_run_stores_only_what_changed_and_nothing_if_nothing_did(storage: Storage) -> None:
    stored = store(storage, "run-0", state_of(500), None)
    assert store(storage, "run-same", state_of(500), stored) is stored
    states = {}
    for number in range(1, 30):
        states[number] = state_of(500 + number)
        stored = store(storage, f"run-{number}", states[number], read_stored(storage, stored.path))
    sizes = {info.path: info.size for info in storage.list("registry")}
    assert len(sizes) == 30
    whole = [path for path, size in sizes.items() if size > sizes["registry/run-0.json.zst"] / 2]
    assert len(whole) == 2, "a whole document comes again before too many must be read for one"
    for number, state in states.items():
        assert read_stored(storage, f"registry/run-{number}.json.zst").state == state


def test_what_is_deleted_or_set_is_a_change_too(storage: Storage) -> None:
    first = state_of(50)
    stored = store(storage, "run-1", first, None)
    gone = replace(first.versions["topic-7-value", 1], deleted=True)
    second = replace(
        first, versions={**first.versions, gone.place: gone}, configs={"x": {"compatibilityLevel": "NONE"}}
    )
    changed = store(storage, "run-2", second, stored)
    assert read_stored(storage, changed.path).state == second
    assert read_stored(storage, stored.path).state == first


def test_a_damaged_document_is_an_error_that_names_it(storage: Storage, tmp_path: Path) -> None:
    stored = store(storage, "run-1", state_of(5), None)
    path = tmp_path / "archive" / stored.path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    with pytest.raises(CorruptDataError, match=r"damaged") as told:
        read_stored(storage, stored.path)
    assert stored.path in (told.value.object_name or "")
