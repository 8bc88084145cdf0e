"""One number, or a few bytes, of an archive never take the memory of whoever reads it."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cramjam
import pytest

from maxbrod import bounds, strict_json
from maxbrod.archive.snapshot_document import Snapshot, encode
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.rows import encode_rows
from maxbrod.cli.main import run as maxbrod
from maxbrod.errors import EXIT_CORRUPT, CorruptDataError
from maxbrod.layouts.foreign import ClusterFacts, ForeignTopic, Survey, WriteOptions
from maxbrod.layouts.registry import FOREIGN, layout_of
from maxbrod.model import PartitionId, TopicPartition
from maxbrod.storage.stores import open_storage
from support.catalog_rows import run, segment
from support.given_records import Given, batch

if TYPE_CHECKING:
    from collections.abc import Iterator

LAST = 2**31 - 1
GIB = 1 << 30
LOOKS = (["ls"], ["ls", "--json"], ["status"], ["check"], ["show", "orders"])


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """What would take more than this is a MemoryError instead of a machine that stands still."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + 4 * GIB, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def archive(
    folder: Path, layout: str, *, partition: int = 0, counts: dict[str, int] | None = None, factor: int | None = None
) -> str:
    storage, survey = open_storage(str(folder)), Survey(layout=layout, segments=())
    where, given = TopicPartition(topic="orders", partition=partition), batch([Given(offset=0), Given(offset=1)])
    written = layout_of(layout).write(storage, where, [given], WriteOptions(), survey=survey)
    topics = {
        name: ForeignTopic(name=name, partition_count=count, replication_factor=factor)
        for name, count in (counts or {}).items()
    }
    facts = ClusterFacts(cluster_id="c", topics=topics, taken_at_ms=5)
    layout_of(layout).publish(storage, survey, written, WriteOptions(), facts)
    return str(folder)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    output = capsys.readouterr()
    assert "Traceback" not in output.err
    return " ".join((output.out + output.err).split())


@pytest.mark.parametrize("layout", FOREIGN)
def test_a_partition_of_the_highest_number_is_refused_by_its_topic_and_takes_no_memory(
    layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = archive(tmp_path / "a", layout, partition=LAST)
    for verb in LOOKS:
        assert maxbrod([*verb, "--archive", url]) == EXIT_CORRUPT, verb
        assert "the topic would have 2,147,483,648 partitions, of which the archive shows 1" in said(capsys)


def test_a_folder_of_a_broker_with_the_highest_number_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "logs" / f"orders-{LAST}"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}.log").write_bytes(b"")
    assert maxbrod(["ls", "--archive", str(tmp_path / "logs"), "--layout", "logdir"]) == EXIT_CORRUPT
    assert "2,147,483,648 partitions, of which the archive shows" in said(capsys)


def test_many_topics_together_are_bounded_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of them may have so many; all of them would be a thousand million."""
    url = archive(tmp_path / "a", "kbak", counts={f"t{number}": 1_000_000 for number in range(1000)})
    assert maxbrod(["ls", "--archive", url]) == EXIT_CORRUPT
    assert "1,000,000 partitions, of which the archive shows 0" in said(capsys)


def test_replicas_count_for_every_partition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = archive(tmp_path / "a", "kbak", counts={"orders": 900_000}, factor=32_767)
    assert maxbrod(["ls", "--archive", url]) == EXIT_CORRUPT
    assert "each of 900,000 partitions has 32,767 replicas" in said(capsys)


def test_what_an_archive_shows_of_partitions_is_not_bounded() -> None:
    """However many there are: they were seen, each in bytes of its own."""
    places = [(f"t{topic}", number) for topic in range(3) for number in range(700_000)]
    assert bounds.count_partitions(places, {"t0": 900_000}) == {"t0": 900_000, "t1": 700_000, "t2": 700_000}
    with pytest.raises(CorruptDataError, match=r"1,000,002 partitions, of which the archive shows 1;"):
        bounds.count_partitions([("t", 1_000_001)])


def test_a_snapshot_is_not_written_for_partitions_that_nobody_saw() -> None:
    ends = {PartitionId(topic_id="orders", partition=LAST): 5}
    snapshot = Snapshot(run_id="r", taken_at_ms=0, cluster={}, ends=ends, topics={"orders": "orders"})
    with pytest.raises(CorruptDataError, match="2,147,483,648 partitions"):
        encode(snapshot)


def native(folder: Path) -> Path:
    catalog = Catalog.create(open_storage(str(folder)))
    catalog.commit([segment(0, 5), run("first", snapshot="snapshots/first.json.zst")])
    (folder / "snapshots").mkdir()
    return folder


def refused(folder: Path, capsys: pytest.CaptureFixture[str], words: str) -> None:
    maxbrod(["ls", "--archive", str(folder)])
    said(capsys)
    assert maxbrod(["check", "--archive", str(folder)]) == EXIT_CORRUPT
    assert words in said(capsys)


def test_a_snapshot_larger_than_memory_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = native(tmp_path / "a")
    with (folder / "snapshots/first.json.zst").open("wb") as file:
        file.truncate(40 * GIB)
    refused(folder, capsys, "the object has 42,949,672,960 bytes")


def test_a_snapshot_that_unpacks_without_end_is_not_unpacked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = native(tmp_path / "a")
    piece = bytes(cramjam.zstd.compress(b" " * (8 << 20)))
    (folder / "snapshots/first.json.zst").write_bytes(piece * 1000)
    refused(folder, capsys, f"unpack to more than {bounds.DOCUMENT_BYTES_MAX} bytes")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"add":' + "[" * 1_000_000 + "]" * 1_000_000 + "}", "nested too deeply"),
        ('{"add":' + "[" * 1_000_000, "nested too deeply"),
        ('{"add":' + '{"a":' * 5_000 + "0" + "}" * 5_000 + "}", "nested too deeply"),
    ],
)
def test_an_entry_of_the_log_that_nests_without_end_is_refused(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = native(tmp_path / "a")
    (folder / f"catalog/segments/_delta_log/{2:020d}.json").write_text(text)
    refused(folder, capsys, words)


def test_entries_of_the_log_are_bounded_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are read at the same time, and each may be as large as one may be."""
    folder = native(tmp_path / "a")
    for version in range(2, 8):
        with (folder / f"catalog/segments/_delta_log/{version:020d}.json").open("wb") as file:
            file.truncate(GIB - 1)
    refused(folder, capsys, "is the most for one that is read whole")


def test_a_catalog_does_not_hold_more_rows_than_its_bytes_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = native(tmp_path / "a")
    row = encode_rows([segment(5, 6)])
    Catalog.open(open_storage(str(folder))).commit(row.take([0] * 200_000))
    assert maxbrod(["ls", "--archive", str(folder)]) != EXIT_CORRUPT
    # Parquet would need larger files for the real bound to matter.
    monkeypatch.setattr("maxbrod.catalog.files.ROWS_PER_BYTE_MAX", 1)
    assert maxbrod(["ls", "--archive", str(folder)]) == EXIT_CORRUPT
    assert "claim to hold more rows than their bytes can" in said(capsys)


@pytest.mark.parametrize("layout", ["kbak", "kbs"])
def test_a_manifest_that_is_large_or_full_of_nothing_is_refused(
    layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A hundredth of each: the real bounds take the test seconds.
    monkeypatch.setattr(bounds, "DOCUMENT_VALUES_MAX", 160_000)
    url = archive(tmp_path / "a", layout)
    (path,) = Path(url).rglob("manifest.json")
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "topics": [[]] * 500_000}))
    maxbrod(["check", "--archive", url])
    assert "values; 160,000 is the most" in said(capsys)
    with path.open("ab") as file:
        file.truncate(40 * GIB)
    maxbrod(["check", "--archive", url])
    assert "the object has 42,949,672,960 bytes" in said(capsys)


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, "[[[[", {"b": '"]}', "c\\": "\\"}]},
        [["\\\\", '\\"[', ""], [], {}, {"": [""]}],
        [[[[[[[[[["deep"]]]]]]]]]],
        "[" * 500,
        [{"x": "," * 500}] * 50,
    ],
)
def test_what_stands_in_texts_is_neither_nesting_nor_values(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "DOCUMENT_VALUES_MAX", 150)
    for text in (json.dumps(value), json.dumps(value, indent=2), json.dumps(value, ensure_ascii=False).encode()):
        assert strict_json.parse(text, depth_max=12) == value


@pytest.mark.parametrize("depth", [1, 5, 200])
def test_nesting_is_allowed_up_to_its_bound(depth: int) -> None:
    padding = "1," * 500
    text = "[" * depth + padding + "1" + "]" * depth
    strict_json.parse(text, depth_max=depth)
    with pytest.raises(ValueError, match="nested too deeply"):
        strict_json.parse(text, depth_max=depth - 1)
