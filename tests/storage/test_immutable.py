"""Objects that nobody changes: a writer that only creates, one that may not delete, and locked objects."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from maxbrod.config import StorageConfig
from maxbrod.errors import ForbiddenError, ObjectExistsError, ObjectNotFoundError, RefusedError, UsageError
from maxbrod.model import now_ms
from maxbrod.sandbox.proxy.faults import CutRequest, HttpMatch, LoseAnswer
from maxbrod.sandbox.s3 import S3Server
from maxbrod.storage.interface import Storage
from maxbrod.storage.stores import open_bucket, open_storage, probe_conditional_puts
from maxbrod.storage.uploads import PART_BYTES
from support.immutable_s3 import CreateOnlyS3, LockingS3Server, VersionedS3Server
from support.storages import s3_options

LARGE = os.urandom(PART_BYTES) * 2 + b"end"
DAY_MS = 24 * 3600 * 1000
READ_WRITE = ("s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload")


def write(storage: Storage, path: str, data: bytes) -> None:
    with storage.create(path) as writer:
        for start in range(0, len(data), 3_000_000):
            writer.write(data[start : start + 3_000_000])


def test_a_writer_that_may_only_create_writes_small_and_large_objects(create_only_s3: CreateOnlyS3) -> None:
    storage = open_storage(create_only_s3.url, create_only_s3.config(create_only=True))
    storage.put("small", b"x")
    write(storage, "large", LARGE)
    assert create_only_s3.refused() == 0
    direct = open_storage(create_only_s3.url, create_only_s3.config())
    assert bytes(direct.get("large")) == LARGE


def test_without_the_option_the_same_server_refuses_a_large_object(create_only_s3: CreateOnlyS3) -> None:
    with pytest.raises(ForbiddenError):
        write(open_storage(create_only_s3.url, create_only_s3.config()), "large", LARGE)


def test_the_end_of_an_upload_never_overwrites_an_object(create_only_s3: CreateOnlyS3) -> None:
    storage = open_storage(create_only_s3.url, create_only_s3.config(create_only=True))
    writer = storage.create("large")
    writer.write(LARGE)
    storage.put("large", b"another writer was faster")
    with pytest.raises(ObjectExistsError):
        writer.commit()
    writer.abort()
    assert bytes(storage.get("large")) == b"another writer was faster"


def test_of_two_uploads_to_one_name_exactly_one_succeeds(create_only_s3: CreateOnlyS3) -> None:
    storage = open_storage(create_only_s3.url, create_only_s3.config(create_only=True))
    bodies = [bytes([number]) * (2 * PART_BYTES) for number in range(2)]
    writers = [storage.create("same"), storage.create("same")]
    for writer, body in zip(writers, bodies, strict=True):
        writer.write(body)

    def commit(number: int) -> bool:
        try:
            writers[number].commit()
        except ObjectExistsError:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        won = list(pool.map(commit, range(2)))
    assert sorted(won) == [False, True]
    assert bytes(storage.get("same")) == bodies[won.index(True)]


@pytest.mark.parametrize("part", ["uploads", "partNumber=2", "uploadId=[^&]*$"])
@pytest.mark.parametrize("kind", [LoseAnswer, CutRequest])
def test_an_upload_survives_lost_answers_and_cut_requests(
    create_only_s3: CreateOnlyS3, part: str, kind: type[LoseAnswer | CutRequest]
) -> None:
    storage = open_storage(create_only_s3.url, create_only_s3.config(create_only=True, request_timeout_s=5))
    fault = kind(on=HttpMatch(path=part), times=1)
    with create_only_s3.proxy.fault(fault):
        write(storage, "large", LARGE)
    assert create_only_s3.proxy.fired[fault] == 1
    assert bytes(storage.get("large")) == LARGE


@pytest.mark.parametrize("place", ["s3", "directory"])
def test_what_a_create_only_writer_should_delete_or_overwrite_stays_and_is_said(
    create_only_s3: CreateOnlyS3, tmp_path: Path, place: str
) -> None:
    options = create_only_s3.config(create_only=True) if place == "s3" else StorageConfig(create_only=True)
    storage = open_storage(create_only_s3.url if place == "s3" else str(tmp_path / "archive"), options)
    storage.replace("pointer", b"1")
    with pytest.raises(ForbiddenError, match="create_only"):
        storage.replace("pointer", b"2")
    held = storage.delete(["pointer", "missing"])
    assert [item.path for item in held] == ["pointer", "missing"]
    assert bytes(storage.get("pointer")) == b"1"
    assert create_only_s3.refused() == 0


def test_the_probe_of_a_create_only_writer_leaves_one_object_however_often_it_runs(
    create_only_s3: CreateOnlyS3,
) -> None:
    storage = open_storage(create_only_s3.url, create_only_s3.config(create_only=True))
    assert [probe_conditional_puts(storage) for _ in range(3)] == [True] * 3
    assert [info.path for info in storage.list()] == ["probes/kept"]


def test_a_refused_deletion_keeps_none_of_the_others(locking_s3: LockingS3Server) -> None:
    locked = open_storage(locking_s3.url, locking_s3.config(lock="1d"))
    plain = open_storage(locking_s3.url, locking_s3.config())
    for number in range(5):
        (locked if number == 2 else plain).put(f"n{number}", b"x")
    held = plain.delete([f"n{number}" for number in range(5)])
    assert [item.path for item in held] == ["n2"]
    assert "lock" in held[0].reason
    assert [info.path for info in plain.list()] == ["n2"]


def test_a_user_without_the_right_deletes_nothing_and_each_object_is_named(locking_s3: LockingS3Server) -> None:
    section = locking_s3.add_user("writer", allowed=READ_WRITE)
    storage = open_storage(locking_s3.url, StorageConfig.model_validate(section))
    storage.put("a", b"x")
    storage.put("b", b"x")
    held = storage.delete(["a", "b"])
    assert [item.path for item in held] == ["a", "b"]
    assert "s3:DeleteObject" in str(held[0].hint)
    assert storage.delete(["a"]) == held[:1]


@pytest.mark.parametrize("mode", ["governance", "compliance"])
def test_every_object_is_locked_for_the_time_that_was_asked_for(locking_s3: LockingS3Server, mode: str) -> None:
    options = locking_s3.config(lock="30d", lock_mode=mode)
    storage, bucket = open_storage(locking_s3.url, options), open_bucket(locking_s3.url, options)
    assert bucket is not None
    before_ms = now_ms()
    storage.put("small", b"x")
    write(storage, "large", LARGE)
    storage.replace("replaced", b"x")
    for path in ("small", "large", "replaced"):
        lock = bucket.lock_of(path)
        assert lock is not None
        assert lock.mode == mode
        assert 0 <= lock.until_ms - before_ms - 30 * DAY_MS < 60_000
    with pytest.raises(ForbiddenError):
        storage.replace("small", b"y")
    with pytest.raises(ObjectExistsError):
        storage.put("small", b"y")


def test_a_bucket_that_locks_long_enough_by_itself_is_not_asked_to(locking_s3: LockingS3Server) -> None:
    locking_s3.lock_by_default("compliance", 30)
    section = locking_s3.add_user("writer", allowed=(*READ_WRITE, "s3:GetBucketObjectLockConfiguration"))
    options = StorageConfig.model_validate({**section, "lock": "7d"})
    storage = open_storage(locking_s3.url, options)
    storage.put("small", b"x")
    write(storage, "large", LARGE)
    root = open_storage(locking_s3.url, locking_s3.config())
    assert [item.path for item in root.delete(["small", "large"])] == ["small", "large"]


def test_a_lock_in_a_bucket_without_object_lock_is_refused(s3: S3Server) -> None:
    storage = open_storage(s3.url, s3_options(s3, lock="1d"))
    with pytest.raises(RefusedError, match="no Object Lock"):
        storage.put("x", b"x")
    open_storage(s3.url, s3_options(s3)).put("x", b"x")
    bucket = open_bucket(s3.url, s3_options(s3))
    assert bucket is not None
    assert bucket.lock_of("x") is None


def test_a_lock_elsewhere_than_in_s3_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"storage\.lock"):
        open_storage(str(tmp_path), StorageConfig(lock=86400.0))


def test_locks_can_be_extended_and_not_shortened(locking_s3: LockingS3Server) -> None:
    options = locking_s3.config(lock="1d", lock_mode="compliance")
    open_storage(locking_s3.url, options).put("x", b"x")
    bucket = open_bucket(locking_s3.url, options)
    assert bucket is not None
    lock = bucket.lock_of("x")
    assert lock is not None
    longer = replace(lock, until_ms=lock.until_ms + DAY_MS)
    bucket.set_lock("x", longer)
    assert bucket.lock_of("x") == longer
    with pytest.raises(ForbiddenError):
        bucket.set_lock("x", lock)
    with pytest.raises(ObjectNotFoundError):
        bucket.lock_of("missing")


def test_versions_are_listed_newest_first_and_brought_back(versioned_s3: VersionedS3Server) -> None:
    url = f"{versioned_s3.url}/archive"
    storage, bucket = open_storage(url, versioned_s3.config()), open_bucket(url, versioned_s3.config())
    assert bucket is not None
    assert bucket.keeps_versions()
    storage.replace("a", b"first")
    storage.replace("a", b"second")
    storage.delete(["a"])
    found = list(bucket.versions())
    assert [(version.path, version.is_marker, version.is_newest) for version in found] == [
        ("a", True, True),
        ("a", False, False),
        ("a", False, False),
    ]
    first = next(version for version in found if version.size == len(b"first"))
    bucket.bring_back(first, lock=None)
    assert bytes(storage.get("a")) == b"first"
