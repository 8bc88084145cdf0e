"""The skeleton of every benchmark: contenders in turns, laps, figures, and what processes cost, from Linux's /proc.

Contenders take turns, so that a noisy machine disturbs all of them alike. Imports little: the command line shows the
groups.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal, TypeAlias

from maxbrod.errors import MaxbrodError, UnavailableError

Unit: TypeAlias = Literal["times", "seconds", "bytes", "per second", "per run", "objects"]
_PROC: Final = Path("/proc")
_PARENT, _TIMES = 1, slice(11, 15)  # in /proc/<pid>/stat behind the name: ppid; utime, stime, cutime, cstime


class BackupGroup(StrEnum):
    B = "b"  # JSON of 270 bytes in lz4 batches, four partitions
    A = "a"  # Records of 1 KB, uncompressed, four partitions
    HOT = "hot"  # One partition, one task or two
    COLD = "cold"  # From nothing to the end of the process
    PLANNING = "planning"  # 100,000 partitions, a million rows


class RestoreGroup(StrEnum):
    B = "b"  # JSON of 270 bytes in lz4 batches, four partitions
    A = "a"  # Records of 1 KB, uncompressed, four partitions
    OFFSETS = "offsets"  # What exact offsets cost: filled starts, closed holes, the size of a map
    PLANNING = "planning"  # 10,000 partitions, 100,000 rows


class TableGroup(StrEnum):
    SCAN = "scan"  # All of B to an aggregate, beside the live topic and Parquet
    COUNT = "count"  # By the catalog alone
    POINT = "point"  # What one offset or one millisecond of 1,000 segments opens
    LOGDIR = "logdir"  # A stopped broker's log directory, beside reading its files


class LifecycleGroup(StrEnum):
    COMPACT = "compact"  # Segments merged, beside copying their files
    BY_KEY = "by-key"  # The newest record of each key of B
    DAY = "day"  # 86,400 runs of a second, compacted, beside one backup
    REPAIR = "repair"  # A catalog rebuilt from objects, beside reading them once
    SCALE = "scale"  # 100,000 partitions, 5 million rows
    REQUESTS = "requests"  # What a run asks of the store, counted


class ProtectGroup(StrEnum):
    ENCRYPTION = "encryption"  # JSON of 270 bytes in lz4 batches, backed up and restored with keys and without
    COPY = "copy"  # An archive to another folder, beside cat
    ERASURE = "erasure"  # One key out of 1,000 segments


class MountGroup(StrEnum):
    A = "a"  # Records of 1 KB, uncompressed, four partitions
    B = "b"  # JSON of 270 bytes in lz4 batches, four partitions
    MANY = "many"  # 200 consumers at once
    FIRST = "first"  # From the command to the first record, 5 million rows; and all their partitions in Metadata


class ReplicateGroup(StrEnum):
    LINK = "link"  # A backlog beside a backup and a restore, latency, quiet partitions
    MIRROR_MAKER = "mirror-maker"
    LATENCY = "latency"  # Beside MirrorMaker 2, with memory and processor time
    MEMORY = "memory"


# Laps


def race(contenders: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """The best seconds of each over `rounds` rounds, after a warm-up. The best lap is the least disturbed."""
    return {name: laps.best for name, laps in race_laps(contenders, rounds=rounds).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lap:
    """`cpu_seconds` is the processor time of this process and its descendants."""

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Laps:
    """All counted laps of a contender."""

    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def best_cpu(self) -> float:
        return min(self.cpu_seconds)


def race_laps(
    contenders: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warm_up: bool = True,
    uncounted: frozenset[int] = frozenset(),
) -> dict[str, Laps]:
    """All laps of each, after a warm-up round. `uncounted` is that of `time_lap`."""
    laps: dict[str, list[Lap]] = {name: [] for name in contenders}
    for round_number in range(0 if warm_up else 1, rounds + 1):
        for name, contender in contenders.items():
            lap = time_lap(contender, uncounted=uncounted)
            if round_number > 0:
                laps[name].append(lap)
    return {
        name: Laps(seconds=tuple(lap.seconds for lap in own), cpu_seconds=tuple(lap.cpu_seconds for lap in own))
        for name, own in laps.items()
    }


def time_lap(contender: Callable[[], object], *, uncounted: frozenset[int] = frozenset()) -> Lap:
    """Time a contender without the processor time of `uncounted` processes and their descendants.

    A contender that returns a `Lap` has timed itself; one that returns a `float` has taken its time by its own clock.
    """
    gc.collect()
    used, started = cpu_seconds(uncounted), time.perf_counter()
    own = contender()
    if isinstance(own, Lap):
        return own
    elapsed = own if isinstance(own, float) else time.perf_counter() - started
    return Lap(seconds=elapsed, cpu_seconds=cpu_seconds(uncounted) - used)


# Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """`value` is that of the best laps. A ratio includes the laps of both sides."""

    name: str
    value: float
    unit: Unit = "times"
    wanted: float | None = None
    at_most: bool = False
    """True if `wanted` is a maximum; otherwise it is a minimum."""
    median: float | None = None
    cpu: float | None = None
    """Our processor time divided by the peer's."""
    ours: Laps | None = None
    peer: Laps | None = None
    note: str = ""

    @property
    def reached(self) -> bool | None:
        if self.wanted is None:
            return None
        return self.value <= self.wanted if self.at_most else self.value >= self.wanted


def speed(name: str, ours: Laps, peer: Laps, *, wanted: float | None = None, note: str = "") -> Figure:
    """Return how many times as fast as the peer."""
    return _ratio(name, peer.best / ours.best, peer.median / ours.median, ours, peer, wanted, note, most=False)


def share(name: str, ours: Laps, peer: Laps, *, wanted: float | None = None, note: str = "") -> Figure:
    """Return how many times the peer's time it took."""
    return _ratio(name, ours.best / peer.best, ours.median / peer.median, ours, peer, wanted, note, most=True)


def _ratio(
    name: str, best: float, middle: float, ours: Laps, peer: Laps, wanted: float | None, note: str, *, most: bool
) -> Figure:
    return Figure(
        name=name,
        value=best,
        median=middle,
        cpu=ours.best_cpu / peer.best_cpu if peer.best_cpu > 0 else None,
        wanted=wanted,
        at_most=most,
        ours=ours,
        peer=peer,
        note=note,
    )


def seconds(name: str, laps: Laps, *, note: str = "") -> Figure:
    return Figure(name=name, value=laps.best, median=laps.median, unit="seconds", ours=laps, note=note)


def at_most(name: str, value: float, unit: Unit, wanted: float | None, *, note: str = "") -> Figure:
    """Return a plain figure with a maximum."""
    return Figure(name=name, value=value, unit=unit, wanted=wanted, at_most=True, note=note)


def rate(amount: float, laps: Laps, unit: str = "M rec/s") -> str:
    """Return the speed of the best lap for people: of records, or of bytes if the unit is `MB/s`."""
    return f"{amount / laps.best / 1e6:.{2 if unit == 'M rec/s' else 0}f} {unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A rate of a benchmark that races within one process."""

    name: str
    rate: float
    unit: str
    wanted: float | None = None
    """The least (or, for memory, the most) that the design asks for."""
    note: str = ""


def require(holds: object, message: str, *, object_name: str | None = None, hint: str | None = None) -> None:
    """MaxbrodError if a contender has not done its work: then its time means nothing."""
    if not holds:
        raise MaxbrodError(message, operation="bench", object_name=object_name, hint=hint)


# Processes


def run_python(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Return the output of a fresh Python process; UnavailableError with the end of its standard error if it fails."""
    ran = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode != 0:
        raise UnavailableError("a measured process failed", operation="bench", hint=ran.stderr.strip()[-500:])
    return ran.stdout


def measure_fresh(module: str, function: str, *arguments: object) -> dict[str, Any]:
    """Return what a function measures in a fresh process, whose memory is that of its work alone."""
    call = f"{function}({', '.join(map(repr, arguments))})"
    program = f"import json; from {module} import {function}; print(json.dumps({call}))"
    measured: dict[str, Any] = json.loads(run_python("-c", program))
    return measured


def cpu_seconds(uncounted: frozenset[int] = frozenset()) -> float:
    """The processor time of this process and all its descendants, dead children included, except `uncounted`."""
    stats = _stats()
    ticks = os.sysconf("SC_CLK_TCK") if stats else 1
    return sum(sum(map(int, stats[pid][_TIMES])) for pid in _tree(stats, os.getpid(), uncounted)) / ticks


def cpu_seconds_of(pids: frozenset[int]) -> float:
    """The processor time of these processes without their children."""
    stats = _stats()
    ticks = os.sysconf("SC_CLK_TCK") if stats else 1
    return sum(sum(map(int, stats[pid][_TIMES][:2])) for pid in pids if pid in stats) / ticks


def resident_bytes(uncounted: frozenset[int] = frozenset()) -> dict[str, int]:
    """The resident memory of this process (driver), of the JVMs below it, and of all its other descendants (workers).

    Without the processes `uncounted` and what they have started.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    sums = {"driver": 0, "jvm": 0, "workers": 0}
    for pid in _tree(_stats(), os.getpid(), uncounted):
        with suppress(OSError, IndexError):
            is_java = (_PROC / str(pid) / "comm").read_text().strip() == "java"
            whose = "driver" if pid == os.getpid() else "jvm" if is_java else "workers"
            sums[whose] += int((_PROC / str(pid) / "statm").read_text().split()[1]) * page
    return sums


def peak_bytes_below(word: str) -> int:
    """The highest peak of any descendant that has `word` in its command line."""
    peaks = [0]
    for pid in _tree(_stats(), os.getpid(), frozenset()):
        with suppress(OSError, IndexError):
            if word in (_PROC / str(pid) / "cmdline").read_text(errors="replace"):
                peaks.append(peak_bytes(pid))
    return max(peaks)


def peaks_below(root: int) -> dict[int, tuple[str, int]]:
    """The name and the peak of a process and of each of its living descendants."""
    found = {}
    for pid in _tree(_stats(), root, frozenset()):
        with suppress(OSError, IndexError):
            found[pid] = ((_PROC / str(pid) / "comm").read_text().strip(), peak_bytes(pid))
    return found


def peak_bytes(pid: int | str = "self") -> int:
    """The most memory that a process ever had resident."""
    status = (_PROC / str(pid) / "status").read_text(encoding="ascii", errors="replace")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def _stats() -> dict[int, list[str]]:
    found = {}
    with suppress(OSError):
        for entry in _PROC.iterdir():
            with suppress(OSError, ValueError):
                pid = int(entry.name)
                # The name may hold spaces and parentheses of its own.
                found[pid] = (entry / "stat").read_text(errors="replace").rpartition(") ")[2].split()
    return found


def _tree(stats: dict[int, list[str]], root: int, without: frozenset[int]) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for pid, fields in stats.items():
        children.setdefault(int(fields[_PARENT]), []).append(pid)
    waiting = [root] if root in stats else []
    while waiting:
        pid = waiting.pop()
        if pid not in without:
            yield pid
            waiting.extend(children.get(pid, ()))
