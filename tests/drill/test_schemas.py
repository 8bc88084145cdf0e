"""A drill proves the captured schema registry as far as it can, and says what it did not test."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from maxbrod.compare.plan import ComparedRange
from maxbrod.drill.schemas import OFFSETS, PARTITIONS_MAX, Lookup, ends_of, spread_over_topics
from maxbrod.model import TopicPartition
from maxbrod.registry.model import RegistryState, SubjectVersion
from support.archives import damage
from support.drills import remembered
from support.framed_records import batch, frame
from support.registries import RegistryDouble, record, serving
from support.restores import Command
from support.schema_archives import COUNT, SchemaArchive, archived_with_registry
from support.sparkless import without_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.sandbox.cluster import Cluster

CAPTURED = RegistryState(
    versions={
        version.place: version
        for version in (
            SubjectVersion(subject="orders-value", version=1, id=3, schema='"int"'),
            SubjectVersion(subject="by.Name", version=1, id=4, schema='"long"'),
        )
    },
    lost=(SubjectVersion(subject="gone-value", version=1, id=9, schema='"bytes"', lost_since="run"),),
)


def where(topic: str, partition: int = 0) -> TopicPartition:
    return TopicPartition(topic=topic, partition=partition)


def looked_up(topic: str, *values: bytes, unframed: tuple[str, ...] = ()) -> Lookup:
    lookup = Lookup(CAPTURED, unframed)
    lookup.add(where(topic, 2), batch(*((None, value, []) for value in values)))
    return lookup


def test_an_id_that_was_not_captured_is_named_once_by_its_first_record() -> None:
    lookup = looked_up("orders", frame(3), frame(77), frame(9), frame(77), b"plain")
    assert (lookup.records, lookup.found, lookup.unsure) == (5, 2, 0)
    assert [str(one) for one in lookup.unknown.values()] == ["orders-2 offset 11: the value has schema 77"]


def test_what_only_looks_like_an_id_is_counted_as_not_tested() -> None:
    lookup = looked_up("numbers", frame(4), frame(77))
    assert (lookup.found, lookup.unsure, lookup.unknown) == (1, 1, {})


def test_topics_that_have_no_ids_are_not_looked_up() -> None:
    lookup = looked_up("orders", frame(3), frame(77), unframed=("orders:value",))
    assert (lookup.found, lookup.unsure, lookup.unknown) == (0, 0, {})


def test_the_partitions_that_are_looked_at_are_of_as_many_topics_as_possible() -> None:
    large = [where("a", number) for number in range(200)]
    chosen = spread_over_topics([*large, where("b"), where("c", 7)])
    assert len(chosen) == PARTITIONS_MAX
    assert chosen[:3] == [where("a"), where("b"), where("c", 7)]


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (10, []),
        (11, [(10, 11)]),
        (10 + OFFSETS, [(10, 10 + OFFSETS)]),
        (15 + OFFSETS, [(10, 10 + OFFSETS), (10 + OFFSETS, 15 + OFFSETS)]),
        (100_000, [(10, 10 + OFFSETS), (100_000 - OFFSETS, 100_000)]),
    ],
)
def test_both_ends_of_a_partition_are_looked_at_and_no_record_twice(end: int, expected: list[tuple[int, int]]) -> None:
    whole = ComparedRange(topic="t", topic_id="", partition=0, first=10, end=end)
    assert [(extent.first, extent.end) for extent in ends_of(whole)] == expected


@pytest.fixture
def source(cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SchemaArchive]:
    monkeypatch.chdir(tmp_path)
    with archived_with_registry(cluster, topic, tmp_path) as found, without_spark():
        yield found


def test_a_drill_proves_the_schemas_of_restored_records_and_imports_them(
    source: SchemaArchive, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command(source.cluster, source.archive, capsys)
    with serving() as scratch:
        report = command.json("drill", "--schema-registry", scratch.url)["report"]
        assert not scratch.versions, "what was imported is deleted again"
        assert scratch.registrations() == 3
        words = command("drill", "--schema-registry", scratch.url)
        assert f"imported into {scratch.url}, with the same ids, and deleted again: 3 versions" in words
        scratch.register("theirs", record("Theirs", "id"))
        refused = command.json("drill", "--schema-registry", scratch.url, exits=5)["report"]
        assert refused["error"]["message"] == "the scratch registry is not empty"
        assert list(scratch.versions) == [("theirs", 1)]
    schemas = report["schemas"]
    assert report["verdict"] == "proven"
    assert (schemas["versions"], schemas["records"], schemas["found"]) == (3, COUNT + 2, COUNT)
    assert (schemas["unknown"], schemas["unresolved"], schemas["unsure"]) == ([], [], 0)
    assert schemas["imported"] == 3
    # Without a registry the import is named as not tested.
    document = command.json("drill")
    assert "the import into a registry (--schema-registry)" in document["report"]["schemas"]["untested"]
    page = Path(document["files"][1]).read_text()
    assert "<h2>Schema registry</h2>" in page
    assert "the import into a registry" in page
    assert remembered(source.archive) == []


def test_a_drill_of_records_without_their_schema_or_with_a_damaged_capture_proves_nothing(
    source: SchemaArchive, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command(source.cluster, source.archive, capsys)
    producer = Producer({"bootstrap.servers": source.cluster.bootstrap})
    producer.produce(source.topic, struct.pack(">bI", 0, 999) + b"unknown", b"k")
    assert producer.flush(60) == 0
    assert source.back_up().complete
    document: dict[str, Any] = command.json("drill", exits=3)
    report = document["report"]
    assert report["verdict"] == "differs"
    assert report["comparison"]["equal"]
    expected = {"topic": source.topic, "partition": 0, "offset": COUNT + 2, "part": "value", "schema": "999"}
    assert report["schemas"]["unknown"] == [expected]
    page = Path(document["files"][1]).read_text()
    assert "Not proven: restored records need schemas that were not captured" in page
    assert '<td class="">999</td>' in page
    assert "differs: every sampled record equals the archive's, but schemas" in command("drill", exits=3)
    assert command.json("drill", "--unframed", f"{source.topic}:value")["report"]["verdict"] == "proven"
    for path in (source.archive / "registry").iterdir():
        path.chmod(0o644)
        damage(path)
    failed = command.json("drill", exits=4)["report"]
    assert failed["verdict"] == "failed"
    assert "captured registry is damaged" in failed["error"]["message"]
    assert remembered(source.archive) == []


def test_a_drill_with_a_registry_needs_a_capture(
    cluster: Cluster, topic: str, source: SchemaArchive, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plain = SchemaArchive(cluster, topic, tmp_path / "plain", source.registry)
    assert plain.back_up(schema_registry=None).complete
    command = Command(cluster, plain.archive, capsys)
    with serving(RegistryDouble()) as scratch:
        report = command.json("drill", "--schema-registry", scratch.url, exits=2)["report"]
        assert "no captured registry" in report["error"]["message"]
        assert not [method for method, _ in scratch.requests if method != "GET"]
