"""Two instances that take turns, killed at every point of every step. The clock and the topic are made up."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from maxbrod.backup.plan.turns import (
    BACKING_UP,
    STAGES,
    Clear,
    Mailbox,
    Role,
    Send,
    Sight,
    Turn,
    TurnsPhase,
    TurnsPolicy,
    decide,
    decode_turn,
    first_turn,
    parse_interval,
)
from maxbrod.errors import UsageError
from maxbrod.layouts.avro.instances import Coordination, Event, InstanceStage

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC = "customers"
HOUR = 3_600_000
LENGTH = 6 * HOUR
TOMBSTONES = 24 * HOUR


class KilledError(Exception):
    """The process ends here."""


@dataclass
class World:
    """The cluster, the archive and the clock."""

    now: int = 1_000_000
    log_ends: dict[int, int] = field(default_factory=lambda: {0: 100, 1: 0})
    topic: list[tuple[str, Coordination | None]] = field(default_factory=list)
    copies: dict[str, dict[int, int]] = field(default_factory=dict)
    """By instance and partition, how far its files reach."""
    documents: dict[str, dict[str, object]] = field(default_factory=dict)
    kill_at: int = -1
    effects: int = 0

    def effect(self) -> None:
        """Comes before whatever lasts: a process may be killed there."""
        if self.effects == self.kill_at:
            self.effects += 1
            raise KilledError
        self.effects += 1

    def stage(self, name: str) -> InstanceStage | None:
        return None if name not in self.documents else STAGES[decode_turn(self.documents[name]).phase]

    def is_complete(self, name: str) -> bool:
        """Whether a reader that relies on documents gets a complete copy of this instance."""
        stage = self.stage(name)
        if stage is None or not stage.complete:
            return False
        turn = decode_turn(self.documents[name])
        return all(self.copies.get(name, {}).get(each, 0) >= end for each, end in turn.log_ends.items())


class Instance:
    """A process of one instance, which knows what it has read and nothing else."""

    def __init__(self, world: World, role: Role, *, tool: bool = False) -> None:
        self.world, self.tool = world, tool
        self.policy = TurnsPolicy(
            role=role, own=role.instance("b"), other=role.other.instance("b"), topic=TOPIC, length_ms=LENGTH
        )
        self.name = self.policy.own
        found = world.documents.get(self.name)
        self.turn = first_turn(role, now_ms=world.now) if found is None else decode_turn(found)
        if found is None:
            self._store(self.turn)

    def run(self) -> None:
        self._settle(None)
        if self.turn.phase in BACKING_UP:
            self.world.effect()
            ends = dict(self.world.log_ends)
            self.world.copies[self.name] = ends
            if self.turn.phase is TurnsPhase.CATCHING_UP:
                self._settle(ends)

    def _settle(self, caught_up: dict[int, int] | None) -> None:
        for _ in range(20):
            decision = decide(self.turn, self._sight(caught_up), self.policy)
            if decision.is_nothing(self.turn):
                return
            self._store(decision.turn)
            for action in decision.actions:
                self.world.effect()
                if isinstance(action, Send):
                    self.world.topic.append((action.key, action.message))
                elif isinstance(action, Clear):
                    assert not (stage := self.world.stage(self.name)) or not stage.complete
                    self.world.copies[self.name] = {}
            self._store(decision.then)
        raise AssertionError(f"no end: {self.turn}")

    def _sight(self, caught_up: dict[int, int] | None) -> Sight:
        mail = Mailbox()
        for key, message in self.world.topic:
            mail.read(key, message)
        other = self.policy.other
        return Sight(
            now_ms=self.world.now,
            partitions=sorted(self.world.log_ends),
            mail=mail,
            last_offsets={each: end - 1 for each, end in self.world.copies.get(self.name, {}).items()},
            caught_up=caught_up,
            tombstones_ms=TOMBSTONES,
            other_stage=None if self.tool else self.world.stage(other),
            other_is_whole=not self.tool
            and self.world.stage(other) is InstanceStage.ACTIVE
            and self.world.is_complete(other),
        )

    def _store(self, turn: Turn) -> None:
        encoded = turn.encode()
        if self.world.documents.get(self.name) != encoded:
            self.world.effect()
            self.world.documents[self.name] = encoded
        self.turn = turn


def drive(world: World, hours: int, *, pair: dict[Role, Instance | None] | None = None) -> Iterator[World]:
    """Both instances run every hour; one that was killed is started again at its next turn."""
    running: dict[Role, Instance | None] = pair if pair is not None else dict.fromkeys(Role)
    for _ in range(hours):
        for role in Role:
            try:
                running[role] = running[role] or Instance(world, role)
                running[role].run()  # type: ignore[union-attr]
            except KilledError:
                running[role] = None
            yield world
        world.now += HOUR


def assert_one_is_complete(world: World, *, before: bool) -> bool:
    complete = any(world.is_complete(role.instance("b")) for role in Role)
    assert complete or not before, "a complete generation existed, and none does any more"
    return complete


def effects_of_a_turn() -> int:
    world = World()
    for _ in drive(world, 20):
        pass
    return world.effects


def test_the_thirteen_steps_pass_the_turn_from_one_to_the_other_and_back() -> None:
    world = World()
    phases: list[tuple[TurnsPhase | None, ...]] = []
    pair: dict[Role, Instance | None] = dict.fromkeys(Role)
    for _ in drive(world, 21, pair=pair):
        now = tuple(each.turn.phase if each else None for each in pair.values())
        if None not in now and (not phases or phases[-1] != now):
            phases.append(now)
    assert phases == [
        (TurnsPhase.ACTIVE, TurnsPhase.WAITING),
        (TurnsPhase.ACTIVE, TurnsPhase.ACTIVE),
        (TurnsPhase.WAITING, TurnsPhase.ACTIVE),
        (TurnsPhase.ACTIVE, TurnsPhase.ACTIVE),
        (TurnsPhase.ACTIVE, TurnsPhase.WAITING),
        (TurnsPhase.ACTIVE, TurnsPhase.ACTIVE),
        (TurnsPhase.WAITING, TurnsPhase.ACTIVE),
    ]
    # One generation is left, and every message was acknowledged.
    assert [name for name, copy in world.copies.items() if copy] == ["b-passivate"]
    mail = Mailbox()
    for key, message in world.topic:
        mail.read(key, message)
    assert not any(mail.to(role.instance("b"), TOPIC, event) for role in Role for event in Event)


@pytest.mark.parametrize("kill_at", range(effects_of_a_turn()))
def test_an_instance_that_is_killed_at_any_point_goes_on_where_it_was(kill_at: int) -> None:
    world, complete = World(kill_at=kill_at), False
    generations: set[tuple[str, object]] = set()
    for _ in drive(world, 40):
        complete = assert_one_is_complete(world, before=complete)
        for name, document in world.documents.items():
            if STAGES[decode_turn(document).phase] is InstanceStage.ACTIVE:
                generations.add((name, document["generation"]))
    assert complete
    # The turn has passed several times, whoever was killed.
    assert {("b-activate", 1), ("b-passivate", 1)} < generations
    assert len(generations) >= 4


def test_a_quiet_topic_switches_by_the_clock_alone() -> None:
    world = World(log_ends={0: 0, 1: 0, 2: 0})
    for _ in drive(world, 8):
        pass
    assert world.stage("b-passivate") is InstanceStage.ACTIVE


def test_the_active_instance_goes_on_while_the_other_does_not_answer() -> None:
    world = World()
    active = Instance(world, Role.ACTIVE)
    for _ in range(50):
        active.run()
        world.now += HOUR
        world.log_ends[0] += 1
    assert (active.turn.phase, world.copies["b-activate"][0]) == (TurnsPhase.ACTIVE, 149)
    asked = [message for _, message in world.topic if message is not None]
    # It is not repeated while it has not been read.
    assert [(each.event, each.instance, each.partition) for each in asked] == [
        (Event.ACTIVATE, "b-passivate-0", 0),
        (Event.ACTIVATE, "b-passivate-1", 1),
    ]


def test_the_request_is_repeated_when_the_active_instance_has_come_much_further() -> None:
    world = World()
    active = Instance(world, Role.ACTIVE)
    for hours, end in ((0, 100), (6, 100), (0, 1100), (0, 1101)):
        world.now += hours * HOUR
        world.log_ends[0] = end
        active.run()
        active.run()
    assert [message.offset for _, message in world.topic if message and message.partition == 0] == [99, 1100]


def test_a_generation_that_takes_longer_than_tombstones_last_begins_again() -> None:
    world = World()
    passive = Instance(world, Role.PASSIVE)
    world.topic.append(activate("b-passivate", 0, offset=5))
    passive.turn = Turn(phase=TurnsPhase.CATCHING_UP, generation=3, since_ms=world.now - TOMBSTONES, stop_other=True)
    passive.run()
    assert (passive.turn.phase, passive.turn.generation) == (TurnsPhase.ACTIVE, 4)


def activate(to: str, partition: int, *, offset: int, timestamp_ms: int = 0) -> tuple[str, Coordination]:
    key = f"{to}-{partition}"
    return key, Coordination(
        event=Event.ACTIVATE,
        instance=key,
        topic=TOPIC,
        partition=partition,
        offset=offset,
        timestamp_ms=timestamp_ms,
    )


def passivate(to: str, partition: int) -> tuple[str, Coordination]:
    key, message = activate(to, partition, offset=0)
    return key, replace(message, event=Event.PASSIVATE)


def test_beside_the_original_tool_one_message_begins_a_generation_and_files_stay_until_the_next() -> None:
    world = World()
    passive = Instance(world, Role.PASSIVE, tool=True)
    # Partition 1 has no traffic: the tool does not send for it.
    world.topic.append(activate("b-passivate", 0, offset=99))
    passive.run()
    assert world.stage("b-passivate") is InstanceStage.ACTIVE
    assert world.topic[1:] == [
        ("b-passivate-0", None),
        *[(key, replace(each, timestamp_ms=world.now)) for key, each in (passivate("b-activate", n) for n in (0, 1))],
    ]
    world.now += LENGTH
    passive.run()
    world.topic += [("b-activate-0", None), ("b-activate-1", None), passivate("b-passivate", 0)]
    passive.run()
    assert world.stage("b-passivate") is InstanceStage.ACTIVE, "one of two partitions is not the topic"
    world.topic.append(passivate("b-passivate", 1))
    passive.run()
    assert world.stage("b-passivate") is InstanceStage.WAITING
    assert world.copies["b-passivate"], "nothing proves that the tool's copy is whole"
    world.topic.append(activate("b-passivate", 0, offset=120))
    passive.run()
    assert (passive.turn.phase, passive.turn.generation) == (TurnsPhase.ACTIVE, 2)


def test_two_active_instances_that_ask_each_other_never_both_stop() -> None:
    world = World()
    pair: dict[Role, Instance | None] = {role: Instance(world, role) for role in Role}
    for each in pair.values():
        assert each is not None
        world.copies[each.name] = dict(world.log_ends)
        since = world.now - LENGTH
        each._store(Turn(phase=TurnsPhase.ACTIVE, generation=1, since_ms=since, log_ends=dict(world.log_ends)))
    complete = True
    for _ in drive(world, 12, pair=pair):
        complete = assert_one_is_complete(world, before=complete)
    assert sorted(str(world.stage(role.instance("b"))) for role in Role) == ["active", "waiting"]


@pytest.mark.parametrize("first", list(Role))
def test_two_instances_that_both_retire_never_both_leave(first: Role) -> None:
    """As if each had read that the other is active before the other had stored that it retires."""
    world = World()
    pair = {role: Instance(world, role) for role in Role}
    for each in pair.values():
        world.copies[each.name] = dict(world.log_ends)
        announced = dict.fromkeys(world.log_ends, 0)
        each._store(
            Turn(
                phase=TurnsPhase.RETIRING, generation=1, announced=announced, announced_at_ms=1, log_ends=world.log_ends
            )
        )
        world.topic += [passivate(each.name, partition) for partition in world.log_ends]
    for role in (first, first.other) * 4:
        pair[role].run()
        assert_one_is_complete(world, before=True)
    stages = {role: world.stage(each.name) for role, each in pair.items()}
    assert sorted(map(str, stages.values())) == ["active", "waiting"]


def test_a_stale_order_to_stop_is_never_followed() -> None:
    world = World()
    active = Instance(world, Role.ACTIVE)
    world.topic += [passivate("b-activate", 0), passivate("b-activate", 1)]
    active.run()
    active.run()
    world.now += LENGTH
    active.run()
    assert active.turn.phase is TurnsPhase.ACTIVE
    assert active.turn.announced


def test_an_order_to_stop_is_not_followed_while_the_other_is_not_active() -> None:
    world = World()
    pair = {role: Instance(world, role) for role in Role}
    active = pair[Role.ACTIVE]
    active.run()
    world.now += LENGTH
    active.run()
    world.topic += [passivate("b-activate", 0), passivate("b-activate", 1)]
    active.run()
    assert (active.turn.phase, world.stage("b-passivate")) == (TurnsPhase.ACTIVE, InstanceStage.WAITING)


def test_names_are_compared_as_the_original_compares_them() -> None:
    mail = Mailbox()
    key, message = activate("B-Activate", 0, offset=1)
    mail.read(key, replace(message, topic="CUSTOMERS"))
    mail.read(*activate("b-activate", 1, offset=1))
    mail.read("b-activate-1", None)
    mail.read("b-activate-0", replace(message, topic="another"))
    assert set(mail.to("b-activate", TOPIC, Event.ACTIVATE)) == {0}
    assert not mail.to("b-activate", TOPIC, Event.PASSIVATE)


def test_a_turn_survives_its_document() -> None:
    turn = Turn(
        phase=TurnsPhase.RETIRING, generation=4, since_ms=5, stop_other=True, announced={0: 7, 11: 8}, log_ends={0: 9}
    )
    assert decode_turn(turn.encode()) == turn


@pytest.mark.parametrize("text", ["0", "-1", "x", ""])
def test_an_impossible_interval_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_interval({"compacted.log.backup.interval.offsets": text})
