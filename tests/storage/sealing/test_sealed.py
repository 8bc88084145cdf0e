"""The storage of an encrypted archive. What every storage promises is in `test_conformance`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pydantic import SecretStr

from maxbrod.config import EncryptionConfig, StorageConfig
from maxbrod.errors import CorruptDataError, RefusedError, UsageError
from maxbrod.storage.interface import SEAL, ByteRange, Storage
from maxbrod.storage.sealing import sealed as module
from maxbrod.storage.sealing.identity import Identity, new_identity, recipient_for_key
from maxbrod.storage.sealing.rings import add_recipient, remove_recipient, rotate
from maxbrod.storage.sealing.sealed import SealedStorage, find_ring, open_ring, put_ring
from maxbrod.storage.stores import encrypted, open_plain, open_storage

SEGMENT = "segments/orders/0/x.log"
OPS = new_identity()


def options(identity: Identity = OPS, *, public: bool = False) -> StorageConfig:
    if public:
        return StorageConfig(encryption=EncryptionConfig(public_keys=(identity.public_text,)))
    return StorageConfig(encryption=EncryptionConfig(secret_key=SecretStr(identity.private_text)))


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = str(tmp_path / "archive")
    encrypted(open_storage(url), options().encryption)
    return url


@pytest.fixture
def storage(url: str) -> Storage:
    return open_storage(url, options())


def test_no_object_holds_what_was_written(url: str, storage: Storage) -> None:
    storage.put("snapshots/x.json", b"SECRET" * 100)
    storage.replace("catalog/pointer", b"SECRET" * 100)
    with storage.create(SEGMENT) as writer:
        writer.write(b"SECRET" * 100_000)
    plain = open_plain(url, StorageConfig())
    for path in sorted(info.path for info in plain.list() if not info.path.startswith("keys/")):
        data = bytes(plain.get(path))
        assert "orders" not in path
        assert data.startswith(SEAL)
        assert b"SECRET" not in data


def test_a_public_key_writes_all_and_reads_all_but_records(url: str) -> None:
    writer = open_storage(url, options(public=True))
    writer.put(SEGMENT, b"records")
    writer.put("snapshots/x.json", b"state")
    assert bytes(writer.get("snapshots/x.json")) == b"state"
    reads: list[Callable[[], object]] = [lambda: writer.get(SEGMENT), lambda: writer.get_range(SEGMENT, 0, 2)]
    for read in reads:
        with pytest.raises(RefusedError, match="cannot read records") as caught:
            read()
        assert caught.value.object_name == writer.name_of(SEGMENT)
    assert bytes(open_storage(url, options()).get(SEGMENT)) == b"records"


def test_objects_that_were_exchanged_are_noticed(url: str, storage: Storage) -> None:
    storage.put("packs/a", b"a" * 70_000)
    storage.put("packs/b", b"b" * 70_000)
    plain = open_plain(url, StorageConfig())
    plain.replace("packs/a", plain.get("packs/b"))
    reads: list[Callable[[], object]] = [
        lambda: storage.get("packs/a"),
        lambda: storage.get_range("packs/a", 66_000, 10),
    ]
    for read in reads:
        with pytest.raises(CorruptDataError, match="exchanged") as caught:
            read()
        assert "packs/a" in (caught.value.object_name or "")


def test_a_plain_object_in_an_encrypted_archive_is_refused(url: str, storage: Storage) -> None:
    open_plain(url, StorageConfig()).put("snapshots/x.json", b'{"forged": true}' * 100)
    reads: list[Callable[[], object]] = [
        lambda: storage.get("snapshots/x.json"),
        lambda: storage.get_range("snapshots/x.json", 0, 3),
    ]
    for read in reads:
        with pytest.raises(CorruptDataError, match="somebody else wrote it"):
            read()


def test_a_schedule_from_before_the_archive_is_read(url: str, storage: Storage) -> None:
    open_plain(url, StorageConfig()).put(".maxbrod/schedule/jobs.json", b"{}")
    assert bytes(storage.get(".maxbrod/schedule/jobs.json")) == b"{}"


def test_an_object_of_the_same_name_is_read_anew(storage: Storage) -> None:
    storage.replace(SEGMENT, os.urandom(200_000))
    assert len(storage.get_range(SEGMENT, 150_000, 10)) == 10
    storage.replace(SEGMENT, b"short and other")
    assert bytes(storage.get_range(SEGMENT, 10, 5)) == b"other"


def test_a_range_read_reads_one_chunk_more_at_most(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_storage(url, options())
    assert isinstance(storage, SealedStorage)
    data = os.urandom(1_000_000)
    storage.put(SEGMENT, data)
    read: list[ByteRange] = []
    get_ranges = storage.base.get_ranges

    def noted(path: str, ranges: Sequence[ByteRange]) -> Sequence[memoryview]:
        read.extend(ranges)
        return get_ranges(path, ranges)

    monkeypatch.setattr(storage.base, "get_ranges", noted)
    assert bytes(storage.get_range(SEGMENT, 300_000, 100_000)) == data[300_000:400_000]
    assert sum(span.size for span in read if span.start) <= 100_000 + 2 * 65_536
    read.clear()
    assert bytes(storage.get_range(SEGMENT, 500_000, 1)) == data[500_000:500_001]
    assert [span.size for span in read] == [65_536]


def test_the_folder_of_keys_is_out_of_reach(storage: Storage) -> None:
    assert [info.path for info in storage.list()] == []
    for use in (storage.get, storage.head, lambda path: storage.put(path, b"x"), lambda path: storage.delete([path])):
        with pytest.raises(UsageError, match="keys of the archive"):
            use("keys/00000000000000000000.json")


def test_a_writer_that_runs_takes_new_keys(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, plain = open_storage(url, options()), open_plain(url, StorageConfig())
    storage.put("packs/before", b"1")
    ring = find_ring(plain)
    assert ring is not None
    rotated = rotate(open_ring(ring, options().encryption, name=""))
    put_ring(plain, rotated)
    monkeypatch.setattr(module, "_LOOK_EVERY_S", 0.0)
    storage.put("packs/after", b"2")
    assert bytes(plain.get("packs/before"))[8:16].hex() == ring.epoch.id
    assert bytes(plain.get("packs/after"))[8:16].hex() == rotated.epoch.id
    for path, data in (("packs/before", b"1"), ("packs/after", b"2")):
        assert bytes(storage.get(path)) == bytes(open_storage(url, options()).get(path)) == data


def test_a_reader_that_runs_reads_what_was_sealed_with_new_keys(url: str) -> None:
    reader, plain = open_storage(url, options()), open_plain(url, StorageConfig())
    ring = find_ring(plain)
    assert ring is not None
    put_ring(plain, rotate(open_ring(ring, options().encryption, name="")))
    open_storage(url, options()).put(SEGMENT, b"new")
    assert bytes(reader.get(SEGMENT)) == b"new"


def test_keys_that_were_set_back_are_noticed(url: str) -> None:
    plain = open_plain(url, StorageConfig())
    ring = find_ring(plain)
    assert ring is not None
    rotated = rotate(open_ring(ring, options().encryption, name=""))
    put_ring(plain, rotated)
    open_storage(url, options()).put(SEGMENT, b"new")
    plain.delete([rotated.path])
    with pytest.raises(RefusedError, match="keys that this archive does not name"):
        open_storage(url, options()).get(SEGMENT)


def test_of_two_changes_at_once_one_is_refused(url: str) -> None:
    plain = open_plain(url, StorageConfig())
    ring = find_ring(plain)
    assert ring is not None
    opened = open_ring(ring, options().encryption, name="")
    put_ring(plain, rotate(opened))
    with pytest.raises(RefusedError, match="somebody else has just changed"):
        put_ring(plain, rotate(opened))


def test_of_two_that_begin_an_archive_at_once_both_use_the_same_keys(tmp_path: Path) -> None:
    url = str(tmp_path / "new")
    first = encrypted(open_storage(url), options().encryption)
    second = encrypted(open_storage(url), options().encryption)
    first.put(SEGMENT, b"x")
    assert bytes(second.get(SEGMENT)) == b"x"
    stranger = new_identity()
    with pytest.raises(RefusedError, match=stranger.id):
        encrypted(open_storage(url), options(stranger).encryption)


def test_what_a_removed_key_had_opened_it_may_read_and_nothing_later(url: str) -> None:
    plain, leaver = open_plain(url, StorageConfig()), new_identity()
    ring = find_ring(plain)
    assert ring is not None
    keys = options().encryption
    put_ring(plain, add_recipient(open_ring(ring, keys, name=""), *recipient_for_key(leaver, "leaver")))
    held = open_storage(url, options(leaver))
    held.put("packs/before", b"1")
    added = find_ring(plain)
    assert added is not None
    put_ring(plain, remove_recipient(open_ring(added, keys, name=""), "leaver"))
    open_storage(url, options()).put("packs/after", b"2")
    assert bytes(held.get("packs/before")) == b"1"
    with pytest.raises(RefusedError):
        held.get("packs/after")
    with pytest.raises(RefusedError, match="none of the keys"):
        open_storage(url, options(leaver))
