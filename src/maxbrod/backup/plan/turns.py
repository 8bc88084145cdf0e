"""Decides what one of two instances does that take turns to back up a compacted topic. Pure: the clock is passed in.

    WAITING       backs up nothing. An ACTIVATE begins a generation                            steps 2, 6
    CLEARING      deletes its files of the generation before                                   step 7
    CATCHING_UP   reads from the start of the log until it has reached the end                 steps 3, 8
    ACTIVE        complete, and goes on. Told the other one to stop (PASSIVATE)                steps 9, 13
                  After its time it asks the other one to begin (ACTIVATE)                     steps 4, 5
    RETIRING      was told to stop; makes sure that the other one is not stopping as well      step 10
    LEAVING       the other one is complete: deletes its files, and waits again                steps 11, 12

A state is stored before anything is done because of it, and whatever is done may be repeated: a process that is killed
at any point goes on where it was. A message is acknowledged only after the state that it leads to is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, TypeAlias

from maxbrod.errors import UsageError
from maxbrod.layouts.avro.instances import Coordination, Event, InstanceStage

LENGTH_MS: Final = 6 * 3600 * 1000
"""The time that an instance stays active, as the original tool has it."""
OFFSETS: Final = "compacted.log.backup.interval.offsets"
OFFSETS_DEFAULT: Final = 1000
_AGAIN_MS: Final = 10 * 60 * 1000
"""After this time without an answer the request is repeated: the original tool forgets it when it is restarted."""


class Role(StrEnum):
    """The first role of an instance. Its name keeps it, whatever it does later."""

    ACTIVE = "active"
    PASSIVE = "passive"

    def instance(self, base: str) -> str:
        return f"{base}-{'activate' if self is Role.ACTIVE else 'passivate'}"

    @property
    def other(self) -> Role:
        return Role.PASSIVE if self is Role.ACTIVE else Role.ACTIVE


class TurnsPhase(StrEnum):
    WAITING = "waiting"
    CLEARING = "clearing"
    CATCHING_UP = "catching up"
    ACTIVE = "active"
    RETIRING = "retiring"
    LEAVING = "leaving"


STAGES: Final = {
    TurnsPhase.WAITING: InstanceStage.WAITING,
    TurnsPhase.CLEARING: InstanceStage.WAITING,
    TurnsPhase.CATCHING_UP: InstanceStage.BUILDING,
    TurnsPhase.ACTIVE: InstanceStage.ACTIVE,
    TurnsPhase.RETIRING: InstanceStage.RETIRING,
    TurnsPhase.LEAVING: InstanceStage.WAITING,
}
"""The stage of an instance's files in each phase."""
BACKING_UP: Final = frozenset({TurnsPhase.CATCHING_UP, TurnsPhase.ACTIVE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """All that an instance must know after a restart."""

    phase: TurnsPhase
    generation: int = 0
    since_ms: int = 0
    """The time at which the generation began to read, and from ACTIVE on when it became active."""
    stop_other: bool = False
    """PASSIVATE must be sent once the generation is active. In RETIRING and LEAVING: an ACTIVATE has come already."""
    stopped_other_at_ms: int = 0
    announced: Mapping[int, int] = field(default_factory=dict)
    """By partition, the offset of the ACTIVATE. Empty: the time is not over."""
    announced_at_ms: int = 0
    """The time at which it was sent last. 0: it must be sent."""
    log_ends: Mapping[int, int] = field(default_factory=dict)
    """The ends of the log when the generation became active."""

    def encode(self) -> dict[str, Any]:
        """As JSON."""
        return {
            **asdict(self),
            "phase": str(self.phase),
            "announced": {str(partition): offset for partition, offset in self.announced.items()},
            "log_ends": {str(partition): offset for partition, offset in self.log_ends.items()},
        }


def decode_turn(found: Mapping[str, Any]) -> Turn:
    numbers = {
        name: {int(partition): offset for partition, offset in found[name].items()}
        for name in ("announced", "log_ends")
    }
    return Turn(**{**found, "phase": TurnsPhase(found["phase"]), **numbers})


def first_turn(role: Role, *, now_ms: int) -> Turn:
    """The turn of an instance that has never run."""
    if role is Role.PASSIVE:
        return Turn(phase=TurnsPhase.WAITING)
    return Turn(phase=TurnsPhase.CLEARING, generation=1, since_ms=now_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsPolicy:
    """The two names, and the times."""

    role: Role
    own: str
    other: str
    topic: str
    length_ms: int = LENGTH_MS
    interval_offsets: int = OFFSETS_DEFAULT


def parse_interval(options: Mapping[str, str]) -> int:
    text = options.get(OFFSETS, str(OFFSETS_DEFAULT))
    if not text.isdecimal() or not int(text):
        raise UsageError(f"{OFFSETS} cannot be {text!r}", hint="give a number above 0")
    return int(text)


class Mailbox:
    """The messages of the coordination topic that were not acknowledged. Reads it in the order of the log."""

    def __init__(self) -> None:
        self._messages: dict[str, dict[tuple[str, int, Event], Coordination]] = {}

    def read(self, key: str, message: Coordination | None) -> None:
        """None is the acknowledgement of everything under the key. The original compares names ignoring case."""
        if message is None:
            self._messages.pop(key.lower(), None)
        else:
            place = (message.topic.lower(), message.partition, message.event)
            self._messages.setdefault(key.lower(), {})[place] = message

    def to(self, instance: str, topic: str, event: Event) -> dict[int, Coordination]:
        """By partition, the newest message of this kind."""
        return {
            message.partition: message
            for key, messages in self._messages.items()
            for (name, partition, kind), message in messages.items()
            if key == key_of(instance, partition).lower() and name == topic.lower() and kind is event
        }


def key_of(instance: str, partition: int) -> str:
    return f"{instance}-{partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """The facts that an instance decides by."""

    now_ms: int
    partitions: Collection[int]
    mail: Mailbox
    last_offsets: Mapping[int, int] = field(default_factory=dict)
    """The offset of the last record that is archived of each partition."""
    caught_up: Mapping[int, int] | None = None
    """The ends of the logs, if a run has just reached all of them."""
    tombstones_ms: int
    other_stage: InstanceStage | None = None
    """The stage of the other instance; None if it has no document: it is the original tool's, or has never run."""
    other_is_whole: bool = False
    """The other is active and all of its files are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    key: str
    message: Coordination | None
    """None acknowledges."""


@dataclass(frozen=True, slots=True)
class Clear:
    """Delete all files of this instance."""


Action: TypeAlias = Send | Clear


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsDecision:
    """Store `turn`, do the actions, store `then`."""

    turn: Turn
    actions: tuple[Action, ...] = ()
    then: Turn

    def is_nothing(self, before: Turn) -> bool:
        return self.turn == self.then == before and not self.actions


def _to(turn: Turn) -> TurnsDecision:
    """Store this turn, and do nothing else."""
    return TurnsDecision(turn=turn, then=turn)


def decide(turn: Turn, sight: Sight, policy: TurnsPolicy) -> TurnsDecision:
    """The next step. Decide again until it is nothing."""
    return _DECIDE[turn.phase](turn, sight, policy)


def _waiting(turn: Turn, sight: Sight, policy: TurnsPolicy) -> TurnsDecision:
    """One partition is enough: the original sends the others only when they have a record, which may be never."""
    if _mail(sight, policy, Event.ACTIVATE) and sight.other_stage in {
        None,
        InstanceStage.ACTIVE,
        InstanceStage.RETIRING,
    }:
        return _to(_begun(turn, sight))
    return _acknowledge(turn, policy, _mail(sight, policy, Event.PASSIVATE))


def _begun(turn: Turn, sight: Sight) -> Turn:
    return Turn(phase=TurnsPhase.CLEARING, generation=turn.generation + 1, since_ms=sight.now_ms, stop_other=True)


def _clearing(turn: Turn, sight: Sight, policy: TurnsPolicy) -> TurnsDecision:
    received = {*_mail(sight, policy, Event.ACTIVATE), *_mail(sight, policy, Event.PASSIVATE)}
    acknowledgements = _acknowledgements(policy, received)
    then = replace(turn, phase=TurnsPhase.CATCHING_UP, since_ms=sight.now_ms)
    return TurnsDecision(turn=turn, actions=(*acknowledgements, Clear()), then=then)


def _catching_up(turn: Turn, sight: Sight, policy: TurnsPolicy) -> TurnsDecision:
    if sight.now_ms - turn.since_ms >= sight.tombstones_ms:
        # A reader that is slower may see a record and miss the tombstone after it.
        return _to(replace(turn, phase=TurnsPhase.CLEARING, generation=turn.generation + 1))
    if sight.caught_up is not None:
        return _to(replace(turn, phase=TurnsPhase.ACTIVE, since_ms=sight.now_ms, log_ends=dict(sight.caught_up)))
    received = {*_mail(sight, policy, Event.ACTIVATE), *_mail(sight, policy, Event.PASSIVATE)}
    return _acknowledge(turn, policy, received)


def _active(turn: Turn, sight: Sight, policy: TurnsPolicy) -> TurnsDecision:
    if turn.stop_other:
        sends = _sends(policy, Event.PASSIVATE, dict.fromkeys(sight.partitions, 0), sight.now_ms)
        then = replace(turn, stop_other=False, stopped_other_at_ms=sight.now_ms)
        return TurnsDecision(turn=turn, actions=sends, then=then)
    asked, stopped = _mail(sight, policy, Event.ACTIVATE), _mail(sight, policy, Event.PASSIVATE)
    if turn.announced and set(turn.announced) <= set(stopped) and sight.other_stage in {None, InstanceStage.ACTIVE}:
        return _to(replace(turn, phase=TurnsPhase.RETIRING, stop_other=bool(asked)))
    if asked and not (turn.announced and policy.role is Role.PASSIVE):
        # If both are active and both have asked, one of them must give way: the one that began as passive.
        return _answer(turn, sight, policy, asked)
    if not turn.announced:
        if stopped:
            # It answers nothing that this instance has asked.
            return _acknowledge(turn, policy, stopped)
        if sight.now_ms - turn.since_ms < policy.length_ms:
            return _to(turn)
        offsets = {partition: max(sight.last_offsets.get(partition, 0), 0) for partition in sight.partitions}
        return _to(replace(turn, announced=offsets, announced_at_ms=0))
    return _ask(turn, sight, policy)


def _answer(turn: Turn, sight: Sight, policy: TurnsPolicy, asked: Mapping[int, Coordination]) -> TurnsDecision:
    """The other one is active, too: tell it again to stop, unless it has not read that yet, or had asked before."""
    unread = sight.mail.to(policy.other, policy.topic, Event.PASSIVATE)
    late = any(
        partition not in unread and message.timestamp_ms > turn.stopped_other_at_ms
        for partition, message in asked.items()
    )
    new = replace(turn, stop_other=True) if late else turn
    return TurnsDecision(turn=new, actions=_acknowledgements(policy, asked), then=new)


def _ask(turn: Turn, sight: Sight, policy: TurnsPolicy) -> TurnsDecision:
    """Ask the other one to begin, and again if this one has come much further, or nothing happens."""
    last = {partition: max(sight.last_offsets.get(partition, 0), 0) for partition in sight.partitions}
    further = {
        partition: offset
        for partition, offset in last.items()
        if offset - turn.announced.get(partition, -1) > policy.interval_offsets
    }
    if not turn.announced_at_ms:
        further = last
    elif sight.now_ms - turn.announced_at_ms >= _AGAIN_MS and sight.other_stage in {None, InstanceStage.WAITING}:
        unread = sight.mail.to(policy.other, policy.topic, Event.ACTIVATE)
        further = {**further, **{partition: offset for partition, offset in last.items() if partition not in unread}}
    if not further:
        return _to(turn)
    new = replace(turn, announced={**turn.announced, **further}, announced_at_ms=0)
    sends = _sends(policy, Event.ACTIVATE, further, sight.now_ms)
    return TurnsDecision(turn=new, actions=sends, then=replace(new, announced_at_ms=sight.now_ms))


def _retiring(turn: Turn, sight: Sight, policy: TurnsPolicy) -> TurnsDecision:
    """The other one stores that it retires before it looks here, as this one does: they cannot both go on."""
    if sight.other_stage is None or sight.other_is_whole:
        new = replace(turn, phase=TurnsPhase.LEAVING)
    elif sight.other_stage is InstanceStage.RETIRING and policy.role is Role.PASSIVE:
        new = turn
    else:
        new = replace(turn, phase=TurnsPhase.ACTIVE, stop_other=False)
    return _to(new)


def _leaving(turn: Turn, sight: Sight, policy: TurnsPolicy) -> TurnsDecision:
    """Files are deleted only beside a whole copy of the other's. The original proves none: then they stay.

    They are deleted before the next generation in any case.
    """
    asked = _mail(sight, policy, Event.ACTIVATE)
    if asked and not turn.stop_other:
        # An acknowledgement is one of all messages under a key.
        return _to(replace(turn, stop_other=True))
    received = {*asked, *_mail(sight, policy, Event.PASSIVATE)}
    clear = (Clear(),) if sight.other_is_whole else ()
    then = _begun(turn, sight) if turn.stop_other else Turn(phase=TurnsPhase.WAITING, generation=turn.generation)
    return TurnsDecision(turn=turn, actions=(*_acknowledgements(policy, received), *clear), then=then)


_DECIDE: Final = {
    TurnsPhase.WAITING: _waiting,
    TurnsPhase.CLEARING: _clearing,
    TurnsPhase.CATCHING_UP: _catching_up,
    TurnsPhase.ACTIVE: _active,
    TurnsPhase.RETIRING: _retiring,
    TurnsPhase.LEAVING: _leaving,
}


def _mail(sight: Sight, policy: TurnsPolicy, event: Event) -> dict[int, Coordination]:
    return sight.mail.to(policy.own, policy.topic, event)


def _acknowledge(turn: Turn, policy: TurnsPolicy, partitions: Iterable[int]) -> TurnsDecision:
    return TurnsDecision(turn=turn, actions=_acknowledgements(policy, partitions), then=turn)


def _acknowledgements(policy: TurnsPolicy, partitions: Iterable[int]) -> tuple[Send, ...]:
    return tuple(Send(key=key_of(policy.own, partition), message=None) for partition in sorted(partitions))


def _sends(policy: TurnsPolicy, event: Event, offsets: Mapping[int, int], now_ms: int) -> tuple[Send, ...]:
    return tuple(
        Send(
            key=key_of(policy.other, partition),
            message=Coordination(
                event=event,
                instance=key_of(policy.other, partition),
                topic=policy.topic,
                partition=partition,
                offset=offset,
                timestamp_ms=now_ms,
            ),
        )
        for partition, offset in sorted(offsets.items())
    )
