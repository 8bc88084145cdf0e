"""The journal of a mount's commits: durable before the answer, whole or nothing, one process at a time."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from maxbrod.errors import CorruptDataError, RefusedError, UnsupportedFormatError, UsageError
from maxbrod.mount import journal as journal_module
from maxbrod.mount.journal import (
    COMMITS,
    CommitJournal,
    JournalFailedError,
    JournalState,
    TopicCommit,
    default_state,
    is_mounted,
    read_journal,
)
from maxbrod.mount.positions import GroupTopic, HeldOffset

ARCHIVE = "file:///archive"
ORDERS = GroupTopic(name="orders", source="orders", topic_id="A", archive=ARCHIVE, logs={0: (0, 100), 1: (0, 100)})
OTHERS = GroupTopic(name="others", source="others", topic_id="B", archive=ARCHIVE, logs={0: (0, 100)})


def at(offset: int, partition: int = 0, topic: GroupTopic = ORDERS, metadata: str = "") -> TopicCommit:
    return TopicCommit(topic, partition, HeldOffset(offset=offset, metadata=metadata))


def commit(folder: Path, *commits: tuple[str, Sequence[TopicCommit]]) -> None:
    """One line each."""

    async def run() -> None:
        journal = CommitJournal.open(folder, [ARCHIVE])
        for group, offsets in commits:
            await journal.commit(group, offsets)
        await journal.close()

    asyncio.run(run())


def offsets_of(state: JournalState, group: str) -> dict[tuple[str, int], int | None]:
    return {
        (key.split()[0], partition): None if held is None else held.offset
        for (key, partition), held in state.offsets.get(group, {}).items()
    }


def test_commits_are_there_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    commit(folder, ("g", [at(5, metadata="näh"), at(7, 1)]), ("h", [at(1, topic=OTHERS)]))
    first = read_journal(folder)
    commit(folder, ("g", [at(6)]), ("h", [TopicCommit(OTHERS, 0, None)]))
    state = read_journal(folder)
    assert offsets_of(state, "g") == {("A", 0): 6, ("A", 1): 7}
    assert offsets_of(state, "h") == {("B", 0): None}
    assert first.offsets["g"][ORDERS.key, 0] == HeldOffset(offset=5, metadata="näh")
    assert state.mount_id == first.mount_id
    assert (state.topics[ORDERS.key].source, state.topics[ORDERS.key].topic_id) == ("orders", "A")


def test_only_this_user_can_read_the_state(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    commit(folder, ("g", [at(5)]))
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_torn_last_line_is_cut_off_wherever_it_was_torn(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    commit(folder, ("g", [at(5)]))
    whole = (folder / COMMITS).read_bytes()
    commit(folder, ("g", [at(6), at(9, 1)]))
    data = (folder / COMMITS).read_bytes()
    for size in range(len(whole), len(data)):
        (folder / COMMITS).write_bytes(data[:size])
        assert offsets_of(read_journal(folder), "g") == {("A", 0): 5}
    commit(folder, ("g", [at(8)]))
    assert offsets_of(read_journal(folder), "g") == {("A", 0): 8}


def test_a_last_line_with_a_wrong_byte_counts_for_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    commit(folder, ("g", [at(5)]))
    begin = len((folder / COMMITS).read_bytes())
    commit(folder, ("g", [at(6)]))
    data = (folder / COMMITS).read_bytes()
    for position in range(begin, len(data)):
        torn = bytearray(data)
        torn[position] = 0
        (folder / COMMITS).write_bytes(torn)
        assert offsets_of(read_journal(folder), "g") == {("A", 0): 5}


def test_damage_before_other_lines_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    commit(folder, ("g", [at(5)]))
    begin = len((folder / COMMITS).read_bytes())
    commit(folder, ("g", [at(6)]))
    end = len((folder / COMMITS).read_bytes())
    commit(folder, ("g", [at(7)]))
    data = (folder / COMMITS).read_bytes()
    for position in range(end):
        damaged = bytearray(data)
        damaged[position] ^= 1
        (folder / COMMITS).write_bytes(damaged)
        with pytest.raises(CorruptDataError):
            read_journal(folder)
        if position > begin:
            with pytest.raises(CorruptDataError):
                CommitJournal.open(folder, [ARCHIVE])


def test_a_journal_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir(0o700)
    (folder / COMMITS).write_bytes(journal_module._line({"maxbrod.mount": 2, "mount_id": "x", "archives": []}))
    with pytest.raises(UnsupportedFormatError):
        read_journal(folder)


def test_many_commits_share_one_write(tmp_path: Path) -> None:
    async def run() -> int:
        journal = CommitJournal.open(tmp_path / "state", [ARCHIVE])
        await asyncio.gather(*(journal.commit(f"g{number}", [at(number)]) for number in range(500)))
        await journal.close()
        return journal.writes

    assert asyncio.run(run()) <= 3
    state = read_journal(tmp_path / "state")
    assert {group: offsets_of(state, group) for group in state.offsets} == {
        f"g{number}": {("A", 0): number} for number in range(500)
    }


def test_a_commit_is_answered_and_seen_only_after_it_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        journal = CommitJournal.open(tmp_path / "state", [ARCHIVE])
        asked, allowed = threading.Event(), threading.Event()
        fsync = os.fsync

        def slow(descriptor: int) -> None:
            asked.set()
            assert allowed.wait(60)
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", slow)
        committed = asyncio.ensure_future(journal.commit("g", [at(5)]))
        assert await asyncio.to_thread(asked.wait, 60)
        assert not committed.done()
        assert journal.state.offsets == {}
        allowed.set()
        await committed
        assert offsets_of(journal.state, "g") == {("A", 0): 5}
        await journal.close()

    asyncio.run(run())


def test_a_full_disk_fails_the_commit_alone_and_leaves_the_journal_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        journal = CommitJournal.open(tmp_path / "state", [ARCHIVE])
        write = os.write
        with monkeypatch.context() as full:
            room = [10]

            def limited(descriptor: int, data: bytes) -> int:
                if not room[0]:
                    raise OSError(errno.ENOSPC, "no space left on device")
                room[0], taken = 0, room[0]
                return write(descriptor, data[:taken])

            full.setattr(os, "write", limited)
            with pytest.raises(JournalFailedError, match="no space left"):
                await journal.commit("g", [at(5)])
        assert offsets_of(journal.state, "g") == {}
        # The topic was first named in the line that failed.
        await journal.commit("h", [at(6)])
        await journal.close()

    asyncio.run(run())
    state = read_journal(tmp_path / "state")
    assert (offsets_of(state, "g"), offsets_of(state, "h")) == ({}, {("A", 0): 6})


def test_after_a_failed_fsync_nothing_is_acknowledged_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        journal = CommitJournal.open(tmp_path / "state", [ARCHIVE])
        with monkeypatch.context() as failing:

            def fail(_: int) -> None:
                raise OSError(errno.EIO, "input/output error")

            failing.setattr(os, "fsync", fail)
            with pytest.raises(JournalFailedError):
                await journal.commit("g", [at(5)])
        with pytest.raises(JournalFailedError, match="restart the mount"):
            await journal.commit("g", [at(6)])
        await journal.close()

    asyncio.run(run())


def test_a_long_journal_is_written_anew_and_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "_COMPACT_BYTES", 4_000)
    folder = tmp_path / "state"

    async def run() -> tuple[int, JournalState]:
        journal = CommitJournal.open(folder, [ARCHIVE])
        longest = 0
        for number in range(1_000):
            topic = ORDERS if number % 3 else OTHERS
            # Two wait at once, so that a topic may be numbered while the file is written anew.
            await asyncio.gather(
                journal.commit(f"g{number % 7}", [at(number, topic=topic)]),
                journal.commit("deleted", [TopicCommit(ORDERS, 1, None)]),
            )
            longest = max(longest, (folder / COMMITS).stat().st_size)
        journal.mark("g1", members=True)
        await journal.close()
        return longest, journal.state

    longest, state = asyncio.run(run())
    found = read_journal(folder)
    assert longest < 20_000
    assert found.offsets == state.offsets
    assert found.topics == state.topics
    assert found.with_members == {"g1"}
    assert stat.S_IMODE((folder / COMMITS).stat().st_mode) == 0o600


def test_a_group_with_members_is_known_while_the_mount_runs_and_not_after(tmp_path: Path) -> None:
    folder = tmp_path / "state"

    async def run() -> None:
        journal = CommitJournal.open(folder, [ARCHIVE])
        journal.mark("g", members=True)
        journal.mark("h", members=True)
        journal.mark("h", members=False)
        await journal.commit("g", [at(1)])
        assert is_mounted(folder)
        assert read_journal(folder).with_members == {"g"}
        await journal.close()

    assert not is_mounted(folder)
    asyncio.run(run())
    assert not is_mounted(folder)
    # It ended as if it was killed: the group was never marked as left.
    commit(folder)
    assert read_journal(folder).with_members == set()


def test_one_process_at_a_time_serves_a_mount(tmp_path: Path) -> None:
    async def run() -> None:
        journal = CommitJournal.open(tmp_path / "state", [ARCHIVE])
        with pytest.raises(RefusedError, match="another process"):
            CommitJournal.open(tmp_path / "state", [ARCHIVE])
        await journal.close()
        await CommitJournal.open(tmp_path / "state", [ARCHIVE]).close()

    asyncio.run(run())


def test_the_state_of_other_archives_is_refused(tmp_path: Path) -> None:
    commit(tmp_path / "state", ("g", [at(5)]))
    with pytest.raises(RefusedError, match="file:///archive"):
        CommitJournal.open(tmp_path / "state", ["file:///another"])


def test_a_folder_without_a_journal_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no journal"):
        read_journal(tmp_path)


def test_a_state_folder_follows_from_the_archives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_state(["a", "b"]) == default_state(["b", "a"]) != default_state(["a"])
    assert default_state(["a"]).is_relative_to(tmp_path)


_KILLED = """
import asyncio, sys
from pathlib import Path
from maxbrod.mount import journal as module
from maxbrod.mount.journal import CommitJournal, TopicCommit
from maxbrod.mount.positions import GroupTopic, HeldOffset

module._COMPACT_BYTES = 2_000
TOPIC = GroupTopic(name="t", source="t", topic_id="A", archive="x", logs={})

async def follow(journal, group):
    offset = 0
    while True:
        offset += 1
        await journal.commit(group, [TopicCommit(TOPIC, 0, HeldOffset(offset=offset))])
        print(group, offset, flush=True)

async def main():
    journal = CommitJournal.open(Path(sys.argv[1]), ["x"])
    print("begun", flush=True)
    await asyncio.gather(*(follow(journal, f"g{number}") for number in range(4)))

asyncio.run(main())
"""


@pytest.mark.parametrize("answers", [1, 40, 400])
def test_a_commit_that_was_answered_survives_kill_9(tmp_path: Path, answers: int) -> None:
    folder = tmp_path / "state"
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_KILLED), str(folder)], stdout=subprocess.PIPE, text=True
    )
    acknowledged: dict[str, int] = {}
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "begun\n"
        for number, line in enumerate(process.stdout):
            if number == answers:
                process.send_signal(signal.SIGKILL)
            # What it had printed before it died counts, too.
            if line.endswith("\n") and len(line.split()) == 2:
                group, offset = line.split()
                acknowledged[group] = int(offset)
    process.wait()
    state = CommitJournal.open(folder, ["x"]).state
    found = {group: held["A x", 0] for group, held in state.offsets.items()}
    for group, last in acknowledged.items():
        held = found[group]
        assert held is not None
        # At most one more: it was written, and its answer was not.
        assert held.offset in {last, last + 1}
