"""What stays in memory, and what is loaded before anybody asks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maxbrod.batch.headers import walk
from maxbrod.config import config_with
from maxbrod.mount import chunks, loads
from maxbrod.mount.broker import Door
from maxbrod.mount.cache import ChunkCache, ChunkKey
from maxbrod.mount.chunks import ChunkPlace, ServedChunk
from maxbrod.mount.fetch import Fetcher
from maxbrod.mount.loads import LoadBudget
from maxbrod.mount.node_parts import NodeParts, open_archives
from maxbrod.mount.view import ServedNode, node_id
from maxbrod.storage.local import LocalStorage
from support.mounts import RawClient, fetch_request, mounted, partitions_of, read_all
from support.native_logs import NAME, data_batch
from support.table_archives import write

WHERE = (NAME.topic, NAME.partition)
SIZE = 100_000


def key(number: int, of: str = "log") -> ChunkKey:
    return 0, of, 0, ChunkPlace(number)


def chunk(place: int = 0) -> ServedChunk:
    data = np.frombuffer(data_batch(0, 1, value=bytes(SIZE)), np.uint8)
    headers = walk(data)
    ends = headers.last_offset + 1
    edges = headers.position + headers.size
    return ServedChunk(place=ChunkPlace(place), data=data, headers=headers, ends=ends, edges=edges, reach=1)


def test_memory_is_bounded_whatever_is_read() -> None:
    cache = ChunkCache(10 * SIZE)
    for number in range(100):
        cache.put(key(number), chunk(), reader=number % 3)
        cache.get(key(number), reader=number % 2)
        assert cache.bytes <= 10 * SIZE
    assert len(cache) >= 8


def test_loads_under_way_hold_a_bounded_part_of_memory_however_many_ask() -> None:
    held: list[int] = []
    seen: list[list[int]] = []

    async def load(budget: LoadBudget, size: int) -> None:
        async with budget.of(size):
            held.append(size)
            seen.append([*held])
            await asyncio.sleep(0.001)
            held.remove(size)

    async def load_all() -> None:
        budget = LoadBudget(100)
        await asyncio.gather(*(load(budget, size) for size in [40, 40, 40, 250, 10, *[30] * 20]))

    asyncio.run(load_all())
    assert len(seen) == 25, "every load is done"
    assert all(sum(sizes) <= 100 or sizes == [250] for sizes in seen)
    assert max(map(len, seen)) >= 3, "several at once"


def test_a_reader_that_catches_up_does_not_displace_what_several_readers_want() -> None:
    cache = ChunkCache(10 * SIZE)
    for number in range(3):
        cache.put(key(number, "hot"), chunk(), reader="a")
        cache.get(key(number, "hot"), reader="b")
    for number in range(1000):
        cache.put(key(number), chunk(), reader="catching up")
        for _ in range(5):
            cache.get(key(number), reader="catching up")
    assert all(key(number, "hot") in cache for number in range(3))


def test_shared_chunks_leave_room_for_new_ones() -> None:
    cache = ChunkCache(10 * SIZE)
    for number in range(50):
        cache.put(key(number), chunk(), reader="a")
        cache.get(key(number), reader="b")
    cache.put(key(99), chunk(), reader="c")
    assert key(99) in cache
    assert cache.bytes <= 10 * SIZE


def test_a_chunk_loaded_ahead_is_not_shared_by_its_first_reader() -> None:
    cache = ChunkCache(3 * SIZE)
    cache.put(key(0), chunk())
    cache.get(key(0), reader="a")
    for number in range(1, 4):
        cache.put(key(number), chunk(), reader="b")
    assert key(0) not in cache


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of these holds one batch of the archive below."""
    for module in (chunks, loads):
        monkeypatch.setattr(module, "CHUNK_BYTES", SIZE + 500)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    write(tmp_path / "archive", [b"".join(data_batch(number, 1, value=bytes(SIZE)) for number in range(12))])
    return tmp_path / "archive"


def watch_loads(monkeypatch: pytest.MonkeyPatch, *, on_load: Callable[[int], None] = lambda _: None) -> list[int]:
    """The positions at which objects are read from now on. `on_load` gets each."""
    found: list[int] = []
    read = LocalStorage.get_ranges

    def get_ranges(self: LocalStorage, path: str, ranges: Any) -> Any:
        if "/segments/" in f"/{path}" or path.endswith(".log"):
            found.append(next(iter(ranges)).start)
            on_load(found[-1])
        return read(self, path, ranges)

    monkeypatch.setattr(LocalStorage, "get_ranges", get_ranges)
    return found


@pytest.mark.usefixtures("small_chunks")
def test_what_follows_is_loaded_ahead_of_a_reader(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = threading.Event()
    watch_loads(monkeypatch, on_load=lambda position: ahead.set() if position > 0 else None)
    with mounted(archive) as found, RawClient(found.bootstrap) as client:
        answer = client.ask(fetch_request({WHERE: 0}, partition_bytes_max=1, wait_ms=9000), 12)
        assert partitions_of(answer)[WHERE].records
        assert ahead.wait(30)  # although nobody has asked for the second chunk


@pytest.mark.usefixtures("small_chunks")
def test_a_distant_store_is_read_several_chunks_ahead(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalStorage, "distant", True)
    reads = watch_loads(monkeypatch)
    with mounted(archive) as found, RawClient(found.bootstrap) as client:
        assert read_all(client, WHERE, 0, partition_bytes_max=1)
    assert len(reads) < 12  # one request for each chunk otherwise


@pytest.mark.usefixtures("small_chunks")
def test_an_archive_larger_than_the_cache_is_read_within_its_bound(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = [0]
    put = ChunkCache.put

    def watched(cache: ChunkCache, *arguments: Any) -> None:
        put(cache, *arguments)
        most[0] = max(most[0], cache.bytes)

    monkeypatch.setattr(ChunkCache, "put", watched)
    with mounted(archive, cache_bytes=3 * SIZE) as found, RawClient(found.bootstrap) as client:
        once = read_all(client, WHERE, 0)
        assert read_all(client, WHERE, 0) == once
    assert 0 < most[0] <= 3 * SIZE


def test_answers_that_slow_readers_do_not_take_hold_little_memory(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (chunks, loads):
        monkeypatch.setattr(module, "CHUNK_BYTES", 4 * SIZE + 2000)
    config = config_with(None, "mount", {"archives": [str(archive)], "cache_bytes": 8 * SIZE})
    parts = NodeParts.of(config, open_archives(config), "cluster", door=Door())
    parts.view.nodes = (ServedNode(node_id=node_id(0), host="127.0.0.1", port=9),)
    fetcher = Fetcher(parts.view, parts.loader, node_id(0))

    async def ask(reader: int) -> int:
        pieces = await fetcher.fetch(fetch_request({WHERE: 0}, wait_ms=9000, partition_bytes_max=1), 12, reader)
        return sum(memoryview(piece).nbytes for piece in pieces)

    async def run() -> None:
        sizes = [await ask(reader) for reader in range(30)]
        assert set(sizes) == {sizes[0]}
        # The first one holds a chunk of four batches, the others their own batch.
        assert 33 * SIZE < fetcher._held_bytes < 35 * SIZE
        for reader in range(30):
            fetcher.release(reader)
        assert fetcher._held_bytes == 0

    try:
        asyncio.run(run())
    finally:
        parts.loader.close()
