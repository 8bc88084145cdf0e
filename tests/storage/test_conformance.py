"""What every storage promises, one suite for all of them."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from maxbrod import bounds
from maxbrod.errors import CorruptDataError, ObjectExistsError, ObjectNotFoundError, TruncatedDataError, UsageError
from maxbrod.storage.interface import ByteRange, Storage, Writer
from maxbrod.storage.stores import probe_conditional_puts

MIB = 1024 * 1024
ESCAPES = [
    "",
    "/",
    "/etc/passwd",
    "..",
    "../x",
    "a/../../x",
    "a/..",
    ".",
    "./a",
    "a//b",
    "a/",
    "a/./b",
    "a\\b",
    "..\\x",
    "a\0b",
    "a\nb",
    "\x7f",
    "\udc80",
    "x" * 256,
    "x/" * 600 + "x",
    ".maxbrod-tmp/x",
]
ODD_NAMES = [
    "a b",
    "ä/ö",
    "%2e%2e/x",
    "100%",
    "a#b?c",
    "~",
    "...",
    "..a",
    "a+b=c&d",
    "'q'",
    "[x]{y}",
    "日本",
    ".maxbrod",
]


def names(storage: Storage, folder: str = "") -> list[str]:
    return [info.path for info in storage.list(folder)]


@pytest.mark.parametrize("size", [0, 1, 70_000, 9 * MIB])
def test_what_is_put_is_got(storage: Storage, size: int) -> None:
    data = os.urandom(size)
    storage.put("dir/x", data)
    assert bytes(storage.get("dir/x")) == data
    assert bytes(storage.get("dir/x", size=size)) == data
    assert storage.head("dir/x").size == size


@pytest.mark.parametrize("data", [b"abc", bytearray(b"abc"), memoryview(b"_abc_")[1:4], np.frombuffer(b"abc", "u1")])
def test_anything_with_a_buffer_can_be_put(storage: Storage, data: bytes) -> None:
    storage.put("x", data)
    assert bytes(storage.get("x")) == b"abc"


@pytest.mark.parametrize("size", [0, 1, 9 * MIB])
def test_what_is_replaced_is_there_alone(storage: Storage, size: int) -> None:
    data = os.urandom(size)
    storage.replace("dir/x", b"first")
    storage.replace("dir/x", data)
    assert bytes(storage.get("dir/x", size=size)) == data
    assert names(storage) == ["dir/x"]


def test_a_reader_finds_the_old_object_or_the_new_one(storage: Storage) -> None:
    versions = [bytes([letter]) * 200_000 for letter in b"ab"]
    storage.replace("x", versions[0])

    def write() -> None:
        for turn in range(20):
            storage.replace("x", versions[turn % 2])

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        found = [bytes(storage.get("x"))]
        while not writing.done():
            found.append(bytes(storage.get("x")))
        writing.result()
    assert set(found) <= set(versions)


@pytest.mark.parametrize("name", ESCAPES)
def test_no_replaced_object_leaves_its_root(storage: Storage, name: str) -> None:
    with pytest.raises(UsageError):
        storage.replace(name, b"")


@pytest.mark.parametrize("again", [b"first", b"other", b""])
def test_a_name_that_is_taken_stays_taken(storage: Storage, again: bytes) -> None:
    storage.put("x", b"first")
    with pytest.raises(ObjectExistsError) as caught:
        storage.put("x", again)
    assert caught.value.object_name == f"{storage.url}/x"
    assert bytes(storage.get("x")) == b"first"
    assert names(storage) == ["x"]


def test_of_many_writers_of_one_name_exactly_one_wins(storage: Storage) -> None:
    def attempt(number: int) -> int | None:
        try:
            storage.put("once", b"%d" % number * 1000)
        except ObjectExistsError:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        winners = [each for each in pool.map(attempt, range(24)) if each is not None]
    assert len(winners) == 1
    assert bytes(storage.get("once")) == b"%d" % winners[0] * 1000


@pytest.mark.parametrize("pieces", [[], [b""], [b"abc", b"", b"def"], [b"x" * 3 * MIB] * 7, [b"y" * 20 * MIB]])
def test_a_writer_makes_one_whole_object_and_shows_nothing_before(storage: Storage, pieces: list[bytes]) -> None:
    with storage.create("big/x") as writer:
        for piece in pieces:
            writer.write(piece)
            assert names(storage) == []
        assert writer.size == sum(map(len, pieces))
    assert bytes(storage.get("big/x")) == b"".join(pieces)
    assert names(storage) == ["big/x"]


def test_a_buffer_may_be_used_again_after_write(storage: Storage) -> None:
    buffer = bytearray(3 * MIB)
    with storage.create("x") as writer:
        for number in range(7):
            buffer[:] = bytes([number]) * len(buffer)
            writer.write(buffer)
    assert bytes(storage.get("x")) == b"".join(bytes([number]) * len(buffer) for number in range(7))


def _write_and_fail(writer: Writer, size: int) -> None:
    writer.write(bytes(size))
    raise ZeroDivisionError


@pytest.mark.parametrize("size", [0, 10, 20 * MIB])
def test_a_block_that_fails_leaves_nothing(storage: Storage, size: int) -> None:
    with pytest.raises(ZeroDivisionError), storage.create("x") as writer:
        _write_and_fail(writer, size)
    assert names(storage) == []
    storage.put("x", b"free")
    assert bytes(storage.get("x")) == b"free"


@pytest.mark.parametrize("size", [10, 20 * MIB])
def test_a_writer_refuses_a_name_that_is_taken(storage: Storage, size: int) -> None:
    storage.put("x", b"first")
    with pytest.raises(ObjectExistsError, match=r"in .*x"), storage.create("x") as writer:
        writer.write(bytes(size))
    assert bytes(storage.get("x")) == b"first"
    assert names(storage) == ["x"]


def test_ranges_are_exact(storage: Storage) -> None:
    data = os.urandom(3 * MIB)
    storage.put("x", data)
    assert storage.get_range("x", 0, len(data)) == data
    assert storage.get_range("x", 7, 100) == data[7:107]
    ranges = [(2 * MIB, MIB), (5, 1), (0, 0), (5, 10), (len(data) - 1, 1)]
    found = storage.get_ranges("x", [ByteRange(start=start, size=size) for start, size in ranges])
    assert [bytes(each) for each in found] == [data[start : start + size] for start, size in ranges]
    assert list(storage.get_ranges("x", [])) == []


@pytest.mark.parametrize(("start", "size"), [(0, 11), (5, 6), (10, 1), (4000, 1)])
def test_an_object_that_ends_too_early_is_an_error_never_fewer_bytes(storage: Storage, start: int, size: int) -> None:
    storage.put("x", b"0123456789")
    with pytest.raises(TruncatedDataError, match=r"in .*x"):
        storage.get_range("x", start, size)
    with pytest.raises(TruncatedDataError):
        storage.get_ranges("x", [ByteRange(start=0, size=1), ByteRange(start=start, size=size)])


@pytest.mark.parametrize("size", [9, 11, 0])
def test_an_object_of_another_size_than_known_is_an_error(storage: Storage, size: int) -> None:
    storage.put("x", b"0123456789")
    with pytest.raises(TruncatedDataError, match=f"10 bytes where {size} should be"):
        storage.get("x", size=size)


def test_an_object_that_is_too_large_for_memory_is_read_only_in_ranges(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Bytes of the store: an encrypted object has some more.
    more = 152 if storage.encrypted else 0
    monkeypatch.setattr(bounds, "OBJECT_BYTES_MAX", 100 + more)
    storage.put("fits", bytes(100))
    storage.put("large", bytes(101))
    assert storage.get("fits") == bytes(100)
    with pytest.raises(CorruptDataError, match=f"the object has {101 + more} bytes; {100 + more} is the most"):
        storage.get("large")
    assert storage.get_range("large", 50, 51) == bytes(51)


def test_negative_ranges_are_refused(storage: Storage) -> None:
    storage.put("x", b"0123456789")
    for start, size in ((-1, 2), (1, -1)):
        with pytest.raises(UsageError):
            storage.get_range("x", start, size)


def test_what_is_not_there_is_not_found(storage: Storage) -> None:
    storage.put("dir/x", b"x")
    for name in ("nothing", "dir", "dir/y", "dir/x/below"):
        for read in (storage.get, storage.head, lambda name: storage.get_range(name, 0, 1)):
            with pytest.raises(ObjectNotFoundError) as caught:
                read(name)
            assert caught.value.object_name == f"{storage.url}/{name}"
            assert caught.value.operation


def test_head_and_list_tell_size_time_and_etag(storage: Storage) -> None:
    before = time.time() * 1000
    storage.put("a", b"1")
    storage.put("b", b"22")
    for info, size in zip(storage.list(), (1, 2), strict=True):
        assert info == storage.head(info.path)
        assert info.size == size
        assert before - 2000 <= info.modified_ms <= time.time() * 1000 + 2000  # S3 counts in whole seconds
        assert info.etag
    assert storage.head("a").etag != storage.head("b").etag


def test_an_object_made_anew_has_another_etag(storage: Storage) -> None:
    storage.put("a", b"1")
    first = storage.head("a").etag
    storage.delete(["a"])
    storage.put("a", b"2")
    assert storage.head("a").etag != first


def test_listing_is_in_the_order_of_bytes_and_by_whole_folders(storage: Storage) -> None:
    made = ["a/b/c", "a.b", "a/b", "ab", "a-b/x", "a0", "B", "ä", "z", "a/b.c", "a/b0"]
    made.remove("a/b")  # a directory cannot have an object and a folder of one name
    for name in reversed(made):
        storage.put(name, b"")
    assert names(storage) == sorted(made, key=str.encode)
    assert names(storage, "a") == names(storage, "a/") == ["a/b.c", "a/b/c", "a/b0"]
    assert names(storage, "a/b") == ["a/b/c"]
    assert names(storage, "nothing") == names(storage, "a.b") == []


@pytest.mark.parametrize(
    ("storage", "count"),
    [
        *((kind, 1100) for kind in ("local", "memory", "s3", "gcs")),
        ("azure", 300),  # deletes 256 at a time; its listings of 5,000 would take minutes to fill
    ],
    indirect=["storage"],
)
def test_more_objects_than_one_answer_holds_are_all_listed_and_deleted(storage: Storage, count: int) -> None:
    made = [f"many/{number:05}" for number in range(count)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: storage.put(name, b""), made))
    assert names(storage, "many") == made
    storage.delete(made)
    assert names(storage) == []


def test_deleting_the_same_again_is_no_error(storage: Storage) -> None:
    made = [f"many/{number}" for number in range(20)]
    for name in made[:-1]:
        storage.put(name, b"")
    storage.delete(made)
    storage.delete(made)
    assert names(storage) == []


def test_deleting_what_is_not_there_is_no_error_and_spares_the_rest(storage: Storage) -> None:
    for name in ("a", "b/c", "b/d"):
        storage.put(name, b"")
    storage.delete(["nothing", "a", "b/c", "b", "b/c/e", "a"])
    assert names(storage) == ["b/d"]
    storage.delete([])
    storage.delete(iter(["b/d"]))
    assert names(storage) == []


@pytest.mark.parametrize("name", ESCAPES)
def test_names_that_could_leave_the_root_are_refused(storage: Storage, name: str) -> None:
    storage.put("kept", b"x")
    acts = (
        lambda: storage.put(name, b"x"),
        lambda: storage.create(name),
        lambda: storage.get(name),
        lambda: storage.get_range(name, 0, 1),
        lambda: storage.head(name),
        lambda: storage.delete(["kept", name]),
        lambda: storage.list(name) if name not in {"", "a/"} else storage.head(name),
    )
    for act in acts:
        with pytest.raises(UsageError):
            act()
    assert names(storage) == ["kept"]


def test_odd_names_stay_themselves(storage: Storage) -> None:
    for name in ODD_NAMES:
        storage.put(name, name.encode())
    assert names(storage) == sorted(ODD_NAMES, key=str.encode)
    for name in ODD_NAMES:
        assert bytes(storage.get(name)) == name.encode()
    storage.delete(ODD_NAMES)
    assert names(storage) == []


def test_the_longest_topic_name_fits(storage: Storage) -> None:
    name = f"segments/{'t' * 249}/{'i' * 22}/2147483647/{'9' * 20}-{'n' * 32}.log.zst"
    storage.put(name, b"x")
    assert names(storage) == [name]


def test_the_probe_trusts_a_store_that_refuses_and_leaves_nothing(storage: Storage) -> None:
    assert probe_conditional_puts(storage)
    assert names(storage) == []
