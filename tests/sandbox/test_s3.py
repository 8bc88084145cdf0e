"""The S3 server in a box keeps S3's promises, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import obstore
import psutil
import pytest
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import S3Store

from maxbrod.errors import EnvironmentMissingError, RefusedError, UsageError
from maxbrod.sandbox import programs
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.s3 import LyingS3Server, S3Server
from support.s3 import no_retries

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_an_object_comes_back_as_it_was_put(s3_store: S3Store) -> None:
    obstore.put(s3_store, "a/b/empty", b"")
    obstore.put(s3_store, "a/b/full", b"\x00\xff" * 1000)
    assert bytes(obstore.get(s3_store, "a/b/empty").bytes()) == b""
    assert bytes(obstore.get(s3_store, "a/b/full").bytes()) == b"\x00\xff" * 1000
    assert bytes(obstore.get_range(s3_store, "a/b/full", start=1, length=2)) == b"\xff\x00"
    assert [found["path"] for found in obstore.list(s3_store).collect()] == ["a/b/empty", "a/b/full"]


def test_a_multipart_upload_comes_back_whole(s3_store: S3Store) -> None:
    data = os.urandom(1024) * (21 * 1024)
    obstore.put(s3_store, "big", data, use_multipart=True, chunk_size=6 * 1024 * 1024)
    assert bytes(obstore.get(s3_store, "big").bytes()) == data


def test_a_put_that_must_create_never_replaces_an_object(s3_store: S3Store) -> None:
    obstore.put(s3_store, "once", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(s3_store, "once", b"second", mode="create")
    assert bytes(obstore.get(s3_store, "once").bytes()) == b"first"


def test_a_put_on_a_version_that_is_gone_never_replaces_the_object(s3_store: S3Store) -> None:
    old = obstore.put(s3_store, "head", b"1")
    new = obstore.put(s3_store, "head", b"2")
    with pytest.raises(PreconditionError):
        obstore.put(s3_store, "head", b"3", mode={"e_tag": old["e_tag"]})
    assert bytes(obstore.get(s3_store, "head").bytes()) == b"2"
    obstore.put(s3_store, "head", b"4", mode={"e_tag": new["e_tag"]})
    assert bytes(obstore.get(s3_store, "head").bytes()) == b"4"


def test_of_many_simultaneous_creates_exactly_one_wins(s3_store: S3Store) -> None:
    def create(key: str, writer: int) -> bool:
        try:
            obstore.put(s3_store, key, b"%d" % writer, mode="create")
        except AlreadyExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        for race in range(20):
            won = list(pool.map(create, [f"race-{race}"] * 8, range(8)))
            assert won.count(True) == 1
            assert bytes(obstore.get(s3_store, f"race-{race}").bytes()) == b"%d" % won.index(True)


def test_the_lying_server_says_created_and_overwrites(lying_s3: LyingS3Server) -> None:
    store = S3Store(**lying_s3.store_options())
    obstore.put(store, "once", b"first", mode="create")
    obstore.put(store, "once", b"second", mode="create")
    obstore.put(store, "once", b"third", mode={"e_tag": "a version that never was"})
    assert bytes(obstore.get(store, "once").bytes()) == b"third"


@pytest.mark.parametrize("kind", [S3Server, LyingS3Server])
def test_objects_survive_a_kill_and_are_served_at_the_same_place(
    kind: type[S3Server | LyingS3Server], tmp_path: Path
) -> None:
    with kind.start(tmp_path / "s3") as server:
        store = S3Store(**no_retries(server.store_options()))
        obstore.put(store, "kept", b"bytes")
        for end in (server.kill, server.stop):
            end()
            assert not server.alive
            with pytest.raises(BaseError):
                obstore.get(store, "kept")
            server.restart()
            assert bytes(obstore.get(store, "kept").bytes()) == b"bytes"


def test_a_suspended_server_answers_only_when_it_is_resumed(s3: S3Server, s3_store: S3Store) -> None:
    obstore.put(s3_store, "kept", b"bytes")
    s3.suspend()
    with pytest.raises(BaseError):
        obstore.get(S3Store(**no_retries(s3.store_options(), timeout_s=0.3)), "kept")
    s3.resume()
    assert bytes(obstore.get(s3_store, "kept").bytes()) == b"bytes"


def test_a_byte_damaged_on_disk_is_served_damaged(s3: S3Server, s3_store: S3Store) -> None:
    obstore.put(s3_store, "segments/1.log", b"0123456789")
    with s3.object_path("segments/1.log").open("r+b") as file:
        file.seek(3)
        file.write(b"X")
    assert bytes(obstore.get(s3_store, "segments/1.log").bytes()) == b"012X456789"
    s3.object_path("segments/1.log").write_bytes(b"0123")
    assert bytes(obstore.get(s3_store, "segments/1.log").bytes()) == b"0123"


@pytest.mark.parametrize("kind", [S3Server, LyingS3Server])
def test_keys_show_in_no_repr_log_or_command_line(kind: type[S3Server | LyingS3Server], tmp_path: Path) -> None:
    with kind.start(tmp_path / "s3") as server:
        store = S3Store(**server.store_options())
        obstore.put(store, "x", b"x")
        with pytest.raises(FileNotFoundError):
            obstore.get(store, "missing")
        words = [repr(server), str(server), server.output.read_text()]
        words += [" ".join(process.cmdline()) for process in _inside(server.directory)]
    assert len(words) == 4, "the server itself was looked at"
    assert [text for text in words if server.secret_key in text or server.access_key in text] == []


@pytest.mark.parametrize("kind", [S3Server, LyingS3Server])
def test_a_wrong_key_is_refused(kind: type[S3Server | LyingS3Server], tmp_path: Path) -> None:
    with kind.start(tmp_path / "s3") as server:
        stranger = S3Store(**no_retries({**server.store_options(), "secret_access_key": "wrong"}))
        with pytest.raises(BaseError, match=r"403|PermissionDenied|SignatureDoesNotMatch"):
            obstore.put(stranger, "x", b"x")


@pytest.mark.parametrize("kind", [S3Server, LyingS3Server])
def test_leaving_the_context_leaves_no_process_and_no_folder(
    kind: type[S3Server | LyingS3Server], tmp_path: Path
) -> None:
    with kind.start(tmp_path / "s3") as server:
        assert _inside(server.directory)
        server.suspend()
    assert _inside(server.directory) == []
    assert list(tmp_path.iterdir()) == []


def test_a_folder_to_be_kept_is_kept(tmp_path: Path) -> None:
    with S3Server.start(tmp_path / "s3", keep=True) as server:
        obstore.put(S3Store(**server.store_options()), "x", b"bytes")
    assert server.object_path("x").read_bytes() == b"bytes"
    assert _inside(server.directory) == []


def test_an_owner_killed_by_sigkill_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path / "s3")], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    with owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        assert _inside(tmp_path / "s3")
        owner.send_signal(signal.SIGKILL)
    wait_for("the reaper's work", lambda: not (tmp_path / "s3").exists(), timeout_s=60)
    wait_for("the end of the server", lambda: not _inside(tmp_path / "s3"), timeout_s=60)


_OWNER = """
import sys, time
from maxbrod.sandbox.s3 import S3Server
S3Server.start(sys.argv[1])
print("up", flush=True)
time.sleep(60)
"""


def test_a_folder_with_something_in_it_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(RefusedError):
        S3Server.start(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("name", ["", "ab", "Upper", "../up", "a/b", "x" * 64])
def test_a_name_that_no_bucket_can_have_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        S3Server.start(tmp_path / "s3", bucket=name)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_cannot_start_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(S3Server, "_arguments", lambda _: ["posix", "/no/such/folder"])
    with pytest.raises(Exception, match="/no/such/folder"):
        S3Server.start(tmp_path / "s3")
    assert list(tmp_path.iterdir()) == []


def test_a_machine_without_go_or_pip_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: Callable[[str, str], None]
) -> None:
    tool("go", "echo go version go1.20 linux/amd64")
    tool("uv", "echo no index >&2; exit 1")
    monkeypatch.setattr(programs, "_installer", lambda _: [str(tmp_path / "bin" / "uv")])
    with pytest.raises(EnvironmentMissingError) as raised:
        S3Server.start(tmp_path / "s3")
    assert "install Go 1.25" in str(raised.value.hint)
    assert "no index" in str(raised.value.hint)
    assert not (tmp_path / "s3").exists()
    assert [path for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """A PATH with made-up tools before the real ones, and a cache with nothing in it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("MAXBROD_CACHE", str(tmp_path / "cache"))

    def make(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return make


def _inside(folder: Path) -> list[psutil.Process]:
    """The server processes that work in this folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        command = process.info["cmdline"] or []
        if str(folder / "objects") in command and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found
