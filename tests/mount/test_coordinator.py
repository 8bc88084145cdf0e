"""The coordinator in process: every version of every request, encoded and decoded as on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafka.protocol.consumer import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from maxbrod.kafka.state.cluster_state import CommittedOffset, Group
from maxbrod.kafka.wire.error_codes import Code
from maxbrod.mount import coordinator as coordinator_module
from maxbrod.mount import group_offsets
from maxbrod.mount.coordinator import (
    KEYS,
    KEYS_BY_ID,
    Client,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    Coordinator,
)
from maxbrod.mount.journal import CommitJournal, read_journal
from maxbrod.mount.members import GroupLimits
from maxbrod.mount.positions import GroupTopic, Positions, archived_positions

ARCHIVE = "file:///archive"
CLIENT = Client(client_id="app", host="127.0.0.1", principal="User:ANONYMOUS")
LIMITS = GroupLimits(session_ms_min=50, first_join_delay_ms=0)
PAIRS = {
    kind[0].API_KEY: kind
    for kind in (
        (JoinGroupRequest, JoinGroupResponse),
        (SyncGroupRequest, SyncGroupResponse),
        (HeartbeatRequest, HeartbeatResponse),
        (LeaveGroupRequest, LeaveGroupResponse),
        (OffsetCommitRequest, OffsetCommitResponse),
        (OffsetFetchRequest, OffsetFetchResponse),
        (OffsetDeleteRequest, OffsetDeleteResponse),
        (DescribeGroupsRequest, DescribeGroupsResponse),
        (ListGroupsRequest, ListGroupsResponse),
        (DeleteGroupsRequest, DeleteGroupsResponse),
        (ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse),
    )
}


ORDERS_ID = UUID(int=1)


def topic(name: str, topic_id: str, **fields: Any) -> GroupTopic:
    values = {"source": name, "archive": ARCHIVE, "logs": {0: (10, 100), 1: (0, 50)}}
    return GroupTopic(name=name, topic_id=topic_id, **{**values, **fields})


def committed(name: str, topic_id: str | None, partition: int, offset: int) -> CommittedOffset:
    return CommittedOffset(
        topic=name, topic_id=topic_id, partition=partition, offset=offset, leader_epoch=57, metadata="note"
    )


def group(group_id: str, *offsets: CommittedOffset, kind: str = "classic") -> Group:
    return Group(group_id=group_id, type=kind, state="Stable", protocol_type="consumer", offsets=offsets)


def positions(*groups: Group) -> Positions:
    topics = (
        topic("dr.orders", "A", source="orders", served_id=ORDERS_ID),
        topic("clicks", "C2"),
        topic("clicks@1", "C1", source="clicks", newest=False),
    )
    return archived_positions(topics, {ARCHIVE: groups})


ARCHIVED = (group("billing", committed("orders", "A", 0, 42), committed("orders", "A", 1, 7)),)


class Mount:
    """A coordinator that is asked in bytes."""

    def __init__(self, folder: Path, *groups: Group, limits: GroupLimits = LIMITS) -> None:
        self.journal = CommitJournal.open(folder, [ARCHIVE])
        self.coordinator = Coordinator(positions=positions(*groups), journal=self.journal, limits=limits)

    async def ask(self, request_class: Any, version: int | None = None, **fields: Any) -> Any:
        key = request_class.API_KEY
        version = KEYS[key][1] if version is None else version
        low, high = KEYS_BY_ID.get(key, KEYS[key])
        assert low <= version <= high
        data = bytes(request_class(version=version, **fields).encode())
        request = request_class.decode(data, version=version)
        answer = await self.coordinator.handle(request, version, CLIENT)
        return PAIRS[key][1].decode(bytes(answer.encode()), version=version)

    async def join(self, member_id: str = "", version: int = 9, **fields: Any) -> Any:
        subscription = ConsumerProtocolSubscription(version=0, topics=["dr.orders"], user_data=b"")
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=bytes(subscription.encode()))
        values = {
            "group_id": "billing",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 20_000,
            "member_id": member_id,
            "protocol_type": "consumer",
            "protocols": [protocol],
        }
        return await self.ask(JoinGroupRequest, version, **{**values, **fields})

    async def member(self, version: int = 9, **fields: Any) -> Any:
        """Join, with the id that is given first where one is."""
        answer = await self.join(version=version, **fields)
        if answer.error_code == Code.MEMBER_ID_REQUIRED:
            assert version >= 4
            answer = await self.join(answer.member_id, version=version, **fields)
        assert answer.error_code == 0
        return answer

    async def sync(
        self, joined: Any, assignments: dict[str, bytes], version: int = 5, group_id: str = "billing"
    ) -> Any:
        rows = [
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
            for member_id, assignment in assignments.items()
        ]
        return await self.ask(
            SyncGroupRequest,
            version,
            group_id=group_id,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type="consumer" if version >= 5 else None,
            protocol_name="range" if version >= 5 else None,
            assignments=rows,
        )

    async def commit(self, offsets: dict[tuple[str, int], int], version: int = 9, **fields: Any) -> dict[Any, int]:
        request = OffsetCommitRequest
        topics = [
            request.OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    request.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=offset,
                        committed_leader_epoch=57,
                        committed_metadata=fields.get("metadata", ""),
                    )
                ],
            )
            for (name, partition), offset in offsets.items()
        ]
        values = {"group_id": "billing", "generation_id_or_member_epoch": -1, "member_id": ""}
        fields.pop("metadata", None)
        answer = await self.ask(request, version, **{**values, **fields}, topics=topics)
        return {(row.name, part.partition_index): part.error_code for row in answer.topics for part in row.partitions}

    async def offsets(self, group_id: str = "billing", version: int = 9) -> dict[tuple[str, int], int]:
        """All offsets of a group."""
        if version < 8:
            answer = await self.ask(OffsetFetchRequest, version, group_id=group_id, topics=None)
            topics = answer.topics
        else:
            wanted = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=None)
            answer = await self.ask(OffsetFetchRequest, version, groups=[wanted], require_stable=True)
            (found,) = answer.groups
            assert found.error_code == 0
            topics = found.topics
        parts = [(row.name, part) for row in topics for part in row.partitions]
        assert all(part.committed_leader_epoch == -1 for _, part in parts)
        return {(name, part.partition_index): part.committed_offset for name, part in parts}

    async def close(self) -> None:
        self.coordinator.close()
        await self.journal.close()


def run(folder: Path, act: Callable[[Mount], Awaitable[None]], *groups: Group, **fields: Any) -> None:
    async def whole() -> None:
        mount = Mount(folder / "state", *(groups or ARCHIVED), **fields)
        try:
            await act(mount)
        finally:
            await mount.close()

    asyncio.run(whole())


@pytest.mark.parametrize("version", range(10))
def test_two_members_share_a_group_at_every_version(tmp_path: Path, version: int) -> None:
    async def act(mount: Mount) -> None:
        sync_version = min(version, KEYS[SyncGroupRequest.API_KEY][1])
        first = await mount.member(version)
        assert (first.leader, len(first.members)) == (first.member_id, 1)
        alone = await mount.sync(first, {first.member_id: b"all"}, sync_version)
        assert bytes(alone.assignment) == b"all"
        joining = asyncio.ensure_future(mount.member(version))
        heartbeat_version = min(version, KEYS[HeartbeatRequest.API_KEY][1])
        beat = {"group_id": "billing", "generation_id": 1, "member_id": first.member_id}
        while (await mount.ask(HeartbeatRequest, heartbeat_version, **beat)).error_code == 0:  # noqa: ASYNC110 - what a client sees
            await asyncio.sleep(0)
        again = await mount.join(first.member_id, version)
        second = await joining
        assert {member.member_id for member in again.members} == {first.member_id, second.member_id}
        assert (again.generation_id, second.generation_id, second.leader) == (2, 2, first.member_id)
        assert second.members == []
        following = asyncio.ensure_future(mount.sync(second, {}, sync_version))
        shares = {first.member_id: b"one", second.member_id: b"two"}
        assert bytes((await mount.sync(again, shares, sync_version)).assignment) == b"one"
        assert bytes((await following).assignment) == b"two"
        leave_version = min(version, KEYS[LeaveGroupRequest.API_KEY][1])
        if leave_version < 3:
            for joined in (first, second):
                answer = await mount.ask(
                    LeaveGroupRequest, leave_version, group_id="billing", member_id=joined.member_id
                )
                assert answer.error_code == 0
        else:
            members = [
                LeaveGroupRequest.MemberIdentity(member_id=member_id, group_instance_id=None)
                for member_id in (first.member_id, second.member_id, "stranger")
            ]
            answer = await mount.ask(LeaveGroupRequest, leave_version, group_id="billing", members=members)
            assert [member.error_code for member in answer.members] == [0, 0, Code.UNKNOWN_MEMBER_ID]
        assert not mount.coordinator._groups
        assert not mount.coordinator._timers

    run(tmp_path, act)


@pytest.mark.parametrize("version", range(10))
def test_commits_of_members_and_of_simple_consumers_work_at_every_version(tmp_path: Path, version: int) -> None:
    async def act(mount: Mount) -> None:
        # Version 0 has no field for it.
        simple = await mount.commit({("dr.orders", 0): 50}, version, group_id="simple")
        assert set(simple.values()) == {0}
        fetched = await mount.offsets("simple", max(version, 2))
        assert fetched == {("dr.orders", 0): 50}
        joined = await mount.member(9)
        await mount.sync(joined, {})
        own = {"member_id": joined.member_id, "generation_id_or_member_epoch": joined.generation_id}
        if version >= 1:
            assert set((await mount.commit({("dr.orders", 0): 51}, version, **own)).values()) == {0}
            late = {**own, "generation_id_or_member_epoch": joined.generation_id + 1}
            refused = await mount.commit({("dr.orders", 0): 52}, version, **late)
            assert set(refused.values()) == {Code.ILLEGAL_GENERATION}
            assert (await mount.offsets())[("dr.orders", 0)] == 51
        assert set((await mount.commit({("dr.orders", 0): 53}, version)).values()) == {Code.UNKNOWN_MEMBER_ID}

    run(tmp_path, act)


def test_where_topics_have_ids_offsets_are_committed_and_fetched_by_them(tmp_path: Path) -> None:
    """Version 10 of both requests; an id that no topic has is an error of its partitions alone."""
    unknown = UUID(int=99)
    request = OffsetCommitRequest.OffsetCommitRequestTopic
    group_class = OffsetFetchRequest.OffsetFetchRequestGroup

    async def act(mount: Mount) -> None:
        topics = [
            request(
                topic_id=topic_id,
                partitions=[
                    request.OffsetCommitRequestPartition(
                        partition_index=partition, committed_offset=50, committed_metadata=""
                    )
                ],
            )
            for topic_id, partition in ((ORDERS_ID, 0), (ORDERS_ID, 9), (unknown, 0))
        ]
        fields = {"group_id": "billing", "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
        answer = await mount.ask(OffsetCommitRequest, 10, **fields)
        codes = [(row.topic_id, part.error_code) for row in answer.topics for part in row.partitions]
        wrong = Code.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == [(ORDERS_ID, 0), (ORDERS_ID, wrong), (unknown, Code.UNKNOWN_TOPIC_ID)]

        rows = [
            group_class.OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0, 1])
            for topic_id in (ORDERS_ID, unknown)
        ]
        for wanted in (rows, None):
            groups = [group_class(group_id="billing", topics=wanted)]
            (billing,) = (await mount.ask(OffsetFetchRequest, 10, groups=groups)).groups
            found = {
                row.topic_id: [(part.committed_offset, part.error_code) for part in row.partitions]
                for row in billing.topics
            }
            expected = {ORDERS_ID: [(50, 0), (7, 0)]}
            absent = {unknown: [(-1, Code.UNKNOWN_TOPIC_ID)] * 2}
            assert found == (expected if wanted is None else {**expected, **absent})

    run(tmp_path, act)


@pytest.mark.parametrize("version", range(10))
def test_named_partitions_without_an_offset_are_answered_with_none(tmp_path: Path, version: int) -> None:
    async def act(mount: Mount) -> None:
        names = {"dr.orders": [0, 1, 9], "unknown": [0]}
        if version < 8:
            rows = [
                OffsetFetchRequest.OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
                for name, indexes in names.items()
            ]
            topics = (await mount.ask(OffsetFetchRequest, version, group_id="billing", topics=rows)).topics
        else:
            group_class = OffsetFetchRequest.OffsetFetchRequestGroup
            rows = [
                group_class.OffsetFetchRequestTopics(name=name, partition_indexes=indexes)
                for name, indexes in names.items()
            ]
            groups = [group_class(group_id=group_id, topics=rows) for group_id in ("nobody", "billing")]
            answer = await mount.ask(OffsetFetchRequest, version, groups=groups)
            assert [row.group_id for row in answer.groups] == ["nobody", "billing"]
            nobody, billing = answer.groups
            assert {part.committed_offset for row in nobody.topics for part in row.partitions} == {-1}
            topics = billing.topics
        found = {
            (row.name, part.partition_index): (part.committed_offset, part.metadata, part.error_code)
            for row in topics
            for part in row.partitions
        }
        assert found == {
            ("dr.orders", 0): (42, "note", 0),
            ("dr.orders", 1): (7, "note", 0),
            ("dr.orders", 9): (-1, "", 0),
            ("unknown", 0): (-1, "", 0),
        }

    run(tmp_path, act)


def test_a_group_goes_on_at_its_commit_after_a_restart_and_elsewhere_at_the_archives(tmp_path: Path) -> None:
    async def first(mount: Mount) -> None:
        assert await mount.offsets() == {("dr.orders", 0): 42, ("dr.orders", 1): 7}
        await mount.commit({("dr.orders", 0): 60})

    async def second(mount: Mount) -> None:
        assert await mount.offsets() == {("dr.orders", 0): 60, ("dr.orders", 1): 7}

    run(tmp_path, first)
    run(tmp_path, second)


def test_positions_are_those_of_the_incarnation_and_within_the_mounted_log(tmp_path: Path) -> None:
    groups = (
        group("old", committed("clicks", "C1", 0, 20)),
        group("new", committed("clicks", "C2", 0, 20)),
        group("nameless", committed("clicks", None, 0, 20)),
        group("other", committed("clicks", "C0", 0, 20)),
        group("both", committed("clicks", "C2", 0, 30), committed("clicks", None, 0, 20)),
        group("cut", committed("orders", "A", 0, 500), committed("orders", "A", 1, 51)),
        group("gone", committed("orders", "A", 0, 3)),
        group("shared", committed("orders", "A", 0, 42), kind="share"),
    )

    async def act(mount: Mount) -> None:
        assert await mount.offsets("old") == {("clicks@1", 0): 20}
        assert await mount.offsets("new") == {("clicks", 0): 20}
        assert await mount.offsets("nameless") == {("clicks", 0): 20}
        assert await mount.offsets("other") == {}
        assert await mount.offsets("both") == {("clicks", 0): 30}
        assert await mount.offsets("cut") == {("dr.orders", 0): 100, ("dr.orders", 1): 50}
        assert await mount.offsets("gone") == {("dr.orders", 0): 10}
        assert await mount.offsets("shared") == {}

    run(tmp_path, act, *groups)


def test_what_cannot_be_committed_is_refused_partition_by_partition(tmp_path: Path) -> None:
    async def act(mount: Mount) -> None:
        codes = await mount.commit({("dr.orders", 0): 50, ("dr.orders", 2): 1, ("no", 0): 1, ("dr.orders", 1): -1})
        assert codes == {
            ("dr.orders", 0): 0,
            ("dr.orders", 2): Code.UNKNOWN_TOPIC_OR_PARTITION,
            ("no", 0): Code.UNKNOWN_TOPIC_OR_PARTITION,
            ("dr.orders", 1): Code.INVALID_REQUEST,
        }
        long = await mount.commit({("dr.orders", 0): 51}, metadata="x" * 4097)
        assert set(long.values()) == {Code.OFFSET_METADATA_TOO_LARGE}
        assert (await mount.offsets())[("dr.orders", 0)] == 50

    run(tmp_path, act)


def test_a_commit_that_is_not_durable_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(mount: Mount) -> None:
        def fail(line: bytes) -> None:
            raise OSError(28, "no space left on device")

        monkeypatch.setattr(mount.journal, "_write", fail)
        assert set((await mount.commit({("dr.orders", 0): 50})).values()) == {Code.COORDINATOR_NOT_AVAILABLE}
        assert (await mount.offsets())[("dr.orders", 0)] == 42

    run(tmp_path, act)


def test_groups_on_the_journal_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_offsets, "_GROUPS_MAX", 2)

    async def act(mount: Mount) -> None:
        codes = [await mount.commit({("dr.orders", 0): 50}, group_id=f"g{number}") for number in range(3)]
        assert [code[("dr.orders", 0)] for code in codes] == [0, 0, Code.GROUP_MAX_SIZE_REACHED]
        assert (await mount.commit({("dr.orders", 0): 51}, group_id="g0"))[("dr.orders", 0)] == 0
        assert (await mount.commit({("dr.orders", 0): 51}))[("dr.orders", 0)] == 0

    run(tmp_path, act)


def test_groups_with_members_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "_GROUPS_MAX", 1)

    async def act(mount: Mount) -> None:
        await mount.member()
        assert (await mount.join(group_id="other")).error_code == Code.GROUP_MAX_SIZE_REACHED

    run(tmp_path, act)


@pytest.mark.parametrize("version", range(7))
def test_groups_are_described_at_every_version(tmp_path: Path, version: int) -> None:
    async def act(mount: Mount) -> None:
        fields = {"include_authorized_operations": True} if version >= 3 else {}
        ask = {"groups": ["billing", "nobody"], **fields}
        empty, unknown = (await mount.ask(DescribeGroupsRequest, version, **ask)).groups
        assert (empty.error_code, empty.group_state, empty.protocol_type) == (0, "Empty", "consumer")
        assert unknown.group_state == "Dead"
        assert unknown.error_code == (Code.GROUP_ID_NOT_FOUND if version >= 6 else 0)
        joined = await mount.member(group_instance_id="one")
        await mount.sync(joined, {joined.member_id: b"mine"})
        stable, _ = (await mount.ask(DescribeGroupsRequest, version, **ask)).groups
        assert (stable.group_state, stable.protocol_data) == ("Stable", "range")
        (member,) = stable.members
        assert (member.client_id, member.client_host) == ("app", "127.0.0.1")
        assert bytes(member.member_assignment) == b"mine"
        if version >= 4:
            assert member.group_instance_id == "one"

    run(tmp_path, act)


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed_and_filtered_at_every_version(tmp_path: Path, version: int) -> None:
    async def act(mount: Mount) -> None:
        await mount.sync(await mount.member(group_id="live"), {}, group_id="live")
        await mount.commit({("dr.orders", 0): 50}, group_id="simple")

        async def listed(**filters: list[str]) -> list[str]:
            answer = await mount.ask(ListGroupsRequest, version, **filters)
            assert answer.error_code == 0
            return [row.group_id for row in answer.groups]

        assert await listed() == ["billing", "live", "simple"]
        if version >= 4:
            assert await listed(states_filter=["stable"]) == ["live"]
            assert await listed(states_filter=["Empty"]) == ["billing", "simple"]
        if version >= 5:
            assert await listed(types_filter=["Classic"]) == ["billing", "live", "simple"]
            assert await listed(types_filter=["consumer"]) == []

    run(tmp_path, act)


@pytest.mark.parametrize("version", range(3))
def test_groups_cannot_be_deleted(tmp_path: Path, version: int) -> None:
    async def act(mount: Mount) -> None:
        answer = await mount.ask(DeleteGroupsRequest, version, groups_names=["billing", "nobody"])
        codes = {row.group_id: row.error_code for row in answer.results}
        assert codes == {"billing": Code.POLICY_VIOLATION, "nobody": Code.GROUP_ID_NOT_FOUND}
        assert await mount.offsets()

    run(tmp_path, act)


@pytest.mark.parametrize("version", range(2))
def test_a_group_is_not_of_the_newer_protocol_so_that_clients_ask_for_the_classic_description(
    tmp_path: Path, version: int
) -> None:
    async def act(mount: Mount) -> None:
        answer = await mount.ask(ConsumerGroupDescribeRequest, version, group_ids=["billing"])
        assert [(row.group_id, row.error_code) for row in answer.groups] == [("billing", Code.GROUP_ID_NOT_FOUND)]

    run(tmp_path, act)


def test_offsets_are_deleted_for_good_but_not_of_topics_that_members_read(tmp_path: Path) -> None:
    request = OffsetDeleteRequest

    def rows(*names: str) -> list[Any]:
        part = request.OffsetDeleteRequestTopic.OffsetDeleteRequestPartition
        return [request.OffsetDeleteRequestTopic(name=name, partitions=[part(partition_index=0)]) for name in names]

    async def delete(mount: Mount, *names: str, group_id: str = "billing") -> tuple[int, list[int]]:
        answer = await mount.ask(request, group_id=group_id, topics=rows(*names))
        return answer.error_code, [part.error_code for row in answer.topics for part in row.partitions]

    async def act(mount: Mount) -> None:
        assert await delete(mount, "dr.orders", group_id="nobody") == (Code.GROUP_ID_NOT_FOUND, [])
        await mount.commit({("clicks", 0): 5})
        joined = await mount.member()
        await mount.sync(joined, {})
        codes = await delete(mount, "dr.orders", "clicks", "unknown")
        assert codes == (0, [Code.GROUP_SUBSCRIBED_TO_TOPIC, 0, Code.UNKNOWN_TOPIC_OR_PARTITION])
        identity = LeaveGroupRequest.MemberIdentity(member_id=joined.member_id, group_instance_id=None)
        await mount.ask(LeaveGroupRequest, group_id="billing", members=[identity])
        assert await delete(mount, "dr.orders") == (0, [0])
        assert await mount.offsets() == {("dr.orders", 1): 7}

    async def later(mount: Mount) -> None:
        assert await mount.offsets() == {("dr.orders", 1): 7}
        named = OffsetFetchRequest.OffsetFetchRequestTopic(name="dr.orders", partition_indexes=[0])
        answer = await mount.ask(OffsetFetchRequest, 7, group_id="billing", topics=[named])
        assert answer.topics[0].partitions[0].committed_offset == -1

    run(tmp_path, act)
    run(tmp_path, later)


def test_a_member_that_falls_silent_expires_by_itself(tmp_path: Path) -> None:
    async def act(mount: Mount) -> None:
        joined = await mount.member(session_timeout_ms=60)
        await mount.sync(joined, {})
        assert mount.coordinator._groups
        while mount.coordinator._groups:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
        beat = {"group_id": "billing", "generation_id": 1, "member_id": joined.member_id}
        assert (await mount.ask(HeartbeatRequest, **beat)).error_code == Code.UNKNOWN_MEMBER_ID
        assert mount.coordinator._bytes == 0

    run(tmp_path, act)


def test_a_client_that_went_away_while_it_waited_harms_nobody(tmp_path: Path) -> None:
    async def act(mount: Mount) -> None:
        first = await mount.member(version=3)
        await mount.sync(first, {})
        gone = asyncio.ensure_future(mount.join(version=3, session_timeout_ms=100))
        await asyncio.sleep(0)
        gone.cancel()
        again = await mount.join(first.member_id)
        assert again.error_code == 0
        assert len(again.members) == 2

    run(tmp_path, act)


def test_requests_for_no_group_are_refused(tmp_path: Path) -> None:
    async def act(mount: Mount) -> None:
        assert (await mount.join(group_id="")).error_code == Code.INVALID_GROUP_ID
        stranger: dict[str, Any] = {"group_id": "none", "generation_id": 1, "member_id": "x"}
        assert (await mount.ask(HeartbeatRequest, **stranger)).error_code == Code.UNKNOWN_MEMBER_ID
        assert (await mount.ask(SyncGroupRequest, **stranger)).error_code == Code.UNKNOWN_MEMBER_ID
        assert (await mount.join("x", group_id="none")).error_code == Code.UNKNOWN_MEMBER_ID
        assert not mount.coordinator._groups

    run(tmp_path, act)


def test_the_journal_knows_which_groups_have_members(tmp_path: Path) -> None:
    async def act(mount: Mount) -> None:
        joined = await mount.member()
        await mount.sync(joined, {})
        own = {"member_id": joined.member_id, "generation_id_or_member_epoch": joined.generation_id}
        await mount.commit({("dr.orders", 0): 50}, **own)
        assert read_journal(tmp_path / "state").with_members == {"billing"}
        identity = LeaveGroupRequest.MemberIdentity(member_id=joined.member_id, group_instance_id=None)
        await mount.ask(LeaveGroupRequest, group_id="billing", members=[identity])
        await mount.commit({("dr.orders", 0): 51}, group_id="another")
        assert read_journal(tmp_path / "state").with_members == set()

    run(tmp_path, act)
