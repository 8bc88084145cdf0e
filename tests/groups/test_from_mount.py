"""What groups have committed on a mount is carried over to the restored cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.archive.snapshots import find_moment
from maxbrod.mount.journal import CommitJournal, TopicCommit
from maxbrod.mount.positions import GroupTopic, HeldOffset
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce
from support.backups import back_up, config_of
from support.restores import Command, joined, put, read_all, stand
from support.sparkless import without_spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster


@pytest.fixture
def command(cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """A group of the topic's name stands at 12 of 30, and at 4 of 10 in the other partition."""
    create_topic(cluster, topic, partitions=2)
    produce(cluster, topic, numbered(30))
    produce(cluster, topic, numbered(10), partition=1)
    put(cluster, topic, {(topic, 0): 12, (topic, 1): 4})
    assert back_up(config_of(cluster, tmp_path / "archive", topic)).complete
    with without_spark():
        yield Command(cluster, tmp_path / "archive", capsys)


def commit_on_mount(
    folder: Path, archive: Path, topic: str, offsets: dict[str, int], meanwhile: Callable[[], None] | None = None
) -> None:
    """What a mount writes when groups commit in partition 0; the first one has members while `meanwhile` runs."""
    opened = open_archive(str(archive))
    cluster = find_moment(opened.storage, opened.catalog.runs(), None).cluster
    assert cluster is not None
    found = cluster.topic(topic)
    assert found is not None
    mounted = GroupTopic(
        name=f"dr.{topic}", source=topic, topic_id=found.topic_id, archive=opened.url, logs={0: (0, 30), 1: (0, 10)}
    )

    async def run() -> None:
        journal = CommitJournal.open(folder, [opened.url])
        if meanwhile is not None:
            journal.mark(next(iter(offsets)), members=True)
        for group, offset in offsets.items():
            await journal.commit(group, [TopicCommit(mounted, 0, HeldOffset(offset=offset, metadata="here"))])
        if meanwhile is not None:
            await asyncio.to_thread(meanwhile)
        await journal.close()

    asyncio.run(run())


def lags(document: dict[str, Any], group: str) -> dict[int, tuple[int, int]]:
    return {
        position["partition"]: (position["offset"], position["behind"])
        for position in document["positions"]
        if position["group"] == group
    }


def test_commits_on_a_mount_are_carried_over_and_can_be_rolled_back(
    cluster: Cluster, topic: str, command: Command, tmp_path: Path
) -> None:
    commit_on_mount(tmp_path / "state", tmp_path / "archive", topic, {topic: 25, f"{topic}-new-group": 3})
    command("restore", "--suffix", "-new", "--offsets", "exact")
    request = ("--from-mount", str(tmp_path / "state"))
    before = stand(cluster, topic)
    planned = command.json("groups", "plan", *request)
    assert lags(planned, topic) == {0: (25, 5), 1: (4, 6)}
    assert stand(cluster, topic) == before
    applied = command.json("groups", "apply", *request)
    assert applied["positions"] == planned["positions"]
    assert lags(applied, f"{topic}-new-group") == {0: (3, 27)}
    # The partition without a commit on the mount goes on where the archive has the group.
    assert stand(cluster, topic) == {**before, (f"{topic}-new", 0): 25, (f"{topic}-new", 1): 4}
    assert stand(cluster, f"{topic}-new-group") == {(f"{topic}-new", 0): 3}
    command("groups", "rollback")
    assert stand(cluster, topic) == before
    assert "27 behind the log's end" in command("groups", "apply", *request)


def test_commits_on_a_mount_follow_their_records_to_other_offsets(
    cluster: Cluster, topic: str, command: Command, tmp_path: Path
) -> None:
    commit_on_mount(tmp_path / "state", tmp_path / "archive", topic, {topic: 25})
    create_topic(cluster, f"{topic}-new", partitions=2)
    produce(cluster, f"{topic}-new", numbered(7))
    command("restore", "--offsets", "append", "--suffix", "-new")
    applied = command.json("groups", "apply", "--from-mount", str(tmp_path / "state"))
    assert lags(applied, topic) == {0: (32, 5), 1: (4, 6)}
    assert dict(read_all(cluster, f"{topic}-new"))[32] == b"value-25"
    assert stand(cluster, topic)[f"{topic}-new", 0] == 32


def test_a_group_that_is_active_on_the_mount_or_at_the_target_is_left_alone(
    cluster: Cluster, topic: str, command: Command, tmp_path: Path
) -> None:
    command("restore", "--suffix", "-new")
    request = ("--from-mount", str(tmp_path / "state"))
    told: list[dict[str, Any]] = []

    def apply() -> None:
        told.append(command.json("groups", "apply", *request, "--force", exits=5))

    commit_on_mount(tmp_path / "state", tmp_path / "archive", topic, {topic: 25}, apply)
    assert {position["refused"] for position in told[0]["positions"]} == {
        "it has members on the mount, which still commit there: stop them first"
    }
    assert (f"{topic}-new", 0) not in stand(cluster, topic)
    with joined(cluster, topic, f"{topic}-new"):
        refused = command.json("groups", "apply", *request, exits=5)
        assert {position["refused"] for position in refused["positions"]} == {"it has members: stop them first"}
    command("groups", "apply", *request)
    assert stand(cluster, topic)[f"{topic}-new", 0] == 25
