"""Judges an archive: facts in, one line for each promise out. Pure.

A promise is OK only if the facts prove it. What nobody has looked at is a warning, never OK.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, EXIT_FAILED, EXIT_INCOMPLETE
from maxbrod.inspect.options import StatusOptions
from maxbrod.notices import Promise, PromiseState
from maxbrod.text import counted, human_age, human_bytes

if TYPE_CHECKING:
    from maxbrod.archive.archive import Proof

_GB: Final = 10**9
_DAY_MS: Final = 86_400_000
_CLOCK_SLACK_MS: Final = 60_000
"""Clocks of two machines that both follow a time server differ by far less."""
_WAITING_MAX: Final = 1000
"""Segments of a partition that may wait for compaction: some days of backups every few minutes."""
_ROOM_MIN: Final = 64 << 20
"""A catalog commit and a segment need less; below this a run cannot be expected to end."""
ROOM_DAYS: Final = 7
"""Free space for fewer days of growth is a warning."""
GROWTH_DAYS: Final = 30
"""The days over which growth is averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastBackup:
    run_id: str
    finished_at_ms: int
    exit_code: int | None
    findings: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    """Advice about the findings."""
    partial: bool = False
    """True if topics may have been hidden from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundProblems:
    """Problems of one gravity that a check of the archive found."""

    count: int
    first: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionBacklog:
    """Segments that were never compacted, in partitions that have what a compaction asks for by default."""

    segments: int = 0
    partitions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFacts:
    """The facts that the archive tells about itself."""

    now_ms: int
    backup: LastBackup | None
    unfinished: tuple[str, ...]
    """Runs since the last backup that ended well."""
    recovery_point_ms: int | None
    missing: FoundProblems | None
    """Offsets that are neither archived nor explained, or that the last backup could not archive."""
    damaged: FoundProblems | None
    """Objects that are missing or too short, and rows that contradict each other."""
    deep_check: Proof | None
    drill: Proof | None
    copy: Proof | None = None
    """The last copy to another store."""
    bytes: int
    records: int
    partitions: int
    segments: int
    to_compact: CompactionBacklog = field(default_factory=CompactionBacklog)
    grown: Sequence[tuple[int, int]] = field(default=())
    """The end of each run, and the bytes that it added."""
    format_version: str
    release_format: str
    newest_run_ms: int | None
    layout: str
    free_bytes: int | None = None
    """On the file system of a directory; None for a store, which does not say."""
    doubts: tuple[str, ...] = ()
    """Facts that an archive of another tool cannot show, such as a lost last segment."""
    keys: tuple[str, ...] = ()
    """The labels of the keys of an encrypted archive."""
    erasures: int = 0
    """The number of erasures in the ledger."""
    not_erased: tuple[str, ...] = ()
    """Erasures of which objects may still hold records: they were killed, or something keeps the objects."""
    own_layout: bool = True
    """Otherwise the archive is another tool's, which records no runs."""


def judge(facts: ArchiveFacts, wanted: StatusOptions, price: float | None = None) -> list[Promise]:
    """Return one line for each promise, in a fixed order. `price` is that of a GB for a month."""
    judges = (_backup, _recovery_point) if facts.own_layout else ()
    return [
        *(_unless_too_early(rule(facts, wanted), facts) for rule in judges),
        _offsets(facts),
        _objects(facts),
        _unless_too_early(_deep_check(facts, wanted), facts),
        _unless_too_early(_drill(facts, wanted), facts),
        *_recovery_time(facts, wanted),
        *_copy(facts),
        _size(facts, price),
        *_compaction(facts),
        *_erasures(facts),
        *_room(facts),
        *_keys(facts),
        _format(facts),
        *_clock(facts),
    ]


def exit_code_of(promises: Sequence[Promise], *, strict: bool) -> int:
    """The gravest of the promises that failed; warnings count only if `strict`."""
    failed = max((promise.exit_code for promise in promises if promise.state is PromiseState.FAILED), default=EXIT_DONE)
    warned = any(promise.state is PromiseState.WARN for promise in promises)
    return failed or (EXIT_INCOMPLETE if strict and warned else EXIT_DONE)


def _failed(name: str, text: str, hint: str | None = None, exit_code: int = EXIT_INCOMPLETE) -> Promise:
    return Promise(name=name, state=PromiseState.FAILED, text=text, hint=hint, exit_code=exit_code)


def _warn(name: str, text: str, hint: str | None = None) -> Promise:
    return Promise(name=name, state=PromiseState.WARN, text=text, hint=hint)


def _ok(name: str, text: str) -> Promise:
    return Promise(name=name, state=PromiseState.OK, text=text)


def _backup(facts: ArchiveFacts, _: StatusOptions) -> Promise:
    last = facts.backup
    if last is None:
        return _failed("backup", "no backup of a cluster has ended", "run 'maxbrod backup'")
    age = f"{last.run_id}, {human_age(facts.now_ms - last.finished_at_ms)} ago"
    if last.exit_code != EXIT_DONE:
        because = f": {last.findings[0]}" if last.findings else ""
        ended = "did not say how it ended" if last.exit_code is None else f"ended with {last.exit_code}"
        hint = "run it again, and look at its output"
        return _failed("backup", f"the last one {ended}{because} ({age})", _advice(facts) or hint)
    if facts.unfinished:
        return _warn(
            "backup",
            f"run {facts.unfinished[-1]} has not ended: it was killed, or is under way; the last complete one is {age}",
        )
    return _ok("backup", f"the last one is complete ({age})")


def _advice(facts: ArchiveFacts) -> str | None:
    """The advice of the last backup; None if it said nothing, or ended well."""
    return next(iter(facts.backup.hints), None) if facts.backup is not None else None


def _recovery_point(facts: ArchiveFacts, wanted: StatusOptions) -> Promise:
    point = facts.recovery_point_ms
    if point is None and facts.damaged is not None:
        # A backup that ends with 0 does not bring objects back.
        return _failed("recovery point", "none: objects are missing or damaged", "see 'maxbrod check'")
    if point is None and facts.backup is not None and facts.backup.partial:
        return _failed("recovery point", "none: topics may be hidden from the user of the last backup", _advice(facts))
    if point is None:
        return _failed(
            "recovery point",
            "none: no backup has archived every topic to its end",
            "run 'maxbrod backup' until it exits with 0",
        )
    age_ms = facts.now_ms - point
    text = f"{human_age(age_ms)} ago, wanted within {human_age(wanted.recovery_point * 1000)}"
    if age_ms <= wanted.recovery_point * 1000:
        return _ok("recovery point", text)
    if facts.missing is not None or facts.backup is None or facts.backup.exit_code != EXIT_DONE:
        return _failed("recovery point", text, "records written since then are lost if the cluster is lost now")
    return _warn(
        "recovery point",
        f"{text}; a backup that finds nothing new leaves no trace, so either none has run, or nothing was written",
        "look at the schedule of 'maxbrod backup', or at the metrics of --follow",
    )


def _offsets(facts: ArchiveFacts) -> Promise:
    if facts.missing is not None:
        return _failed("offsets", _found(facts.missing), "see 'maxbrod check'")
    if not facts.partitions:
        return _failed("offsets", "nothing is archived", _advice(facts) or "run 'maxbrod backup'")
    known = f", as far as can be known: {facts.doubts[0]}" if facts.doubts else ""
    more = f"; {len(facts.doubts) - 1:,} more: see 'maxbrod check'" if len(facts.doubts) > 1 else ""
    partitions = counted(facts.partitions, "partition")
    return _ok("offsets", f"every offset of {partitions} is archived or explained{known}{more}")


def _objects(facts: ArchiveFacts) -> Promise:
    if facts.damaged is not None:
        return _failed("objects", _found(facts.damaged), "see 'maxbrod check'", exit_code=EXIT_CORRUPT)
    segments = counted(facts.segments, "segment")
    return _ok("objects", f"all objects of {segments} exist and are long enough; they were not read")


def _found(found: FoundProblems) -> str:
    more = f", and {found.count - 1:,} more" if found.count > 1 else ""
    return f"{found.first}{more}"


def _deep_check(facts: ArchiveFacts, wanted: StatusOptions) -> Promise:
    run, proof = "run 'maxbrod check --deep'", facts.deep_check
    if proof is None:
        return _warn("deep check", "none is recorded: no check has read all objects", run)
    share = proof.details.get("share")
    part = f", of a sample of {share:.0%}" if isinstance(share, float) and share < 1 else ""
    failed = _failed("deep check", "", f"{run} again", exit_code=EXIT_CORRUPT)
    return _proven(proof, facts.now_ms - proof.finished_at_ms, wanted.deep_check_every, part, run=run, failed=failed)


def _drill(facts: ArchiveFacts, wanted: StatusOptions) -> Promise:
    run, proof = "run 'maxbrod drill'", facts.drill
    if proof is None:
        return _warn("drill", "none is recorded: no drill has restored records and compared them", run)
    tried, known = proof.details.get("partitions"), proof.details.get("partitions_known")
    are_known = isinstance(tried, int) and isinstance(known, int)
    part = f", {tried:,} of {counted(int(known or 0), 'partition')}" if are_known else ""
    failed = _failed("drill", "", "look at the report of the drill")
    return _proven(proof, facts.now_ms - proof.finished_at_ms, wanted.drill_every, part, run=run, failed=failed)


def _proven(proof: Proof, age_ms: int, wanted_s: float, part: str, *, run: str, failed: Promise) -> Promise:
    """Judge a check or drill by its verdict and its age. `failed` is the promise for a bad one, without text."""
    text = f"{proof.verdict} {human_age(age_ms)} ago{part}"
    if not proof.sound:
        return replace(failed, text=text)
    if age_ms > wanted_s * 1000:
        return _warn(failed.name, f"{text}, wanted within {human_age(wanted_s * 1000)}", run)
    return _ok(failed.name, text)


def recovery_time_s(proof: Proof | None, records: int) -> float | None:
    """The time that restoring this many records would take at the speed of the drill; None if it measured none."""
    if proof is None or not proof.sound:
        return None
    took, restored = proof.details.get("restore_s"), proof.details.get("records")
    if not isinstance(took, int | float) or not isinstance(restored, int) or restored <= 0:
        return None
    return took * max(records / restored, 1.0)


def _recovery_time(facts: ArchiveFacts, wanted: StatusOptions) -> Iterator[Promise]:
    estimate, name = recovery_time_s(facts.drill, facts.records), "recovery time"
    if estimate is None:
        if wanted.recovery_time is not None:
            yield _warn(name, "unknown: no drill has measured it", "run 'maxbrod drill'")
        return
    text = f"about {human_age(estimate * 1000)} for everything, at the speed of the last drill, in its cluster"
    if wanted.recovery_time is None:
        yield _ok(name, text)
    elif estimate <= wanted.recovery_time:
        yield _ok(name, f"{text}, wanted within {human_age(wanted.recovery_time * 1000)}")
    else:
        yield _failed(name, f"{text}, wanted within {human_age(wanted.recovery_time * 1000)}")


def daily_growth(facts: ArchiveFacts) -> float | None:
    """Bytes added in a day; None if no run has added any lately."""
    since = facts.now_ms - GROWTH_DAYS * _DAY_MS
    recent = [size for at, size in facts.grown if at >= since]
    if not recent:
        return None
    first = min(at for at, _ in facts.grown)
    return sum(recent) / max((facts.now_ms - max(first, since)) / _DAY_MS, 1.0)


def _room(facts: ArchiveFacts) -> Iterator[Promise]:
    """A full disk leaves no trace in the archive: the run that met it could not write any."""
    if facts.free_bytes is None:
        return
    text = f"{human_bytes(facts.free_bytes)} free"
    hint = "make room, or move the archive; 'maxbrod prune' and 'maxbrod gc' free some"
    if facts.free_bytes < _ROOM_MIN:
        yield _failed("room", f"{text}: the disk is full", hint, exit_code=EXIT_FAILED)
        return
    growth = daily_growth(facts)
    if growth and facts.free_bytes < growth * ROOM_DAYS:
        yield _warn("room", f"{text}: {facts.free_bytes / growth:,.1f} days at the present growth", hint)
        return
    yield _ok("room", text)


def _copy(facts: ArchiveFacts) -> Iterator[Promise]:
    """Nothing is promised about copies: where there is one, this says how old it is."""
    last = facts.copy
    if last is None:
        return
    what = f"{last.details.get('target')}, {human_age(facts.now_ms - last.finished_at_ms)} ago"
    if last.sound:
        yield _ok("copy", f"the last one is complete ({what})")
    else:
        hint = "run 'maxbrod copy' again, and look at its output"
        yield _warn("copy", f"the last one found damage: {last.verdict} ({what})", hint)


def _size(facts: ArchiveFacts, price: float | None) -> Promise:
    words = [f"{human_bytes(facts.bytes)} in {counted(facts.segments, 'segment')}"]
    growth = daily_growth(facts)
    if growth is not None:
        words.append(f"{human_bytes(growth)} a day added lately")
    if price is not None:
        words.append(f"about {facts.bytes / _GB * price:,.2f} a month")
    return _ok("size", ", ".join(words))


def _compaction(facts: ArchiveFacts) -> Iterator[Promise]:
    if not facts.own_layout:
        return
    waiting, name = facts.to_compact, "compaction"
    if not waiting.segments:
        yield _ok(name, "no partition has enough small segments to merge")
        return
    text = f"{counted(waiting.segments, 'segment')} of {counted(waiting.partitions, 'partition')} can be merged"
    if waiting.segments > _WAITING_MAX * waiting.partitions:
        yield _warn(name, f"{text}: planning a restore takes longer by each", "run 'maxbrod compact' on a schedule")
    else:
        yield _ok(name, text)


def _keys(facts: ArchiveFacts) -> Iterator[Promise]:
    if len(facts.keys) == 1:
        yield _warn(
            "keys",
            f"encrypted for one key alone, {facts.keys[0]}: if it is lost, so is the archive",
            "add another with 'maxbrod key add'",
        )
    elif facts.keys:
        yield _ok("keys", f"encrypted; any of these opens it: {', '.join(facts.keys)}")


def _erasures(facts: ArchiveFacts) -> Iterator[Promise]:
    if not facts.erasures:
        return
    done = counted(facts.erasures, "erasure")
    if not facts.not_erased:
        yield _ok("erasures", f"{done}: the records are out of the archive")
        return
    yield _warn(
        "erasures",
        f"{done}: no reader returns the records, but objects of {', '.join(facts.not_erased)} are not yet deleted",
        "the certificates in erasures/ say what keeps them; 'maxbrod erase --again' deletes what may go",
    )


def _format(facts: ArchiveFacts) -> Promise:
    if not facts.own_layout:
        return _ok("format", f"layout {facts.layout}, of another tool")
    ours, theirs = _numbers(facts.release_format), _numbers(facts.format_version)
    if theirs > ours:
        return _warn(
            "format",
            f"{facts.format_version}, written by a newer release; this one knows {facts.release_format}",
            "use the newer release",
        )
    return _ok("format", facts.format_version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def _ahead_ms(facts: ArchiveFacts) -> int | None:
    """The time by which this machine's clock is behind the newest run, check or drill; negative if it is not behind."""
    proofs = (None if proof is None else proof.finished_at_ms for proof in (facts.deep_check, facts.drill))
    known = [at for at in (facts.newest_run_ms, *proofs) if at is not None]
    return max(known) - facts.now_ms if known else None


def _unless_too_early(promise: Promise, facts: ArchiveFacts) -> Promise:
    """A clock that is behind makes everything look younger: no age proves anything then."""
    if promise.state is not PromiseState.OK or (_ahead_ms(facts) or 0) <= _CLOCK_SLACK_MS:
        return promise
    return _warn(promise.name, f"{promise.text}; by a clock that is behind, so it may be older")


def _clock(facts: ArchiveFacts) -> Iterator[Promise]:
    ahead_ms = _ahead_ms(facts)
    if ahead_ms is None:
        return
    if ahead_ms > _CLOCK_SLACK_MS:
        yield _warn(
            "clock",
            f"this machine is {human_age(ahead_ms)} behind the newest run, check or drill: ages here are too low",
            "set the clock of this machine, or of the one that runs backups",
        )
    else:
        yield _ok("clock", "not behind the newest run, check or drill")
