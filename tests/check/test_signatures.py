"""Whoever lacks the key can neither remove nor exchange nor roll back anything without its being noticed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from maxbrod.archive.archive import open_archive, open_native
from maxbrod.archive.snapshot_document import Snapshot, encode, snapshot_path
from maxbrod.backup.commits import own_catalog
from maxbrod.catalog.codec import Table
from maxbrod.catalog.log import LOG_FOLDER, TABLE_FOLDER, entry_checksum, entry_name
from maxbrod.catalog.rows import Segment, decode_rows, slice_of
from maxbrod.catalog.schema import TABLE_PROPERTIES
from maxbrod.catalog.statements import LINKS, statement_in
from maxbrod.check.problems import Problem, ProblemKind
from maxbrod.check.signatures import SignatureReport, accepted_keys, check_signatures
from maxbrod.cli.main import run as command
from maxbrod.config import SigningConfig, StorageConfig
from maxbrod.errors import EXIT_CORRUPT, CorruptDataError, UsageError
from maxbrod.layouts.kafka.slices import verify_slice
from maxbrod.signature import create_signing_key
from support.catalog_rows import run
from support.native_archives import Making
from support.native_logs import data_batch
from support.signing_keys import public_half

if TYPE_CHECKING:
    from collections.abc import Callable

CHECKPOINT_EVERY = int(TABLE_PROPERTIES["delta.checkpointInterval"])


class Signed:
    """An archive in a folder whose commits are signed, and a pin beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.pin = folder / "archive", folder / "pin.json"
        self.key = folder / "catalog.key"
        create_signing_key(self.key)

    @cached_property
    def making(self) -> Making:
        return Making(str(self.folder), StorageConfig(signing=SigningConfig(key_file=self.key)))

    def write(self, runs: int = 1) -> None:
        for _ in range(runs):
            self.making.run({0: [data_batch(self.making.runs * 3, 3)]}, packed=False)

    def again(self, *trusted: Path, key: Path | None = None) -> None:
        """Another process goes on writing."""
        runs = self.making.runs
        signing = SigningConfig(key_file=key or self.key, trusted_keys=trusted)
        self.__dict__["making"] = Making(str(self.folder), StorageConfig(signing=signing), runs=runs)

    def check(self, *keys: Path, pin: bool = True, **more: Any) -> tuple[SignatureReport, list[Problem]]:
        accepted = accepted_keys(keys or (public_half(self.key),))
        where = self.pin if pin else self.pin.with_name("another")
        return check_signatures(open_archive(str(self.folder)), accepted, pin=where, **more)

    def kinds(self, *keys: Path, **more: Any) -> list[ProblemKind]:
        return [problem.kind for problem in self.check(*keys, **more)[1]]

    @property
    def table(self) -> Table:
        return own_catalog(self.making.archive).table

    @property
    def log(self) -> Path:
        return self.folder / LOG_FOLDER

    def entry(self, version: int) -> Path:
        return self.log / entry_name(version)

    @property
    def version(self) -> int:
        return open_native(str(self.folder)).catalog.version


@pytest.fixture
def signed(tmp_path: Path) -> Signed:
    archive = Signed(tmp_path)
    archive.write(3)
    return archive


def test_a_signed_archive_is_proven_and_every_reader_of_delta_reads_it(signed: Signed) -> None:
    report, problems = signed.check()
    assert problems == []
    assert (report.signed_version, report.unsigned, report.weak_slices, report.pinned) == (3, (), 0, True)
    assert report.data_files == len(signed.table.files)
    assert DeltaTable(str(signed.folder / TABLE_FOLDER)).version() == 3
    signed.write()
    report, problems = signed.check()
    assert (problems, report.pinned_version, report.signed_version) == ([], 3, 4)


def test_deleting_the_newest_entries_shows_as_a_rollback(signed: Signed) -> None:
    signed.check()
    signed.entry(3).unlink()
    _, problems = signed.check()
    assert [problem.kind for problem in problems] == [ProblemKind.ROLLED_BACK]
    assert "rolled back: the archive is at version 2, but version 3 was seen on" in problems[0].message
    # Nothing but the pin can tell: the older state is a valid one.
    assert signed.kinds(pin=False) == []


def test_an_older_state_of_the_whole_archive_shows_also_when_it_was_continued(signed: Signed) -> None:
    older = signed.folder.with_name("older")
    shutil.copytree(signed.folder, older)
    signed.write(2)
    assert signed.kinds() == []
    shutil.rmtree(signed.folder)
    shutil.copytree(older, signed.folder)
    assert signed.kinds() == [ProblemKind.ROLLED_BACK]
    # The writer with the key goes on from there, beyond the version that was seen.
    signed.again()
    signed.write(4)
    assert signed.version == 7
    _, problems = signed.check()
    assert [problem.kind for problem in problems] == [ProblemKind.ROLLED_BACK]
    assert "version 7 does not continue the version that was seen" in problems[0].message


def rewritten(entry: bytes, change: Callable[[list[bytes]], list[bytes]]) -> bytes:
    """An entry as a vandal rewrites it, who knows about checksums."""
    lines = change(entry.splitlines())
    checksum = entry_checksum(b"\n".join(lines)).encode()
    return b"\n".join(re.sub(rb'("maxbrod.crc32c":")[0-9a-f]{8}', rb"\g<1>" + checksum, line) for line in lines)


def test_an_entry_that_was_replaced_is_not_a_signed_one(signed: Signed) -> None:
    entry = signed.entry(2).read_bytes()
    signed.entry(2).write_bytes(rewritten(entry, lambda lines: [line for line in lines if b'"add"' not in line]))
    assert open_native(str(signed.folder)).catalog.version == 3, "the archive looks as good as before"
    _, problems = signed.check()
    assert {problem.kind for problem in problems} == {ProblemKind.EXCHANGED}


def test_a_change_of_the_newest_entry_leaves_it_unsigned(signed: Signed) -> None:
    entry = signed.entry(3).read_bytes()
    signed.entry(3).write_bytes(rewritten(entry, lambda lines: [line for line in lines if b'"add"' not in line]))
    assert ProblemKind.UNSIGNED in signed.kinds()
    # Even one byte of the commit information.
    signed.entry(3).write_bytes(entry.replace(b'"operation":"WRITE"', b'"operation":"write"'))
    assert ProblemKind.UNSIGNED in signed.kinds()
    # The statement of one version is none of another.
    signed.entry(3).write_bytes(entry)
    assert statement_in(entry, 3) is not None
    assert statement_in(entry, 2) is None


def test_two_data_files_that_were_swapped_are_named(signed: Signed) -> None:
    one, other, *_ = (signed.folder / TABLE_FOLDER / file.path for file in signed.table.files)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    found = {(problem.kind, problem.object_name) for problem in signed.check()[1]}
    assert found == {(ProblemKind.EXCHANGED, str(one)), (ProblemKind.EXCHANGED, str(other))}
    with pytest.raises(CorruptDataError):
        open_native(str(signed.folder)).catalog.rows()


def test_a_commit_without_the_key_fails_the_check_until_it_is_accepted(
    signed: Signed, caplog: pytest.LogCaptureFixture
) -> None:
    Making(str(signed.folder), runs=3).run({0: [data_batch(9, 3)]}, packed=False)
    assert "will find version 4 unsigned" in caplog.text
    report, problems = signed.check()
    assert report.unsigned == ((4, 4),)
    assert "version 4 is not signed" in problems[0].message
    assert not report.pinned
    # A writer with the key does not vouch for it, though it goes on from there.
    signed.making.runs = 4
    signed.again()
    signed.write()
    report, problems = signed.check()
    assert (report.signed_version, report.unsigned) == (5, ((4, 4),))
    assert [problem.kind for problem in problems] == [ProblemKind.UNSIGNED, ProblemKind.UNSIGNED]
    assert "1 slice" in problems[1].message, "it has only a checksum"
    report, problems = signed.check(since_version=5)
    assert (problems, report.weak_slices) == ([], 1)
    assert signed.kinds(since_version=4) == [ProblemKind.UNSIGNED]
    assert signed.kinds(since_version=99) == [ProblemKind.UNSIGNED], "nothing would be proven"


def test_another_key_proves_nothing(signed: Signed, tmp_path: Path) -> None:
    other = tmp_path / "other.key"
    create_signing_key(other)
    report, problems = signed.check(public_half(other))
    assert report.signed_version is None
    assert problems[0].kind is ProblemKind.UNSIGNED
    secret = tmp_path / "secret"
    secret.write_bytes(b"0123456789abcdef")
    secret.chmod(0o600)
    with pytest.raises(UsageError, match="cannot prove"):
        accepted_keys([secret])


def test_a_key_is_rotated_and_what_the_former_one_has_signed_stays_proven(signed: Signed, tmp_path: Path) -> None:
    new = tmp_path / "new.key"
    create_signing_key(new)
    signed.again(public_half(signed.key), key=new)
    signed.write(2)
    both = public_half(signed.key), public_half(new)
    report, problems = signed.check(*both)
    assert (problems, report.unsigned, report.signed_version) == ([], (), 5)
    # Without the former key among the trusted ones, the new one vouches for nothing before it.
    signed.again(key=signed.key)
    signed.write()
    assert signed.check(*both)[0].unsigned == ((4, 5),)


def test_the_chain_outlives_the_cleanup_of_the_log(signed: Signed) -> None:
    signed.check()
    seen = signed.pin.read_text()
    old = time.time() - 2 * 24 * 3600
    while signed.making.archive.catalog.version <= 2 * CHECKPOINT_EVERY:
        signed.write()
        for path in signed.log.iterdir():
            os.utime(path, (old, old))
    assert not signed.entry(4).exists()
    report, problems = signed.check()
    assert (problems, report.unsigned, report.pinned_version) == ([], (), 3)
    # Only the digests that were kept lead from there to the newest version.
    signed.pin.write_text(seen)
    shutil.rmtree(signed.folder / LINKS)
    assert signed.kinds() == [ProblemKind.ROLLED_BACK]


def test_nothing_is_signed_on_top_of_a_catalog_that_was_tampered_with(signed: Signed) -> None:
    while signed.making.archive.catalog.version < CHECKPOINT_EVERY:
        signed.write()
    checkpoint = signed.log / f"{CHECKPOINT_EVERY:020}.checkpoint.parquet"
    actions = pq.read_table(checkpoint)
    paths = pc.struct_field(actions["add"], "path")
    victim = pc.drop_null(paths)[0].as_py()
    pq.write_table(actions.filter(pc.fill_null(pc.not_equal(paths, victim), True)), checkpoint)
    assert ProblemKind.EXCHANGED in signed.kinds()
    signed.again()
    with pytest.raises(CorruptDataError, match="are not those that were signed"):
        signed.write()
    assert signed.version == CHECKPOINT_EVERY


def test_data_files_of_older_releases_are_covered_from_the_first_signed_commit_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Signed(tmp_path)
    with monkeypatch.context() as before:
        before.setattr("maxbrod.catalog.files.new_name", lambda data: f"part-{len(data)}{os.urandom(4).hex()}.parquet")
        plain = Making(str(archive.folder))
        plain.run({0: [data_batch(0, 3)]}, packed=False)
    archive.__dict__["making"] = Making(str(archive.folder), archive.making.storage, runs=1)
    archive.write()
    archive.write()
    report, problems = archive.check(since_version=2)
    assert (problems, report.unsigned) == ([], ((0, 1),))
    old = next(path for path in (archive.folder / TABLE_FOLDER).glob("part-*.parquet") if "zstd" not in path.name)
    data = old.read_bytes()
    old.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert archive.kinds(since_version=2) == [ProblemKind.EXCHANGED]


def test_a_commit_that_others_overtake_is_signed_for_the_version_that_it_makes(signed: Signed) -> None:
    other = Making(str(signed.folder), signed.making.storage, runs=3)
    signed.write()
    rows = other.run({1: [data_batch(0, 3)]}, packed=False, commit=False)
    assert isinstance(rows[0], Segment)
    other.archive.catalog.commit(rows, still_valid=lambda: True)
    report, problems = signed.check()
    assert (problems, report.signed_version) == ([], 5)


def test_a_rebuilt_catalog_is_signed_and_vouches_for_nothing_before_it(signed: Signed, tmp_path: Path) -> None:
    signed.check()
    signed.entry(2).unlink()
    arguments = ["--archive", str(signed.folder), "--signing-key", str(signed.key)]
    assert command(["repair", *arguments, "--apply", "--engine", "local"]) in {0, 3}
    report, problems = signed.check()
    assert report.unsigned == ((0, signed.version - 1),)
    assert ProblemKind.ROLLED_BACK in {problem.kind for problem in problems}
    report, problems = signed.check(pin=False, since_version=signed.version)
    assert problems == []
    assert report.weak_slices == 0


def forged(data: bytes, start: int) -> bytes:
    """Another batch of the same length and with the same CRC-32C, which has a valid CRC of its own as well.

    Both checksums are linear: each bit of 8 bytes at `start` flips known bits of them.
    """

    def made(free: int) -> tuple[bytes, int]:
        batch = bytearray(data)
        batch[start : start + 8] = free.to_bytes(8, "big")
        batch[17:21] = google_crc32c.value(bytes(batch[21:])).to_bytes(4, "big")
        return bytes(batch), google_crc32c.value(bytes(batch))

    base = made(0)[1]
    wanted = base ^ google_crc32c.value(data)
    # Gaussian elimination: rows of (what it flips, by which bits).
    rows = [(made(1 << bit)[1] ^ base, 1 << bit) for bit in range(64)]
    free = 0
    kernel: list[int] = []
    for column in range(32):
        at = next((number for number, row in enumerate(rows) if row[0] >> column & 1), None)
        if at is None:
            continue
        pivot = rows.pop(at)
        rows = [(row[0] ^ pivot[0], row[1] ^ pivot[1]) if row[0] >> column & 1 else row for row in rows]
        if wanted >> column & 1:
            wanted, free = wanted ^ pivot[0], free ^ pivot[1]
    kernel = [row[1] for row in rows if not row[0]]
    for more in (0, *kernel):
        batch, checksum = made(free ^ more)
        if batch != data and checksum == google_crc32c.value(data):
            return batch
    raise AssertionError("the checksum could not be forged")


def test_a_segment_that_was_forged_to_the_same_checksum_is_found_where_it_is_signed(signed: Signed) -> None:
    def change(archive: str) -> list[str]:
        row = next(row for row in decode_rows(open_native(archive).catalog.rows()) if isinstance(row, Segment))
        path = Path(archive) / row.path
        data = path.read_bytes()
        batch = data[: row.bytes]
        path.write_bytes(forged(batch, batch.index(b"value") - 4) + data[row.bytes :])
        return [problem.message for problem in verify_slice(open_native(archive).storage, slice_of(row))]

    plain = signed.folder.with_name("plain")
    Making(str(plain)).run({0: [data_batch(0, 3, value=b"value of a record")]}, packed=False)
    assert not any("digest" in message for message in change(str(plain))), "a checksum withstands no forger"
    signed.making.run({1: [data_batch(0, 3, value=b"value of a record")]}, packed=False)
    assert any("the digest sha256:" in message for message in change(str(signed.folder)))


def test_a_snapshot_that_was_exchanged_is_named(signed: Signed) -> None:
    storage = signed.making.archive.storage
    state: dict[str, Any] = {"cluster_id": "one", "taken_at_ms": 1}
    snapshot = Snapshot(run_id="run-a", taken_at_ms=1, cluster=state, ends={}, topics={})
    data, other = encode(snapshot), encode(replace(snapshot, taken_at_ms=2))
    path = snapshot_path("run-a", data, signed=True)
    storage.put(path, data)
    signed.making.archive.catalog.commit([replace(run("run-a"), snapshot=path)])
    report, problems = signed.check()
    assert (problems, report.snapshots, report.snapshots_unproven) == ([], 1, 0)
    (signed.folder / path).write_bytes(other)
    _, problems = signed.check()
    assert [(problem.kind, problem.object_name) for problem in problems] == [
        (ProblemKind.EXCHANGED, str(signed.folder / path))
    ]


def test_the_command_refuses_a_rolled_back_archive_and_pins_what_it_has_seen(
    signed: Signed, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    check = ["check", "--archive", str(signed.folder), "--signature", str(public_half(signed.key))]
    command([*check, "--deep", "--engine", "local"])
    told = capsys.readouterr().out
    assert "signed: version 3 by key" in told
    assert "pinned for the first time, in" in told
    assert [path.parent for path in (tmp_path / "state").rglob("*.json")] == [tmp_path / "state/maxbrod/pins"]
    signed.entry(3).unlink()
    assert command([*check, "--json"]) == EXIT_CORRUPT
    found = json.loads(capsys.readouterr().out)
    assert found["signature"]["pinned"] is False
    assert [problem["kind"] for problem in found["problems"]].count("rolled back") == 1
    assert command(["check", "--archive", str(signed.folder), "--pin", "x"]) == UsageError.exit_code


def test_a_key_that_cannot_sign_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    key = tmp_path / "key"
    create_signing_key(key)
    for path in (public_half(key), tmp_path / "missing"):
        with pytest.raises(UsageError):
            Making(str(tmp_path / "archive"), StorageConfig(signing=SigningConfig(key_file=path)))
    assert not (tmp_path / "archive").exists()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_a_stranger_verifies_an_entry_with_openssl(signed: Signed, tmp_path: Path) -> None:
    """The steps of docs/format.md."""
    script = r"""
    set -eu
    sed -En 's/.*"maxbrod.signed":"([^"]*)".*/\1/p' "$entry" | base64 -d > statement
    sed -En 's/.*"maxbrod.signature":"[^:]*:([0-9a-f]*)".*/\1/p' "$entry" | xxd -r -p > value
    openssl pkeyutl -verify -pubin -inkey "$key" -rawin -in statement -sigfile value
    sed -E 's/,"maxbrod.signed":"[^"]*","maxbrod.signature":"[^"]*"//' "$entry" | sha256sum
    """
    entry = signed.entry(3)
    environment = {**os.environ, "entry": str(entry), "key": str(public_half(signed.key))}
    script = script.replace("xxd -r -p", "python3 -c 'import sys; sys.stdout.buffer.write(bytes.fromhex(input()))'")
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "Signature Verified Successfully" in done.stdout, done.stderr
    statement = json.loads((tmp_path / "statement").read_bytes())
    assert done.stdout.split()[-2] == statement["entry"]
    assert np.uint64(statement["version"]) == 3
