"""The state of a scheduler, in the archive: what each job did last, and which scheduler looks after the archive.

It is one document that changes as a whole (`archive/numbered`), so that a slot is taken, durably and by one scheduler
alone, before its run begins. A scheduler that has been silent for some time, as measured by the clock of the one that
waits, is lost, and the next one continues from its document. No secret is in it.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError

from maxbrod import strict_json
from maxbrod.archive.numbered import NumberedDocuments
from maxbrod.errors import EXIT_DONE, EXIT_FAILED, CorruptDataError, UnsupportedFormatError
from maxbrod.model import now_ms
from maxbrod.storage.composed import SCHEDULE_FOLDER

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage

_VERSION: Final = 1
_RENEWALS: Final = 4
"""Renewals within the time after which others take over."""
_RECENT: Final = 20
INTERRUPTED: Final = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """How one run of a job ended."""

    __pydantic_config__ = ConfigDict(extra="ignore")

    slot_ms: int | None
    started_ms: int
    finished_ms: int
    exit_code: int
    verdict: str
    error: str | None = None
    hint: str | None = None
    stopped: bool = False
    """True if a signal ended it: this is neither a success nor a failure."""

    @property
    def good(self) -> bool:
        return self.exit_code == EXIT_DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """What is known of a job."""

    __pydantic_config__ = ConfigDict(extra="ignore")

    verb: str
    since_ms: int
    slot_ms: int | None = None
    running_since_ms: int | None = None
    last: JobOutcome | None = None
    last_success_ms: int | None = None
    failures: int = 0
    """In a row."""
    told: str | None = None
    """What people were told last: failed or overdue. None: all is well."""
    told_ms: int | None = None
    recent: tuple[JobOutcome, ...] = ()
    """The last runs, the newest last."""
    follows: bool = False
    when: str = ""
    next_ms: int | None = None
    """When it began next, as planned when this was written."""

    def ended(self, outcome: JobOutcome) -> JobState:
        """The state after a run, or after an interval of a job that follows."""
        last_success_ms = outcome.finished_ms if outcome.good else self.last_success_ms
        failures = 0 if outcome.good else self.failures + (not outcome.stopped)
        # An interval of a job that follows may come each second: only changes are worth remembering.
        same = self.follows and self.last is not None and self.last.exit_code == outcome.exit_code
        before = self.recent[:-1] if same else self.recent
        return replace(
            self,
            running_since_ms=None,
            last=outcome,
            last_success_ms=last_success_ms,
            failures=failures,
            recent=(*before, outcome)[-_RECENT:],
        )

    def interrupted(self) -> JobState:
        """The state of a job whose scheduler was killed. A job that follows just goes on."""
        if self.running_since_ms is None or self.follows:
            return replace(self, running_since_ms=None)
        outcome = JobOutcome(
            slot_ms=self.slot_ms,
            started_ms=self.running_since_ms,
            finished_ms=self.running_since_ms,
            exit_code=EXIT_FAILED,
            verdict=INTERRUPTED,
            error="the scheduler ended while the job ran",
            hint="its next slot goes on where it was; to run it now: maxbrod run --once",
        )
        return self.ended(outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleState:
    """The whole document. `instance` is the scheduler that wrote it; None: it has ended in order."""

    __pydantic_config__ = ConfigDict(extra="ignore")

    maxbrod: int = _VERSION
    instance: str | None = None
    host: str = ""
    at_ms: int = 0
    takeover_ms: int = 0
    started_ms: int = 0
    jobs: Mapping[str, JobState] = field(default_factory=dict)

    def is_silent(self, at_ms: int) -> bool:
        """Whether its scheduler has ended or has been silent for long, for whoever looks only once."""
        return self.instance is None or at_ms - self.at_ms > self.takeover_ms


_DOCUMENT: Final = TypeAdapter(ScheduleState)


def read_state(storage: Storage) -> ScheduleState | None:
    """Return the state of the schedule of an archive; None: no scheduler ever looked after it."""
    found = NumberedDocuments(storage, SCHEDULE_FOLDER).newest()
    return None if found is None else decode_state(found[1], storage.name_of(SCHEDULE_FOLDER))


def decode_state(data: memoryview, name: str) -> ScheduleState:
    """UnsupportedFormatError: a later release wrote it. CorruptDataError: nobody did."""
    try:
        document: Any = strict_json.parse(data)
    except ValueError as error:
        raise CorruptDataError(f"the state of the schedule is not JSON: {error}", object_name=name) from None
    version = document.get("maxbrod") if isinstance(document, dict) else None
    if isinstance(version, int) and version > _VERSION:
        raise UnsupportedFormatError(f"a schedule's state of version {version} is not known", object_name=name)
    try:
        return _DOCUMENT.validate_python(document)
    except ValidationError as error:
        wrong = ".".join(map(str, error.errors()[0]["loc"]))
        raise CorruptDataError(f"the state of the schedule is wrong: {wrong}", object_name=name) from None


class ScheduleLease:
    """The lease of a schedule as one scheduler sees it. Not thread-safe."""

    def __init__(self, storage: Storage, *, takeover_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._documents = NumberedDocuments(storage, SCHEDULE_FOLDER)
        self._name = storage.name_of(SCHEDULE_FOLDER)
        self._takeover_s, self._clock = takeover_s, clock
        self.instance = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.held = False
        self.holder: str | None = None
        """The other scheduler that has the lease, as last read."""
        self._number = 0
        self._seen: tuple[int, float] | None = None
        """The number that was last read of another holder, and when it was first seen."""
        self._written_at = 0.0

    def take(self) -> ScheduleState | None:
        """Return the state to go on from if the lease can be had now; None: another scheduler has it.

        The lease is taken by the first `save` after it.
        """
        found = self._documents.newest()
        if found is None:
            self._number, self.holder = 0, None
            return ScheduleState()
        number, state = found[0], decode_state(found[1], self._name)
        now = self._clock()
        if self._seen is None or self._seen[0] != number:
            self._seen = (number, now)
        lost = now - self._seen[1] >= self._takeover_s
        if state.instance not in {None, self.instance} and not lost:
            self.holder = state.instance
            return None
        self._number, self.holder = number, None
        return state

    def save(self, state: ScheduleState) -> bool:
        """Write the state durably, which renews the lease. False: another scheduler has taken over."""
        return self._put(replace(state, instance=self.instance))

    def release(self, state: ScheduleState) -> bool:
        """Write the state, and let another scheduler take over at once."""
        released = self._put(replace(state, instance=None))
        self.held = False
        return released

    @property
    def due(self) -> bool:
        """True if the lease is to be renewed now."""
        return self._clock() - self._written_at >= self._takeover_s / _RENEWALS

    @property
    def doubtful(self) -> bool:
        """True if it was not renewed for so long that another scheduler may have taken over."""
        return self._clock() - self._written_at >= self._takeover_s

    def _put(self, state: ScheduleState) -> bool:
        began = self._clock()
        stamped = replace(state, host=socket.gethostname(), at_ms=now_ms(), takeover_ms=round(self._takeover_s * 1000))
        # A nonce: no two documents may be the same, as one tells by its bytes whether it is one's own.
        document = {**asdict(stamped), "nonce": uuid.uuid4().hex}
        data = json.dumps(document, separators=(",", ":")).encode()
        self.held = self._documents.put(self._number + 1, data)
        if not self.held and self._is_own():
            # A write whose answer was lost has arrived.
            self.held = self._documents.put(self._number + 1, data)
        if self.held:
            self._number, self._written_at = self._number + 1, began
        return self.held

    def _is_own(self) -> bool:
        """True if the newest document is of this scheduler, from whose number it goes on."""
        found = self._documents.newest()
        if found is None or decode_state(found[1], self._name).instance != self.instance:
            return False
        self._number = found[0]
        return True
