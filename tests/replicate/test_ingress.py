"""Native ingress against a real broker: the mirror equals the source, offset by offset."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.config import KafkaConfig
from maxbrod.errors import UnavailableError
from maxbrod.kafka.admin import create_partitions, delete_records
from maxbrod.kafka.fetch.offsets import log_end
from maxbrod.kafka.produce import producer
from maxbrod.kafka.produce.appends import Feed, Hole
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import TopicPartition
from maxbrod.replicate.ingress.run import Ingress
from maxbrod.replicate.link import State
from maxbrod.sandbox.surgery import compact
from maxbrod.sandbox.topics import create_topic, delete_topic, offsets, recreate_topic, set_topic_config
from maxbrod.sandbox.traffic import Message, numbered, produce, produce_transaction
from support.replications import SUFFIX, archive, assert_mirrored, carry, link_config, only, take_in
from support.restore_oracle import log_of
from support.restores import configs_of, joined, put, stand

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster


def test_a_mirror_follows_its_source_interval_by_interval(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    create_topic(cluster, topic, partitions=2)
    config = link_config(cluster, tmp_path / "archive", topic)
    produce(cluster, topic, numbered(100))
    report = carry(config)
    assert [each.state for each in report.partitions] == [State.IN_STEP, State.IN_STEP]
    assert only(report).lag_records == 0
    assert only(report).lag_ms is not None
    produce(cluster, topic, numbered(50, first=100))
    produce(cluster, topic, numbered(30), partition=1)
    assert carry(config).appended == 80
    assert take_in(config).appended == 0
    assert_mirrored(cluster, topic)
    assert_mirrored(cluster, topic, 1)


def test_transactions_leave_the_offsets_exact(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic)
    for number in range(3):
        messages = numbered(5, first=number * 5)
        produce_transaction(cluster, topic, messages, transactional_id=f"{topic}-{number}", commit=number != 1)
        carry(config)
    start, end = offsets(cluster, topic)
    assert offsets(cluster, topic + SUFFIX) == (start, end)
    mirror = log_of(cluster, topic + SUFFIX)
    assert list(mirror) == [*range(5), *range(12, 17)]


def test_a_compacted_source_has_an_exact_mirror(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    """What compaction took before it was read is a hole of the mirror."""
    create_topic(cluster, topic, config={"cleanup.policy": "compact"})
    config = link_config(cluster, tmp_path / "archive", topic)
    produce(cluster, topic, [Message(key=b"key", value=b"value-%d" % number) for number in range(5)])
    assert only(carry(config)).state is State.IN_STEP
    produce(
        cluster, topic, [Message(key=b"key", value=b"value-%d" % number) for number in range(5, 40)], batch_size=200
    )
    compact(cluster, topic)
    assert only(carry(config)).state is State.IN_STEP
    assert offsets(cluster, topic + SUFFIX) == offsets(cluster, topic)
    source, mirror = log_of(cluster, topic), log_of(cluster, topic + SUFFIX)
    assert not set(range(5, 39)) & mirror.keys()
    assert {at: each for at, each in mirror.items() if at >= 5} == {at: each for at, each in source.items() if at >= 5}


def test_the_log_start_follows_the_source(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    """A mirror begins at the source's log start, within a batch, and moves on with it, also to the very end."""
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic)
    produce(cluster, topic, numbered(100))
    delete_before(cluster, topic, 37)
    carry(config)
    assert_mirrored(cluster, topic)
    produce(cluster, topic, numbered(20, first=100))
    delete_before(cluster, topic, 110)
    carry(config)
    assert_mirrored(cluster, topic)
    delete_before(cluster, topic, 120)
    carry(config)
    assert offsets(cluster, topic + SUFFIX) == (120, 120)
    produce(cluster, topic, numbered(5, first=120))
    carry(config)
    assert_mirrored(cluster, topic)


def test_a_topic_is_created_configured_and_grown_as_the_source_is(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    create_topic(
        cluster, topic, config={"cleanup.policy": "compact", "segment.ms": "3600000", "retention.ms": "86400000"}
    )
    config = link_config(cluster, tmp_path / "archive", topic)
    produce(cluster, topic, numbered(10))
    carry(config)
    found = configs_of(cluster, topic + SUFFIX) or {}
    assert (found["cleanup.policy"], found["segment.ms"]) == ("compact", "3600000")
    assert found["retention.ms"] == "-1", "brokers must not delete what the source still has"
    set_topic_config(cluster, topic, {"cleanup.policy": "compact,delete", "segment.ms": "7200000"})
    with KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap)) as client:
        assert create_partitions(client, {topic: 3})[topic].done
    produce(cluster, topic, numbered(10), partition=2)
    report = carry(config)
    found = configs_of(cluster, topic + SUFFIX) or {}
    assert (found["cleanup.policy"], found["segment.ms"]) == ("compact,delete", "7200000")
    assert len(report.partitions) == 3
    assert_mirrored(cluster, topic)
    assert_mirrored(cluster, topic, 2)


def test_a_recreated_source_topic_never_continues_the_old_mirror(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic)
    produce(cluster, topic, numbered(10))
    carry(config)
    recreate_topic(cluster, topic)
    produce(cluster, topic, numbered(30, first=1000))
    report = carry(config)
    assert only(report).state is State.FAULTED
    assert "created again" in (only(report).why or "")
    assert report.exit_code == 5
    assert len(log_of(cluster, topic + SUFFIX)) == 10
    delete_topic(cluster, topic + SUFFIX)
    assert only(take_in(config)).state is State.IN_STEP
    assert_mirrored(cluster, topic)


def test_a_deleted_source_topic_leaves_its_mirror(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic)
    produce(cluster, topic, numbered(10))
    carry(config)
    delete_topic(cluster, topic)
    report = carry(config)
    assert only(report).state is State.SOURCE_GONE
    assert len(log_of(cluster, topic + SUFFIX)) == 10


def test_a_partition_that_is_refused_leaves_its_neighbours_alone(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    """Others have written to the partition that is to come, in a topic that is a mirror: for as long as they have."""
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic)
    produce(cluster, topic, numbered(10))
    carry(config)
    with KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap)) as client:
        create_partitions(client, {topic: 2, topic + SUFFIX: 2})
    produce(cluster, topic + SUFFIX, numbered(3, first=500), partition=1)
    produce(cluster, topic, numbered(10, first=10))
    produce(cluster, topic, numbered(5), partition=1)
    archive(config)
    with Ingress(config) as ingress:
        reports = [ingress.run(), ingress.run()]
    for report in (*reports, take_in(config)):
        assert (only(report).state, only(report).end) == (State.IN_STEP, 20)
        assert only(report, 1).state is State.FAULTED
        assert f"{topic}{SUFFIX}-1" in (only(report, 1).why or "")
    assert len(log_of(cluster, topic + SUFFIX, 1)) == 3


def test_a_topic_that_others_write_to_is_never_appended_to(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic)
    produce(cluster, topic, numbered(10))
    create_topic(cluster, topic + SUFFIX, config={"retention.ms": "1234567"})
    produce(cluster, topic + SUFFIX, numbered(3, first=500))
    report = carry(config)
    assert only(report).state is State.FAULTED
    assert "not written" in (only(report).why or "")
    assert len(log_of(cluster, topic + SUFFIX)) == 3
    assert (configs_of(cluster, topic + SUFFIX) or {})["retention.ms"] == "1234567"


def test_a_foreign_record_in_a_mirror_stops_it(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic)
    produce(cluster, topic, numbered(10))
    with Ingress(config) as ingress:
        archive(config)
        ingress.run()
        produce(cluster, topic + SUFFIX, numbered(1, first=500))
        produce(cluster, topic, numbered(10, first=10))
        archive(config)
        assert only(ingress.run()).state is State.FAULTED
    assert only(take_in(config)).state is State.FAULTED
    assert len(log_of(cluster, topic + SUFFIX)) == 11


def test_a_faulted_mirror_that_is_deleted_is_mirrored_anew_by_the_same_process(
    cluster: Cluster, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A marker arrives behind the fence of the one that fills the hole: the log is one offset too long."""
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic)
    produce(cluster, topic, numbered(10))
    produce_transaction(cluster, topic, numbered(2, first=10), transactional_id=topic)
    produce(cluster, topic, numbered(10, first=12))
    archive(config)

    def log_end_then(*words: Any, **more: Any) -> int:
        """Another process fills the hole at that very moment."""
        monkeypatch.setattr(producer, "log_end", log_end)
        end = log_end(*words, **more)
        with KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap)) as client:
            where = TopicPartition(topic=topic + SUFFIX, partition=0)
            topic_id = client.topic(where.topic, deadline=Deadline.after(60)).topic_id
            late = Feed(where=where, topic_id=topic_id, first_offset=end, appends=[Hole(count=1, source_offset=end)])
            list(producer.produce_all(client, [late]))
        return end

    with Ingress(config) as ingress:
        monkeypatch.setattr(producer, "log_end", log_end_then)
        assert only(ingress.run()).state is State.FAULTED
        assert offsets(cluster, topic + SUFFIX) == (0, 14), "one marker too many, and no record behind it"
        assert only(ingress.run()).state is State.FAULTED
        delete_topic(cluster, topic + SUFFIX)
        assert only(ingress.run()).state is State.IN_STEP
    assert_mirrored(cluster, topic)


def test_a_segment_that_is_late_or_half_copied_is_waited_for(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic)
    copy = config.model_copy(update={"archive": str(tmp_path / "copy")})
    produce(cluster, topic, numbered(500))
    archive(config)
    shutil.copytree(tmp_path / "archive", tmp_path / "copy")
    produce(cluster, topic, numbered(500, first=500))
    archive(config)
    objects = set(_data_of(tmp_path / "archive")) - set(_data_of(tmp_path / "copy"))
    (late,) = objects
    shutil.copytree(tmp_path / "archive", tmp_path / "copy", dirs_exist_ok=True)
    whole = (tmp_path / "copy" / late).read_bytes()
    (tmp_path / "copy" / late).unlink()
    report = take_in(copy)
    assert (only(report).state, only(report).end) == (State.LATE_SEGMENT, 500)
    assert report.exit_code == 3
    (tmp_path / "copy" / late).write_bytes(whole[: len(whole) // 2])
    report = take_in(copy)
    assert (only(report).state, only(report).end) == (State.LATE_SEGMENT, 500)
    (tmp_path / "copy" / late).write_bytes(whole)
    assert only(take_in(copy)).state is State.IN_STEP
    assert_mirrored(cluster, topic)


def test_a_stale_catalog_is_waited_for_and_never_followed_back(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic)
    copy = config.model_copy(update={"archive": str(tmp_path / "copy")})
    produce(cluster, topic, numbered(10))
    archive(config)
    shutil.copytree(tmp_path / "archive", tmp_path / "old")
    produce(cluster, topic, numbered(10, first=10))
    archive(config)
    shutil.copytree(tmp_path / "archive", tmp_path / "copy")
    with Ingress(copy) as ingress:
        ingress.run()
        shutil.rmtree(tmp_path / "copy")
        shutil.copytree(tmp_path / "old", tmp_path / "copy")
        with pytest.raises(UnavailableError, match="stale catalog"):
            ingress.run()
    with pytest.raises(UnavailableError, match="stale catalog"):
        take_in(copy)  # also a new instance knows
    shutil.copytree(tmp_path / "archive", tmp_path / "copy", dirs_exist_ok=True)
    assert only(take_in(copy)).state is State.IN_STEP
    assert_mirrored(cluster, topic)


def test_groups_are_carried_forward_and_never_past_what_has_arrived(
    cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    group = f"group-{topic}"
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, groups=(group,))
    produce(cluster, topic, numbered(100))
    put(cluster, group, {(topic, 0): 40})
    carry(config)
    assert stand(cluster, group)[topic + SUFFIX, 0] == 40
    put(cluster, group, {(topic, 0): 60})
    archive(config)
    put(cluster, group, {(topic + SUFFIX, 0): 80})  # it has been used at the destination
    take_in(config)
    assert stand(cluster, group)[topic + SUFFIX, 0] == 80
    produce(cluster, topic, numbered(10, first=100))
    put(cluster, group, {(topic, 0): 105})
    with joined(cluster, group, topic + SUFFIX):
        carry(config)
    assert stand(cluster, group)[topic + SUFFIX, 0] == 80, "it had members"
    carry(config)
    assert stand(cluster, group)[topic + SUFFIX, 0] == 105


def delete_before(cluster: Cluster, topic: str, offset: int) -> None:
    with KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap)) as client:
        _, failed = delete_records(client, {TopicPartition(topic=topic, partition=0): offset})
    assert not failed


def _data_of(archive: Path) -> list[Path]:
    folders = [archive / "segments", archive / "packs"]
    return [path.relative_to(archive) for folder in folders for path in folder.rglob("*") if path.is_file()]
