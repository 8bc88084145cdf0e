"""The groups of a mount as `groups apply --from-mount` sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from maxbrod.errors import RefusedError, UsageError
from maxbrod.groups import mounted
from maxbrod.groups.mounted import MountedGroups, mounted_groups
from maxbrod.kafka.state.cluster_state import CommittedOffset, Group
from maxbrod.mount.journal import CommitJournal, TopicCommit
from maxbrod.mount.positions import GroupTopic, HeldOffset

ARCHIVE = "file:///archive"
OTHER = "file:///other"
ORDERS = GroupTopic(name="dr.orders", source="orders", topic_id="A", archive=ARCHIVE, logs={})
CLICKS = GroupTopic(name="clicks", source="clicks", topic_id="B", archive=OTHER, logs={})


def archived(group_id: str, *offsets: tuple[str, str | None, int, int]) -> Group:
    return Group(
        group_id=group_id,
        type="consumer",
        state="Stable",
        protocol_type="consumer",
        offsets=tuple(
            CommittedOffset(
                topic=name, topic_id=topic_id, partition=partition, offset=offset, leader_epoch=57, metadata="note"
            )
            for name, topic_id, partition, offset in offsets
        ),
    )


def at(offset: int | None, partition: int = 0, topic: GroupTopic = ORDERS) -> TopicCommit:
    return TopicCommit(topic, partition, None if offset is None else HeldOffset(offset=offset))


def on_mount(folder: Path, act: Callable[[CommitJournal], None], *commits: tuple[str, Sequence[TopicCommit]]) -> None:
    async def run() -> None:
        journal = CommitJournal.open(folder, [ARCHIVE, OTHER])
        for group, offsets in commits:
            await journal.commit(group, offsets)
        act(journal)
        await asyncio.sleep(0)
        if journal._flush is not None:
            await journal._flush
        folder.joinpath("seen").write_text(repr(mounted_groups(folder, ARCHIVE, [])))
        await journal.close()

    asyncio.run(run())


def offsets_of(found: MountedGroups, group_id: str) -> dict[tuple[str, str | None, int], tuple[int, int]]:
    (group,) = (group for group in found.groups if group.group_id == group_id)
    return {
        (offset.topic, offset.topic_id, offset.partition): (offset.offset, offset.leader_epoch)
        for offset in group.offsets or ()
    }


def test_commits_on_the_mount_count_before_the_archives_and_without_leader_epochs(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    on_mount(
        folder,
        lambda _: None,
        ("billing", [at(50), at(None, 2)]),
        ("new", [at(7)]),
        ("elsewhere", [at(3, topic=CLICKS)]),
    )
    known = [
        archived("billing", ("orders", "A", 0, 42), ("orders", "A", 1, 9), ("orders", "A", 2, 5), ("gone", "Z", 0, 1)),
        archived("new", ("orders", None, 0, 1)),
        archived("idle", ("orders", "A", 0, 1)),
    ]
    found = mounted_groups(folder, ARCHIVE, known)
    assert offsets_of(found, "billing") == {
        ("orders", "A", 0): (50, -1),
        ("orders", "A", 1): (9, 57),
        ("gone", "Z", 0): (1, 57),
    }
    assert offsets_of(found, "new") == {("orders", "A", 0): (7, -1)}
    assert offsets_of(found, "idle") == {("orders", "A", 0): (1, 57)}
    assert found.committed == ("billing", "new")
    assert found.active == {}


def test_groups_at_work_on_a_running_mount_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "state"

    def act(journal: CommitJournal) -> None:
        journal.mark("members", members=True)
        journal.mark("left", members=True)
        journal.mark("left", members=False)
        committed_ms = journal.state.committed_at_ms["simple"]
        assert "simple" in mounted._active(journal.state, committed_ms + 59_000)
        assert "simple" not in mounted._active(journal.state, committed_ms + 60_001)

    on_mount(folder, act, ("members", [at(1)]), ("left", [at(1)]), ("simple", [at(1)]))
    seen = (folder / "seen").read_text()
    assert "'members': 'it has members on the mount" in seen
    assert "'simple': 'it committed on the mount within the last minute" in seen
    assert "'left': " not in seen
    # The mount has ended: nobody is at work there.
    assert mounted_groups(folder, ARCHIVE, []).active == {}


def test_the_state_of_a_mount_of_other_archives_is_refused(tmp_path: Path) -> None:
    on_mount(tmp_path / "state", lambda _: None)
    with pytest.raises(RefusedError, match="file:///third"):
        mounted_groups(tmp_path / "state", "file:///third", [])
    with pytest.raises(UsageError, match="no journal"):
        mounted_groups(tmp_path, ARCHIVE, [])
