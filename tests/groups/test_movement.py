"""Groups continue at exactly the record that they would have read next, and can be put back."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from maxbrod.errors import UnavailableError, UsageError
from maxbrod.groups.movement import Movement, find_restore
from maxbrod.kafka.groups import ListedGroup, read_offsets, set_share_offsets
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import TopicPartition
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import create_topic, delete_topic
from maxbrod.sandbox.traffic import numbered, produce
from support.backups import back_up, config_of
from support.restores import Command, joined, joined_by_the_newer_protocol, put, read_all, stand
from support.sparkless import without_spark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster


@pytest.fixture
def command(cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """A group of the topic's name stands at 12 of 30, and at the end of the other partition."""
    create_topic(cluster, topic, partitions=2)
    produce(cluster, topic, numbered(30))
    produce(cluster, topic, numbered(10), partition=1)
    put(cluster, topic, {(topic, 0): 12, (topic, 1): 10})
    assert back_up(config_of(cluster, tmp_path / "archive", topic)).complete
    with without_spark():
        yield Command(cluster, tmp_path / "archive", capsys)


def positions(document: dict[str, Any], name: str = "groups") -> dict[int, tuple[int, int, str]]:
    return {each["partition"]: (each["source_offset"], each["offset"], each["move"]) for each in document[name]}


def test_a_group_goes_on_where_it_stood(cluster: Cluster, topic: str, command: Command) -> None:
    delete_topic(cluster, topic)
    report = command.json("restore", "--groups", topic)
    assert positions(report) == {0: (12, 12, "same"), 1: (10, 10, "same")}
    assert stand(cluster, topic) == {(topic, 0): 12, (topic, 1): 10}


def test_a_group_follows_its_records_to_other_offsets(cluster: Cluster, topic: str, command: Command) -> None:
    create_topic(cluster, f"{topic}-new", partitions=2)
    produce(cluster, f"{topic}-new", numbered(7))
    report = command.json("restore", "--offsets", "append", "--suffix", "-new", "--groups", topic)
    assert positions(report) == {0: (12, 19, "same"), 1: (10, 10, "same")}
    assert dict(read_all(cluster, f"{topic}-new"))[19] == b"value-12"
    assert stand(cluster, topic)[f"{topic}-new", 0] == 19


def test_a_group_beyond_the_cut_stands_at_the_end(cluster: Cluster, topic: str, command: Command) -> None:
    report = command.json("restore", "--range", f"{topic}:0:0..5", "--suffix", "-new", "--groups", topic)
    assert positions(report)[0] == (12, 5, "end")
    assert stand(cluster, topic)[f"{topic}-new", 0] == 5


@pytest.mark.parametrize("mode", ["exact", "append"])
def test_a_group_beyond_a_point_in_time_skips_nothing_and_stands_at_the_end(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    create_topic(cluster, topic, config={"retention.ms": "-1"})
    times = [each._replace(timestamp_ms=1_000 + number) for number, each in enumerate(numbered(20))]
    produce(cluster, topic, times)
    put(cluster, topic, {(topic, 0): 15})
    put(cluster, f"{topic}-slow", {(topic, 0): 4})
    back_up(config_of(cluster, tmp_path, topic))
    request = ("--until", "1010", "--suffix", "-cut", "--offsets", mode, "--groups", f"{topic}*")
    with without_spark():
        report = Command(cluster, tmp_path, capsys).json("restore", *request)
    assert [value for _, value in read_all(cluster, f"{topic}-cut")] == [each.value for each in times[:10]]
    assert stand(cluster, f"{topic}-slow")[f"{topic}-cut", 0] == 4
    found = stand(cluster, topic)[f"{topic}-cut", 0]
    assert found == report["partitions"][0]["end"] == 10, "nothing that was read is read again"
    produce(cluster, f"{topic}-cut", numbered(1, first=99))
    assert read_all(cluster, f"{topic}-cut")[-1][0] >= found, "and what comes next is not skipped"


def test_rollback_puts_groups_back_and_forgets_what_was_not_there(
    cluster: Cluster, topic: str, command: Command
) -> None:
    create_topic(cluster, f"{topic}-new", partitions=2)
    put(cluster, topic, {(f"{topic}-new", 0): 3})
    before = stand(cluster, topic)
    command("restore", "--offsets", "append", "--suffix", "-new", "--groups", topic)
    assert stand(cluster, topic) != before
    command("groups", "apply")
    assert "put back" in command("groups", "rollback")
    assert stand(cluster, topic) == before, "also after the groups were moved twice"


def test_an_active_group_is_never_moved(cluster: Cluster, topic: str, command: Command) -> None:
    with joined(cluster, topic, topic):
        report = command.json("restore", "--suffix", "-new", "--groups", topic, exits=5)
        assert {each["refused"] for each in report["groups"]} == {"it has members: stop them first"}
        assert not any(name == f"{topic}-new" for name, _ in stand(cluster, topic))
        told = command.json("groups", "plan", exits=5)
        assert positions(told, "positions")[0] == (12, 12, "same")
    command("groups", "apply")
    assert stand(cluster, topic)[f"{topic}-new", 0] == 12


def test_a_forced_group_is_moved_though_it_is_active_and_can_be_put_back(
    cluster: Cluster, topic: str, command: Command
) -> None:
    create_topic(cluster, f"{topic}-new", partitions=2)
    put(cluster, topic, {(f"{topic}-new", 0): 3})
    before = stand(cluster, topic)
    request = ("restore", "--offsets", "append", "--suffix", "-new", "--groups", topic, "--force-groups")
    with joined(cluster, topic, topic):
        planned = command.json(*request, "--dry-run")
        assert [each["what"] for each in planned["obstacles"]] == ["it has members, which are removed for a moment"]
        report = command.json(*request)
        assert positions(report)[0] == (12, 12, "same")
        assert [each["forced"] for each in report["groups"]] == [True, True]
        assert stand(cluster, topic)[f"{topic}-new", 0] == 12
    with joined(cluster, topic, topic):
        command("groups", "rollback", exits=5)
        command("groups", "rollback", "--force")
        assert stand(cluster, topic) == before


def test_members_of_the_newer_protocol_are_never_taken_for_removed(
    cluster: Cluster, topic: str, command: Command
) -> None:
    with joined_by_the_newer_protocol(cluster, topic, topic):
        request = ("restore", "--suffix", "-new", "--groups", topic, "--force-groups")
        report = command.json(*request, exits=5)
        assert all("newer protocol" in each["refused"] for each in report["groups"])
        assert not any(each["forced"] for each in report["groups"])
        assert not any(name == f"{topic}-new" for name, _ in stand(cluster, topic))


def test_forcing_no_group_is_bad_usage(command: Command) -> None:
    command("restore", "--suffix", "-new", "--force-groups", exits=2)


def test_a_share_group_begins_where_it_stood_and_can_be_put_back(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic, partitions=2)
    produce(cluster, topic, numbered(30))
    share = f"share-{topic}"
    with client_of(cluster) as client:
        put_share(client, share, {at(topic, 0): 12, at(topic, 1): 0})
        back_up(config_of(cluster, tmp_path, topic))
        command = Command(cluster, tmp_path, capsys)
        create_topic(cluster, f"{topic}-new", partitions=2)
        put_share(client, share, {at(f"{topic}-new", 1): 0})
        before = share_stand(client, share)
        with without_spark():
            report = command.json("restore", "--offsets", "append", "--suffix", "-new", "--groups", share)
        assert positions(report)[0] == (12, 12, "same")
        assert share_stand(client, share)[at(f"{topic}-new", 0)] == 12
        assert "put back" in command("groups", "rollback")
        assert share_stand(client, share) == before


def test_a_share_group_that_is_gone_comes_back(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(30))
    share = f"share-{topic}"
    with client_of(cluster) as client:
        put_share(client, share, {at(topic, 0): 12})
        back_up(config_of(cluster, tmp_path, topic))
        delete_topic(cluster, topic)
        with cluster.admin() as admin:
            admin.delete_groups([share])
        with without_spark():
            report = Command(cluster, tmp_path, capsys).json("restore", "--groups", share)
        assert report["complete"]
        assert share_stand(client, share) == {at(topic, 0): 12}


@contextmanager
def client_of(cluster: Cluster) -> Iterator[KafkaClient]:
    config = config_of(cluster, "/nowhere").kafka
    assert config is not None
    with KafkaClient(config) as opened:
        yield opened


def at(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(topic=topic, partition=partition)


def put_share(client: KafkaClient, group_id: str, where: dict[TopicPartition, int]) -> None:
    """A coordinator may hear of a topic a moment after others have."""

    def done() -> bool:
        return all(each.done for each in set_share_offsets(client, group_id, where).values())

    wait_for("the coordinator to know the topic", done, timeout_s=60)


def share_stand(client: KafkaClient, group_id: str) -> dict[TopicPartition, int]:
    group = ListedGroup(group_id=group_id, type="share", state="Empty", protocol_type="share")
    answers = read_offsets(client, [group], {}, deadline=Deadline.after(30))
    return {each.where: each.offset for each in answers.found[group_id]}


@pytest.mark.parametrize("mode", ["exact", "append"])
def test_a_restore_killed_before_its_groups_moves_them_when_run_again(
    cluster: Cluster, topic: str, command: Command, mode: str
) -> None:
    request = ("restore", "--suffix", "-new", "--groups", topic, "--offsets", mode)
    with patch.object(Movement, "apply", side_effect=UnavailableError("the lights went out")):
        command(*request, exits=1)
    report = command.json(*request)
    assert report["resumed"]
    assert positions(report)[0] == (12, 12, "same")
    assert read_all(cluster, f"{topic}-new") == read_all(cluster, topic)


def test_a_plan_of_groups_changes_nothing(cluster: Cluster, topic: str, command: Command) -> None:
    command("restore", "--suffix", "-new")
    before = stand(cluster, topic)
    told = command("groups", "plan", "--group", topic)
    assert "12" in told
    assert "nothing was changed" in told
    assert stand(cluster, topic) == before


def test_a_restore_is_found_by_the_beginning_of_its_id() -> None:
    assert find_restore(["abc-1", "abd-1"], "abc") == "abc-1"
    assert find_restore(["abc-1"], None) == "abc-1"
    with pytest.raises(UsageError, match="2 restores"):
        find_restore(["abc-1", "abd-1"], None)
    with pytest.raises(UsageError, match="no restores"):
        find_restore([], None)
