"""Links inside of a directory lead nobody out of it: not who reads, not who lists, not who writes, not who deletes."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from maxbrod.errors import ObjectNotFoundError, RefusedError
from maxbrod.storage import beneath
from maxbrod.storage.beneath import Root
from maxbrod.storage.composed import joined_url
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.storage.interface import Storage


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    (folder / "below").mkdir(parents=True)
    (folder / "precious").write_bytes(b"precious")
    (folder / "below" / "precious").write_bytes(b"precious")
    return folder


@pytest.fixture
def storage(tmp_path: Path, outside: Path) -> Storage:
    """An archive with a link to a file and one to a folder, both outside."""
    storage = open_storage(str(tmp_path / "root"))
    storage.put("segments/own", b"own")
    (tmp_path / "root" / "segments" / "file").symlink_to(outside / "precious")
    (tmp_path / "root" / "segments" / "folder").symlink_to(outside)
    return storage


def untouched(outside: Path) -> bool:
    found = sorted(str(path.relative_to(outside)) for path in outside.rglob("*"))
    return found == ["below", "below/precious", "precious"] and (outside / "precious").read_bytes() == b"precious"


LINKED = ["segments/file", "segments/folder/precious", "segments/folder/below/precious"]


@pytest.mark.parametrize("name", LINKED)
def test_no_link_is_read(storage: Storage, name: str) -> None:
    for read in (storage.get, storage.head, lambda path: storage.get_range(path, 0, 1)):
        with pytest.raises(RefusedError, match=r"symbolic link.*/root/segments/f") as caught:
            read(name)
        assert "mount" in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["segments/folder/new", "segments/folder/precious", "segments/folder/new/new"])
def test_nothing_is_written_through_a_link(storage: Storage, outside: Path, name: str) -> None:
    for write in (storage.put, storage.replace):
        with pytest.raises(RefusedError, match="symbolic link"):
            write(name, b"other")
    assert untouched(outside)


def test_what_replaces_a_link_leaves_its_target_alone(storage: Storage, outside: Path) -> None:
    storage.replace("segments/file", b"other")
    assert bytes(storage.get("segments/file")) == b"other"
    assert untouched(outside)


@pytest.mark.parametrize("name", LINKED)
def test_nothing_is_deleted_through_a_link(storage: Storage, outside: Path, name: str) -> None:
    if name == "segments/file":
        storage.delete([name])  # the link itself goes, as any entry of the folder
    else:
        with pytest.raises(RefusedError, match="symbolic link"):
            storage.delete([name])
    assert untouched(outside)


def test_a_listing_that_would_lead_out_is_refused_not_cut_short(storage: Storage) -> None:
    for folder in ("", "segments"):
        with pytest.raises(RefusedError, match="symbolic link"):
            list(storage.list(folder))
    with pytest.raises(RefusedError, match="symbolic link"):
        list(storage.list("segments/folder"))


def test_links_that_name_nothing_of_their_own_are_passed_over(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    storage.put("a/x", b"x")
    (tmp_path / "latest").symlink_to("a")
    (tmp_path / "a" / "same").symlink_to("x")
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    assert [info.path for info in storage.list()] == ["a/x"]
    with pytest.raises(RefusedError, match="symbolic link"):
        storage.get("latest/x")


def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "root").symlink_to("disk")
    storage = open_storage(str(tmp_path / "root"))
    storage.put("a/x", b"x")
    assert bytes(storage.get("a/x")) == b"x"
    assert [info.path for info in storage.list()] == ["a/x"]
    storage.delete(["a/x"])
    assert not (tmp_path / "disk" / "a" / "x").exists()


def test_a_folder_of_unfinished_files_that_is_a_link_is_refused(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / ".maxbrod-tmp").symlink_to(outside)
    os.utime(outside / "precious", (0, 0))
    with pytest.raises(RefusedError, match="symbolic link"):
        open_storage(str(tmp_path / "root")).put("x", b"x")
    assert untouched(outside)


def test_a_link_put_there_between_a_look_and_the_use_is_met(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder is exchanged for a link right before the kernel opens it: it is not gone through."""
    storage = open_storage(str(tmp_path / "root"))
    storage.put("a/precious", b"own")
    original = os.open
    exchanged: list[object] = []

    def exchanging(path: object, flags: int, *arguments: int, **options: int) -> int:
        if path == "a" and not exchanged:
            (tmp_path / "root" / "a").rename(tmp_path / "aside")
            (tmp_path / "root" / "a").symlink_to(outside)
            exchanged.append(path)
        return original(path, flags, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", exchanging)
    with pytest.raises(RefusedError, match="symbolic link"):
        storage.delete(["a/precious"])
    assert exchanged
    assert untouched(outside)


def test_a_pipe_named_as_an_object_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    storage = open_storage(str(tmp_path))
    for read in (storage.get, storage.head):
        with pytest.raises(ObjectNotFoundError):
            read("pipe")


def test_links_are_found_however_deep(tmp_path: Path, outside: Path) -> None:
    beneath.refuse_links(tmp_path / "none")
    (tmp_path / "catalog" / "a" / "b").mkdir(parents=True)
    beneath.refuse_links(tmp_path / "catalog")
    (tmp_path / "catalog" / "a" / "b" / "c").symlink_to(outside)
    with pytest.raises(RefusedError, match="a/b/c"):
        beneath.refuse_links(tmp_path / "catalog")
    (tmp_path / "other").symlink_to(outside)
    with pytest.raises(RefusedError, match="other"):
        beneath.refuse_links(tmp_path / "other")


def test_a_folder_that_can_be_passed_but_not_listed_is_passed(tmp_path: Path) -> None:
    if os.getuid() == 0:
        pytest.skip("root lists everything")
    storage = open_storage(str(tmp_path / "root"))
    storage.put("a/b/x", b"x")
    (tmp_path / "root" / "a").chmod(0o100)
    try:
        assert bytes(storage.get("a/b/x")) == b"x"
    finally:
        (tmp_path / "root" / "a").chmod(0o700)


def test_descriptors_are_given_back(storage: Storage, tmp_path: Path) -> None:
    def count() -> int:
        return sum(1 for _ in os.scandir("/proc/self/fd"))

    before = count()
    for name in [*LINKED, "segments/none", "none/none"]:
        for act in (storage.get, storage.head, lambda path: storage.put(f"{path}/x", b"")):
            with suppress(RefusedError, ObjectNotFoundError):
                act(name)
    assert bytes(storage.get("segments/own")) == b"own"
    with Root(tmp_path).folder("root/segments"):
        pass
    assert count() == before


def test_several_directories_are_read_as_folders_of_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        open_storage(str(tmp_path / name / "data, old")).put("topic-0/0.log", name.encode())
    joined = open_storage(joined_url([tmp_path / "a" / "data, old", tmp_path / "b" / "data, old"]))
    assert [info.path for info in joined.list()] == ["0-data, old/topic-0/0.log", "1-data, old/topic-0/0.log"]
    assert [info.path for info in joined.list("1-data, old/topic-0")] == ["1-data, old/topic-0/0.log"]
    assert bytes(joined.get("1-data, old/topic-0/0.log")) == b"b"
    assert bytes(joined.get_range("0-data, old/topic-0/0.log", 0, 1)) == b"a"
    assert joined.head("0-data, old/topic-0/0.log").size == 1
    for missing in ("0-data, old", "2-data, old/x", "x"):
        with pytest.raises(ObjectNotFoundError):
            joined.get(missing)
    for write in (lambda: joined.put("x", b""), lambda: joined.delete(["x"]), lambda: joined.create("x")):
        with pytest.raises(RefusedError):
            write()
