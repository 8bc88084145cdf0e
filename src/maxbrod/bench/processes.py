"""Processor time and peak memory of this process and its children, from Linux's /proc; and fresh Python processes."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from maxbrod.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PROC: Final = Path("/proc")
_PARENT, _TIMES = 1, slice(11, 15)  # in /proc/<pid>/stat behind the name: ppid; utime, stime, cutime, cstime


def run_python(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """What a fresh Python process prints; UnavailableError with the end of its standard error if it fails."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """Resident memory in bytes: of this process, of the JVMs below it, and of all its other descendants."""

    driver: int
    jvm: int
    workers: int


def resident_bytes(uncounted: frozenset[int] = frozenset()) -> Resident:
    """What is resident now, without the processes `uncounted` and what they have started."""
    page = os.sysconf("SC_PAGE_SIZE")
    sums = {"driver": 0, "jvm": 0, "workers": 0}
    for pid in _tree(_stats(), os.getpid(), uncounted):
        with suppress(OSError, IndexError):
            is_java = (_PROC / str(pid) / "comm").read_text().strip() == "java"
            whose = "driver" if pid == os.getpid() else "jvm" if is_java else "workers"
            sums[whose] += int((_PROC / str(pid) / "statm").read_text().split()[1]) * page
    return Resident(**sums)


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
