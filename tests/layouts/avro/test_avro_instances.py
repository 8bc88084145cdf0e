"""Instances that take turns: only one process of each goes on, and files of a process that was replaced never count."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import fastavro.schema
import pyarrow as pa
import pytest

from maxbrod.archive.foreign_target import InstanceTarget, TargetRequest
from maxbrod.batch.columns import RECORD_SCHEMA
from maxbrod.config import StorageConfig
from maxbrod.errors import CorruptDataError, RefusedError
from maxbrod.layouts.avro.instances import (
    FINGERPRINT,
    FOLDER,
    Instance,
    InstanceMark,
    InstanceStage,
    put_next,
    read_instances,
)
from maxbrod.layouts.avro.survey import survey
from maxbrod.layouts.avro.writer import write
from maxbrod.layouts.foreign import Survey, WriteOptions
from maxbrod.model import TopicPartition
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.storage.interface import Storage

WHERE = TopicPartition(topic="customers", partition=0)
NAME = "b-activate"
OTHER = "b-passivate"


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "avro"))


def records(first: int, count: int, value: bytes) -> pa.RecordBatch:
    rows = [
        {
            "offset": first + each,
            "timestamp_ms": 1,
            "timestamp_type": 0,
            "key": b"k",
            "value": value,
            "headers": [],
            "leader_epoch": 0,
            "producer_id": -1,
            "producer_epoch": -1,
            "sequence": -1,
            "transactional": False,
            "control": False,
        }
        for each in range(count)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=RECORD_SCHEMA)


def put_file(storage: Storage, first: int, count: int, *, generation: int, claim: int, instance: str = NAME) -> None:
    mark = InstanceMark(instance=instance, generation=generation, claim=claim)
    options = WriteOptions(extra=mark.metadata())
    batch = records(first, count, b"generation %d" % generation)
    write(storage, WHERE, [batch], options, Survey(layout="avro", segments=()))


def document(**fields: object) -> Instance:
    return Instance(**{"name": NAME, "topic": WHERE.topic, **fields})  # type: ignore[arg-type]


def target(storage: Storage) -> InstanceTarget:
    request = TargetRequest(layout="avro")
    return InstanceTarget(storage.url, StorageConfig(), request, instance=NAME, other=OTHER)


def held(storage: Storage, instance: str | None = None) -> list[tuple[int, int]]:
    return [(each.base_offset, each.end_offset) for each in survey(storage, instance).segments]


def test_the_fingerprint_is_that_of_the_schema_of_the_original() -> None:
    text = fastavro.schema.to_parsing_canonical_form(
        {
            "namespace": "ch.tbd.kafka.backuprestore.model.avro",
            "type": "record",
            "name": "AvroCompactedLogBackupCoordination",
            "fields": [
                {"name": "event", "type": {"name": "EnumType", "type": "enum", "symbols": ["ACTIVATE", "PASSIVATE"]}},
                {"name": "connectorInstanceName", "type": "string"},
                {"name": "topic", "type": "string"},
                {"name": "partition", "type": "int"},
                {"name": "offset", "type": "long"},
                {"name": "timestamp", "type": "long"},
            ],
        }
    )
    assert fastavro.schema.fingerprint(text, "CRC-64-AVRO") == FINGERPRINT.hex()


def test_files_stand_where_the_connector_has_them_in_the_order_of_offsets(storage: Storage) -> None:
    """The tool sorts the names of a folder and reads each. The generation at the end makes a name one of its own."""
    for first in (7, 11):
        put_file(storage, first, 1, generation=1, claim=1)
    assert [each.path for each in storage.list()] == [
        "customers/b-activate/0/customers-0-000000000000007-g1.avro",
        "customers/b-activate/0/customers-0-000000000000011-g1.avro",
    ]


def test_a_process_that_is_suspended_while_it_deletes_its_files_deletes_none_of_its_successor(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has listed the files of one generation. When it wakes up, the next one stands in their place."""
    zombie = target(storage)
    zombie.claim(WHERE.topic)
    put_file(storage, 0, 10, generation=1, claim=zombie.document.claim)
    zombie.save(generation=2, stage=InstanceStage.WAITING, topic_ids={WHERE.topic: "1"})
    delete = zombie._storage.delete

    def sleep_then_delete(paths: list[str]) -> None:
        monkeypatch.undo()
        successor = target(storage)
        successor.claim(WHERE.topic)
        successor.clear()
        for first in (0, 10):
            put_file(storage, first, 10, generation=2, claim=successor.document.claim)
        successor.save(stage=InstanceStage.ACTIVE)
        delete(paths)

    monkeypatch.setattr(zombie._storage, "delete", sleep_then_delete)
    with pytest.raises(RefusedError, match="another process"):
        zombie.clear()
    assert held(storage) == [(0, 10), (10, 20)]


def test_of_two_processes_of_one_instance_only_one_goes_on(storage: Storage) -> None:
    first = put_next(storage, document())
    second = put_next(storage, replace(first, claim=first.version + 1))
    with pytest.raises(RefusedError, match="another process"):
        put_next(storage, first)
    assert read_instances(storage) == {NAME: second}


def test_a_name_that_has_become_free_again_does_not_let_an_old_process_in(storage: Storage) -> None:
    suspended = put_next(storage, document())
    newest = suspended
    for _ in range(10):
        newest = put_next(storage, newest)
    with pytest.raises(RefusedError, match="another process"):
        put_next(storage, suspended)
    assert read_instances(storage) == {NAME: newest}
    assert len(list(storage.list(FOLDER))) <= 4


def test_a_file_that_is_written_into_a_cleared_place_never_counts(storage: Storage) -> None:
    put_next(storage, document(generation=2, claim=5, stage=InstanceStage.ACTIVE))
    put_file(storage, 0, 10, generation=2, claim=5)
    put_file(storage, 10, 5, generation=1, claim=1)
    assert held(storage) == [(0, 10)]
    assert [(each.offset, each.fatal) for each in survey(storage).faults] == [(10, False)]


def test_a_replaced_process_never_overwrites_a_file_of_its_successor(storage: Storage) -> None:
    put_next(storage, document(generation=2, claim=5, stage=InstanceStage.ACTIVE))
    put_file(storage, 0, 10, generation=2, claim=5)
    with pytest.raises(RefusedError, match="another process"):
        put_file(storage, 0, 99, generation=2, claim=4)
    put_file(storage, 0, 99, generation=1, claim=4)
    assert held(storage) == [(0, 10)]
    # What a replaced process has left under the name is no obstacle, and neither is an attempt of the same process.
    for claim in (6, 6):
        put_file(storage, 0, 12, generation=2, claim=claim)
    assert held(storage) == [(0, 12)]


def test_one_complete_generation_is_read_and_never_two_mixed(storage: Storage) -> None:
    put_next(storage, document(generation=1, stage=InstanceStage.ACTIVE, activated_at_ms=1))
    for first in (0, 10):
        put_file(storage, first, 10, generation=1, claim=0)
    building = put_next(storage, document(name=OTHER, generation=1, stage=InstanceStage.BUILDING))
    put_file(storage, 15, 30, generation=1, claim=0, instance=OTHER)
    assert held(storage) == [(0, 10), (10, 20)]
    put_next(storage, replace(building, stage=InstanceStage.ACTIVE, activated_at_ms=2))
    assert held(storage) == [(15, 45)]
    assert held(storage, NAME) == [(0, 10), (10, 20)]


def test_a_generation_that_is_not_complete_is_not_restored_unasked(storage: Storage) -> None:
    put_next(storage, document(generation=1, stage=InstanceStage.BUILDING))
    put_file(storage, 0, 10, generation=1, claim=0)
    assert [each.refused for each in survey(storage).doubts if "generation" in each.what] == [True]


def test_the_copy_of_the_tool_counts_while_ours_is_not_active(storage: Storage) -> None:
    put_next(storage, document(generation=1, stage=InstanceStage.BUILDING))
    put_file(storage, 0, 50, generation=1, claim=0)
    plain = WriteOptions(extra=InstanceMark(instance=OTHER, generation=0, claim=0).metadata())
    write(storage, WHERE, [records(5, 5, b"the tool's")], plain, Survey(layout="avro", segments=()))
    assert held(storage) == [(5, 10)]


@pytest.mark.parametrize("text", [b"{}", b"[]", b"x", b'{"format":2}'])
def test_a_damaged_document_is_named(storage: Storage, text: bytes) -> None:
    storage.put(f"{FOLDER}/{NAME}/{1:020d}.json", text)
    with pytest.raises(CorruptDataError, match="document of the instance"):
        survey(storage)
