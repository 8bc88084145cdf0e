"""The group's machine, event by event: no clock, no socket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.kafka.wire.error_codes import Code
from maxbrod.mount.members import GroupLimits, GroupState, JoinEvent, JoinReply, SyncReply
from maxbrod.mount.membership import Membership

SESSION_MS = 10_000
REBALANCE_MS = 30_000
LIMITS = GroupLimits(first_join_delay_ms=0)
RANGE = (("range", b"r"),)


@dataclass
class Scene:
    """A group and its clients: tickets are numbers, and `replies` has what each was answered."""

    limits: GroupLimits = LIMITS
    now_ms: int = 1_000_000
    replies: dict[int, JoinReply | SyncReply] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ids = count(1)
        self.group = Membership(limits=self.limits, new_id=lambda prefix: f"{prefix}-{next(ids)}")
        self._tickets = count(1)

    def collect(self) -> None:
        for answer in self.group.take_answers():
            assert answer.ticket not in self.replies, "answered twice"
            self.replies[answer.ticket] = answer.reply

    def join(self, member_id: str = "", **fields: Any) -> int:
        ticket = next(self._tickets)
        self.group.join(join_event(member_id, **fields), ticket, self.now_ms)
        self.collect()
        return ticket

    def joined(self, member_id: str = "", **fields: Any) -> JoinReply:
        reply = self.replies[self.join(member_id, **fields)]
        assert isinstance(reply, JoinReply)
        return reply

    def reply(self, ticket: int) -> JoinReply:
        reply = self.replies[ticket]
        assert isinstance(reply, JoinReply)
        return reply

    def sync(
        self, member_id: str, generation: int | None = None, given: Mapping[str, bytes] | None = None, **fields: Any
    ) -> int:
        ticket = next(self._tickets)
        fields = {"instance_id": None, **fields}
        number = self.group.generation if generation is None else generation
        self.group.sync(
            member_id=member_id,
            generation=number,
            assignments=given or {},
            ticket=ticket,
            now_ms=self.now_ms,
            **fields,
        )
        self.collect()
        return ticket

    def assignment(self, ticket: int) -> bytes:
        reply = self.replies[ticket]
        assert isinstance(reply, SyncReply)
        assert reply.code is Code.NONE
        return reply.assignment

    def heartbeat(self, member_id: str, generation: int | None = None, instance_id: str | None = None) -> Code:
        number = self.group.generation if generation is None else generation
        return self.group.heartbeat(member_id=member_id, instance_id=instance_id, generation=number, now_ms=self.now_ms)

    def leave(self, member_id: str, instance_id: str | None = None) -> Code:
        code = self.group.leave(member_id=member_id, instance_id=instance_id, now_ms=self.now_ms)
        self.collect()
        return code

    def commit(self, member_id: str = "", generation: int = -1, instance_id: str | None = None) -> Code:
        return self.group.check_commit(
            member_id=member_id, instance_id=instance_id, generation=generation, now_ms=self.now_ms
        )

    def wait(self, ms: int) -> None:
        """Time passes, and the machine is called whenever it asked for it."""
        end = self.now_ms + ms
        while (due := self.group.deadline) is not None and due <= end:
            self.now_ms = max(self.now_ms, due)
            self.group.tick(self.now_ms)
            self.collect()
            assert self.group.deadline is None or self.group.deadline > self.now_ms, "it would spin"
        self.now_ms = end


def join_event(member_id: str = "", **fields: Any) -> JoinEvent:
    event = JoinEvent(
        member_id=member_id,
        instance_id=None,
        client_id="app",
        client_host="127.0.0.1",
        session_ms=SESSION_MS,
        rebalance_ms=REBALANCE_MS,
        protocol_type="consumer",
        protocols=RANGE,
        needs_id=False,
        may_skip=True,
    )
    return replace(event, **fields)


def stable_pair(**fields: Any) -> tuple[Scene, str, str]:
    """A leader and a follower of a stable group, in its second generation."""
    scene = Scene()
    leader = scene.joined(**fields).member_id
    scene.sync(leader, given={leader: b"all"})
    waiting = scene.join()
    again = scene.joined(leader, **fields)
    follower = scene.reply(waiting).member_id
    assert again.leader == leader
    scene.sync(leader, given={leader: b"first", follower: b"second"})
    scene.sync(follower)
    assert scene.group.state is GroupState.STABLE
    return scene, leader, follower


def test_a_new_member_is_given_an_id_first_and_joins_with_it() -> None:
    scene = Scene()
    first = scene.joined(needs_id=True)
    assert (first.code, scene.group.state) == (Code.MEMBER_ID_REQUIRED, GroupState.EMPTY)
    second = scene.joined(first.member_id, needs_id=True)
    assert (second.code, second.generation, second.leader) == (Code.NONE, 1, first.member_id)


def test_an_id_that_nobody_comes_back_with_expires() -> None:
    scene = Scene()
    given = scene.joined(needs_id=True).member_id
    scene.wait(SESSION_MS)
    assert scene.group.unused
    assert scene.joined(given).code is Code.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_a_member_that_was_given_an_id() -> None:
    scene = Scene()
    given = scene.joined(needs_id=True).member_id
    other = scene.join()
    assert other not in scene.replies
    scene.joined(given)
    assert scene.reply(other).generation == 1
    assert scene.group.members.keys() == {given, scene.reply(other).member_id}


def test_a_single_member_gets_its_assignment_and_may_get_an_empty_one() -> None:
    scene = Scene()
    member = scene.joined().member_id
    assert scene.assignment(scene.sync(member, given={})) == b""
    assert scene.group.state is GroupState.STABLE


def test_a_second_member_joins_and_the_first_one_hears_of_it_by_its_heartbeat() -> None:
    scene = Scene()
    first = scene.joined().member_id
    scene.sync(first, given={first: b"all"})
    waiting = scene.join()
    assert waiting not in scene.replies
    assert scene.heartbeat(first) is Code.REBALANCE_IN_PROGRESS
    again = scene.joined(first)
    second = scene.reply(waiting)
    assert (again.generation, second.generation) == (2, 2)
    assert [member.member_id for member in again.members] == [first, second.member_id]
    assert second.members == ()
    # The follower asks first, and waits for the leader.
    follower = scene.sync(second.member_id)
    assert follower not in scene.replies
    assert scene.assignment(scene.sync(first, given={first: b"1", second.member_id: b"2"})) == b"1"
    assert scene.assignment(follower) == b"2"
    assert scene.heartbeat(first) is Code.NONE


def test_a_member_whom_the_leader_gave_nothing_hears_so() -> None:
    scene, leader, follower = stable_pair()
    waiting = scene.join()
    scene.join(leader)
    scene.join(follower)
    third = scene.reply(waiting).member_id
    asked = scene.sync(third)
    scene.sync(leader, given={leader: b"all"})
    assert scene.assignment(asked) == b""


def test_members_that_do_not_rejoin_in_time_are_left_behind() -> None:
    scene, leader, follower = stable_pair()
    waiting = scene.join()
    for _ in range(REBALANCE_MS // 5_000):
        scene.wait(5_000)
        scene.heartbeat(follower)
        scene.heartbeat(leader)
    assert scene.group.members.keys() == {scene.reply(waiting).member_id}
    assert scene.heartbeat(follower) is Code.UNKNOWN_MEMBER_ID


def test_a_member_without_heartbeats_expires_and_the_others_rebalance() -> None:
    scene, leader, follower = stable_pair()
    for _ in range(5):
        scene.wait(SESSION_MS // 4)
        scene.heartbeat(leader)
    assert scene.group.members.keys() == {leader}
    assert scene.heartbeat(follower) is Code.UNKNOWN_MEMBER_ID
    assert scene.heartbeat(leader) is Code.REBALANCE_IN_PROGRESS


def test_heartbeats_and_commits_keep_a_member_alive() -> None:
    scene, leader, follower = stable_pair()
    for _ in range(10):
        scene.wait(SESSION_MS - 1)
        assert scene.heartbeat(leader) is Code.NONE
        assert scene.commit(follower, scene.group.generation) is Code.NONE


def test_a_member_whose_join_waits_does_not_expire() -> None:
    scene, leader, follower = stable_pair()
    waiting = scene.join(leader)
    for _ in range(2):
        scene.wait(SESSION_MS - 1)
        assert scene.heartbeat(follower) is Code.REBALANCE_IN_PROGRESS
    assert waiting not in scene.replies
    scene.join(follower)
    assert scene.reply(waiting).code is Code.NONE


def test_a_leader_that_never_assigns_is_removed_and_nobody_waits_for_ever() -> None:
    scene = Scene()
    leader = scene.joined().member_id
    waiting = scene.join()
    scene.join(leader)
    follower = scene.reply(waiting).member_id
    asked = scene.sync(follower)
    for _ in range(REBALANCE_MS // 5_000):
        scene.wait(5_000)
        scene.heartbeat(leader)
    assert scene.replies[asked].code is Code.REBALANCE_IN_PROGRESS
    assert scene.group.members.keys() == {follower}


def test_a_generation_and_a_member_id_are_checked() -> None:
    scene, leader, _ = stable_pair()
    generation = scene.group.generation
    assert scene.heartbeat(leader, generation - 1) is Code.ILLEGAL_GENERATION
    assert scene.heartbeat("stranger") is Code.UNKNOWN_MEMBER_ID
    assert scene.replies[scene.sync(leader, generation + 1)].code is Code.ILLEGAL_GENERATION
    assert scene.replies[scene.sync("stranger")].code is Code.UNKNOWN_MEMBER_ID
    assert scene.commit(leader, generation - 1) is Code.ILLEGAL_GENERATION
    assert scene.commit("stranger", generation) is Code.UNKNOWN_MEMBER_ID
    assert scene.commit(leader, generation) is Code.NONE


def test_offsets_without_a_generation_are_committed_only_while_there_are_no_members() -> None:
    scene = Scene()
    assert scene.commit() is Code.NONE
    member = scene.joined().member_id
    scene.sync(member)
    assert scene.commit() is Code.UNKNOWN_MEMBER_ID
    scene.leave(member)
    assert scene.commit() is Code.NONE
    assert scene.commit(member, 1) is Code.UNKNOWN_MEMBER_ID


def test_commits_wait_while_assignments_are_handed_out() -> None:
    scene = Scene()
    member = scene.joined().member_id
    assert scene.commit(member, 1) is Code.REBALANCE_IN_PROGRESS
    scene.sync(member)
    assert scene.commit(member, 1) is Code.NONE
    scene.join()
    assert scene.group.state is GroupState.PREPARING
    assert scene.commit(member, 1) is Code.NONE


def test_members_without_a_common_protocol_are_refused() -> None:
    scene = Scene()
    scene.joined()
    assert scene.joined(protocols=(("sticky", b""),)).code is Code.INCONSISTENT_GROUP_PROTOCOL
    assert scene.joined(protocol_type="connect").code is Code.INCONSISTENT_GROUP_PROTOCOL
    assert Scene().joined(protocols=()).code is Code.INCONSISTENT_GROUP_PROTOCOL
    assert Scene().joined(protocol_type="").code is Code.INCONSISTENT_GROUP_PROTOCOL


def test_a_sync_for_another_protocol_is_refused() -> None:
    scene = Scene()
    member = scene.joined().member_id
    refused = [
        scene.sync(member, protocol_type="connect", protocol="range"),
        scene.sync(member, protocol_type="consumer", protocol="sticky"),
    ]
    assert {scene.replies[ticket].code for ticket in refused} == {Code.INCONSISTENT_GROUP_PROTOCOL}
    assert scene.replies[scene.sync(member, protocol_type="consumer", protocol="range")].code is Code.NONE


def test_the_protocol_that_most_members_prefer_is_chosen_among_those_that_all_know() -> None:
    scene = Scene(limits=replace(LIMITS, first_join_delay_ms=100))
    range_first = (("range", b""), ("sticky", b""))
    sticky_first = (("cooperative", b""), ("sticky", b""), ("range", b""))
    tickets = [scene.join(protocols=protocols) for protocols in (range_first, sticky_first, sticky_first)]
    scene.wait(100)
    assert {scene.reply(ticket).protocol for ticket in tickets} == {"sticky"}
    assert {scene.reply(ticket).generation for ticket in tickets} == {1}


def test_the_first_rebalance_waits_a_moment_for_more_members() -> None:
    scene = Scene(limits=replace(LIMITS, first_join_delay_ms=100))
    first = scene.join()
    scene.wait(99)
    second = scene.join()
    scene.wait(99)
    assert first not in scene.replies
    scene.wait(1)
    assert (scene.reply(first).generation, scene.reply(second).generation) == (1, 1)


def test_members_leave_one_by_one_and_the_group_is_empty() -> None:
    scene, leader, follower = stable_pair()
    assert scene.leave(leader) is Code.NONE
    assert scene.leave(leader) is Code.UNKNOWN_MEMBER_ID
    assert (scene.group.leader, scene.group.state) == (follower, GroupState.PREPARING)
    assert scene.leave(follower) is Code.NONE
    assert (scene.group.state, scene.group.unused, scene.group.deadline) == (GroupState.EMPTY, True, None)


def test_a_leader_whose_answer_was_lost_gets_it_again() -> None:
    scene = Scene()
    first = scene.joined()
    assert scene.joined(first.member_id) == first


def test_a_follower_that_joins_a_stable_group_unchanged_disturbs_nobody() -> None:
    scene, leader, follower = stable_pair()
    assert (scene.joined(follower).generation, scene.group.state) == (2, GroupState.STABLE)
    assert scene.join(follower, protocols=(("range", b"other topics"),)) not in scene.replies
    assert scene.heartbeat(leader) is Code.REBALANCE_IN_PROGRESS


def test_a_join_that_is_sent_twice_is_answered_twice_and_is_one_member() -> None:
    scene, leader, follower = stable_pair()
    first, second = scene.join(leader), scene.join(leader)
    assert scene.replies[first].code is Code.REBALANCE_IN_PROGRESS
    scene.join(follower)
    assert scene.reply(second).code is Code.NONE
    assert scene.group.members.keys() == {leader, follower}


def test_a_static_member_comes_back_to_its_assignment_without_a_rebalance() -> None:
    scene, leader, follower = stable_pair(instance_id="one")
    back = scene.joined(instance_id="one")
    assert back.member_id != leader
    assert (back.code, back.generation, scene.group.state) == (Code.NONE, 2, GroupState.STABLE)
    assert (back.leader, back.skip_assignment, len(back.members)) == (back.member_id, True, 2)
    assert scene.assignment(scene.sync(back.member_id, instance_id="one")) == b"first"
    assert scene.heartbeat(follower) is Code.NONE


def test_an_old_client_that_comes_back_as_leader_does_not_assign_anew() -> None:
    scene, leader, _ = stable_pair(instance_id="one")
    back = scene.joined(instance_id="one", may_skip=False)
    assert (back.leader, back.members, back.skip_assignment) == (leader, (), False)
    assert scene.assignment(scene.sync(back.member_id, instance_id="one")) == b"first"


def test_the_process_that_was_replaced_is_fenced() -> None:
    scene, leader, _ = stable_pair(instance_id="one")
    scene.joined(instance_id="one")
    assert scene.heartbeat(leader, instance_id="one") is Code.FENCED_INSTANCE_ID
    assert scene.commit(leader, 2, instance_id="one") is Code.FENCED_INSTANCE_ID
    assert scene.joined(leader, instance_id="one").code is Code.FENCED_INSTANCE_ID
    assert scene.leave(leader, instance_id="one") is Code.FENCED_INSTANCE_ID
    assert scene.replies[scene.sync(leader, instance_id="one")].code is Code.FENCED_INSTANCE_ID
    assert scene.heartbeat(leader, instance_id="other") is Code.UNKNOWN_MEMBER_ID


def test_the_waiting_join_of_a_process_that_was_replaced_is_fenced() -> None:
    scene, leader, _ = stable_pair(instance_id="one")
    waiting = scene.join(leader, instance_id="one")
    scene.join(instance_id="one")
    assert scene.replies[waiting].code is Code.FENCED_INSTANCE_ID


def test_a_static_member_keeps_its_place_through_a_rebalance_until_its_session_ends() -> None:
    scene, leader, follower = stable_pair(instance_id="one", session_ms=4 * REBALANCE_MS)
    scene.join(follower, protocols=(("range", b"new"),))
    scene.wait(REBALANCE_MS)
    assert scene.group.members.keys() == {leader, follower}
    assert scene.group.leader == follower
    scene.sync(follower, given={leader: b"kept", follower: b"mine"})
    back = scene.joined(instance_id="one")
    assert scene.assignment(scene.sync(back.member_id, instance_id="one")) == b"kept"


def test_a_static_member_is_removed_by_its_instance_id_alone() -> None:
    scene, _, follower = stable_pair(instance_id="one")
    assert scene.leave("", instance_id="one") is Code.NONE
    assert scene.leave("", instance_id="one") is Code.UNKNOWN_MEMBER_ID
    assert scene.group.members.keys() == {follower}


def test_a_lone_static_member_may_change_its_protocol() -> None:
    scene = Scene()
    first = scene.joined(instance_id="one")
    scene.sync(first.member_id)
    changed = scene.joined(instance_id="one", protocols=(("sticky", b""),))
    assert (changed.code, changed.protocol, changed.generation) == (Code.NONE, "sticky", 2)


def test_what_a_group_holds_is_bounded() -> None:
    tight = replace(LIMITS, members_max=2, member_bytes_max=100, group_bytes_max=1300, first_join_delay_ms=100)
    scene = Scene(limits=tight)
    assert scene.joined(protocols=(("range", b"x" * 100),)).code is Code.INVALID_REQUEST
    assert scene.joined(protocols=tuple((f"{name}", b"") for name in range(65))).code is Code.INVALID_REQUEST
    given = scene.joined(needs_id=True).member_id
    scene.join()
    assert scene.joined().code is Code.GROUP_MAX_SIZE_REACHED
    assert scene.join(given) not in scene.replies
    roomy = Scene(limits=replace(tight, group_bytes_max=600))
    roomy.join()
    assert roomy.joined(protocols=(("range", b"x" * 90),)).code is Code.GROUP_MAX_SIZE_REACHED


@pytest.mark.parametrize("session_ms", [-1, 0, LIMITS.session_ms_min - 1, LIMITS.session_ms_max + 1])
def test_a_session_timeout_out_of_bounds_is_refused(session_ms: int) -> None:
    assert Scene().joined(session_ms=session_ms).code is Code.INVALID_SESSION_TIMEOUT


_MEMBERS = st.integers(0, 7)
_EVENTS = st.one_of(
    st.tuples(st.just("join"), _MEMBERS, st.sampled_from([None, None, "one", "two"]), st.booleans()),
    st.tuples(st.just("rejoin"), _MEMBERS, st.booleans()),
    st.tuples(st.just("sync"), _MEMBERS, st.sampled_from([0, 0, 0, -1])),
    st.tuples(st.just("heartbeat"), _MEMBERS),
    st.tuples(st.just("leave"), _MEMBERS),
    st.tuples(st.just("wait"), st.sampled_from([1, 50, 300, 5_000, SESSION_MS, REBALANCE_MS])),
)


def play(scene: Scene, kind: str, details: list[Any]) -> list[int]:
    """One event, about a member that exists where it needs one; the ticket if it is a request that may wait."""
    if kind == "wait":
        scene.wait(details[0])
        return []
    if kind == "join":
        return [scene.join(instance_id=details[1], needs_id=details[2])]
    ids = [*scene.group.members, *scene.group.pending, "stranger"]
    member_id = ids[details[0] % len(ids)]
    member = scene.group.members.get(member_id)
    instance_id = None if member is None else member.instance_id
    if kind == "rejoin":
        protocols = (("range", b"new"),) if details[1] else RANGE
        return [scene.join(member_id, instance_id=instance_id, protocols=protocols)]
    if kind == "sync":
        given = {member: member.encode() for member in scene.group.members}
        return [scene.sync(member_id, scene.group.generation + details[1], given, instance_id=instance_id)]
    (scene.heartbeat if kind == "heartbeat" else scene.leave)(member_id)
    return []


@given(st.lists(_EVENTS, max_size=60), st.sampled_from([0, 100]))
def test_whatever_happens_every_request_is_answered_once_and_a_generation_has_one_leader(
    events: list[Any], delay_ms: int
) -> None:
    scene = Scene(limits=replace(LIMITS, first_join_delay_ms=delay_ms))
    asked: list[int] = []
    generation = 0

    for kind, *details in events:
        asked += play(scene, kind, details)
        group = scene.group
        assert group.generation >= generation
        generation = group.generation
        assert (group.state is GroupState.EMPTY) == (not group.members)
        assert group.leader in group.members or not group.members
        assert set(group.instances.values()) <= group.members.keys()
        if set(asked) - scene.replies.keys():
            assert group.deadline is not None, "somebody waits, and nothing is due"
    scene.wait(10 * (REBALANCE_MS + SESSION_MS))
    assert set(asked) <= scene.replies.keys()
    assert scene.group.unused
    by_generation: dict[int, list[JoinReply]] = {}
    for reply in scene.replies.values():
        if isinstance(reply, JoinReply) and reply.code is Code.NONE:
            by_generation.setdefault(reply.generation, []).append(reply)
    for replies in by_generation.values():
        assert len({reply.protocol for reply in replies}) == 1
        # Only the leader sees the members. A static leader that restarts has a new id.
        assert all(not reply.members or reply.member_id == reply.leader for reply in replies)
