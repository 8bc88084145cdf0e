"""A streams group is captured with its offsets and its topology, and its application goes on after a restore."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from maxbrod.cli.main import run
from maxbrod.kafka.groups import commit_offsets
from maxbrod.kafka.state.capture import capture
from maxbrod.kafka.state.cluster_state import CommittedOffset, Subtopology, decode_state, encode_state
from maxbrod.kafka.wire.coordination import GROUP, find_coordinator
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.messages import message_pair
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import create_topic, delete_topic
from maxbrod.sandbox.traffic import numbered, produce
from maxbrod.state.verb import changes_between
from support.backups import back_up, config_of
from support.cluster_changes import await_coordinator
from support.kafka_reads import client_of
from support.restores import Command
from support.sparkless import without_spark

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.sandbox.cluster import Cluster

HeartbeatRequest, _heartbeat_response = message_pair("StreamsGroupHeartbeat", "support.messages")
_JOIN, _LEAVE = 0, -1


def beat(client: KafkaClient, group_id: str, member_id: str, epoch: int, **told: Any) -> Any:
    """A heartbeat of a member, and how the coordinator answers it."""
    request = HeartbeatRequest(group_id=group_id, member_id=member_id, member_epoch=epoch, **told)
    node_id = find_coordinator(client, group_id, GROUP, deadline=Deadline.after(60))
    return client.ask_broker(node_id, request, deadline=Deadline.after(60))


def run_application(client: KafkaClient, group_id: str, topic: str) -> None:
    """Join with a topology, and leave again."""
    part = HeartbeatRequest.Topology.Subtopology(
        subtopology_id="0",
        source_topics=[topic],
        source_topic_regex=[],
        repartition_sink_topics=[],
        repartition_source_topics=[],
        state_changelog_topics=[_internal(f"{group_id}-counts-changelog")],
        copartition_groups=[],
    )
    member = str(uuid.uuid4())
    told = {
        "topology": HeartbeatRequest.Topology(epoch=1, subtopologies=[part]),
        "rebalance_timeout_ms": 60_000,
        "process_id": member,
        "active_tasks": [],
        "standby_tasks": [],
        "warmup_tasks": [],
        "client_tags": [],
    }
    answer = beat(client, group_id, member, _JOIN, **told)
    assert not answer.error_code, answer
    answer = beat(client, group_id, member, _LEAVE)
    assert not answer.error_code, answer


def _internal(name: str) -> Any:
    kind = HeartbeatRequest.Topology.Subtopology.TopicInfo
    return kind(name=name, partitions=0, replication_factor=1, topic_configs=[])


def test_a_streams_group_is_captured_with_its_topology_and_its_application_goes_on_after_a_restore(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(20))
    group_id = f"{topic}-app"
    with cluster.admin() as admin:
        await_coordinator(admin, group_id)
    with client_of(cluster) as client:
        run_application(client, group_id, topic)
        offset = CommittedOffset(topic=topic, topic_id=None, partition=0, offset=7, leader_epoch=-1, metadata="")
        assert all(outcome.done for outcome in commit_offsets(client, group_id, [offset]).values())
        state = capture(client, [topic], {group_id})
    (group,) = state.groups
    assert group.type == "streams"
    assert [found.offset for found in group.offsets or ()] == [7]
    changelog = f"{group_id}-counts-changelog"
    assert group.topology == (
        Subtopology(
            subtopology_id="0",
            source_topics=(topic,),
            sink_topics=(),
            repartition_topics=(),
            changelog_topics=(changelog,),
        ),
    )
    assert decode_state(encode_state(state)) == state

    archive = tmp_path / "archive"
    command = Command(cluster, archive, capsys)
    with without_spark():
        back_up(config_of(cluster, archive, topic))
        assert run(["state", "--archive", str(archive)]) == 0
        assert f"{group_id}: 0 reads {topic}, keeps its state in {changelog}" in capsys.readouterr().out
        delete_topic(cluster, topic)
        with cluster.admin() as admin:
            admin.delete_groups([group_id])
        command("restore", "--groups", group_id, "--yes")
    with client_of(cluster) as client:
        run_application(client, group_id, topic)

        def restored() -> bool:
            (found,) = capture(client, [topic], {group_id}).groups
            return (found.type, [known.offset for known in found.offsets or ()]) == ("streams", [7])

        wait_for("the group", restored, timeout_s=60)
        assert not list(changes_between(state, capture(client, [topic], {group_id})))[1:], "only the topic's id"
