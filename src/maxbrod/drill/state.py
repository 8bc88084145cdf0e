"""Running drills as the archive records them, and the removal of what a killed drill has left.

A drill writes a small object, `drills/<id>.json`, before it creates anything, and deletes it when all is removed. A
topic belongs to a drill if its name begins with the drill's prefix and the archive has that id, which is random: no
other topic is ever deleted. A drill whose process has ended is dead; one on another machine is dead after a day.
"""

from __future__ import annotations

import json
import os
import re
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from maxbrod import strict_json
from maxbrod.catalog.log import time_of
from maxbrod.drill.plan import prefix_of
from maxbrod.errors import ObjectNotFoundError
from maxbrod.kafka.admin.topics import delete_topics
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import now_ms
from maxbrod.restore.state import delete_restore, restores_into

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from maxbrod.config import KafkaConfig
    from maxbrod.storage.interface import ObjectInfo, Storage

DEAD_AFTER_MS: Final = 24 * 3600 * 1000
"""For drills on another machine, whose processes cannot be seen from here."""
_FOLDER: Final = "drills"
_ID: Final = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillOwner:
    """The process of a drill, in enough detail to know whether it still runs."""

    drill_id: str
    cluster_id: str
    sandbox: bool
    """Its cluster ends with it."""
    machine: str
    pid: int
    born: str
    started_at_ms: int


def own_drill(drill_id: str, cluster_id: str, *, sandbox: bool) -> DrillOwner:
    """The record of a drill by this process."""
    return DrillOwner(
        drill_id=drill_id,
        cluster_id=cluster_id,
        sandbox=sandbox,
        machine=_machine(),
        pid=os.getpid(),
        born=_born(os.getpid()),
        started_at_ms=now_ms(),
    )


def remember(storage: Storage, owner: DrillOwner) -> None:
    storage.put(_path(owner.drill_id), json.dumps(asdict(owner), sort_keys=True).encode())


def forget(storage: Storage, drill_id: str) -> None:
    """Delete the record of a drill, and what its restore left in the archive."""
    for restore_id in restores_into(storage, prefix_of(drill_id)):
        delete_restore(storage, restore_id)
    storage.delete([_path(drill_id)])


def delete_scratch(kafka: KafkaConfig, drill_id: str, *, patience_s: float) -> tuple[list[str], list[str]]:
    """Delete a drill's topics; returns the deleted ones, and those that could not be deleted."""
    prefix = prefix_of(drill_id)
    with KafkaClient(kafka) as client:
        topics = client.metadata(deadline=Deadline.after(patience_s)).topics
        mine = {topic.topic_id: name for name, topic in topics.items() if name.startswith(prefix)}
        outcomes = delete_topics(client, mine, deadline=Deadline.after(patience_s)) if mine else {}
    gone = sorted(mine[each] for each, outcome in outcomes.items() if outcome.done)
    return gone, sorted(set(mine.values()) - set(gone))


def sweep(storage: Storage, kafka: KafkaConfig, cluster_id: str, *, patience_s: float) -> list[str]:
    """Remove what dead drills have left in this cluster; returns the deleted topics.

    The caller has just written its own record, so that the store's time is known.
    """
    removed = []
    listed = list(storage.list(_FOLDER))
    for owner in list(_known(storage, listed)):
        if not _is_dead(owner, time_of(listed)) or not (owner.sandbox or owner.cluster_id == cluster_id):
            continue
        left: list[str] = []
        if not owner.sandbox:
            gone, left = delete_scratch(kafka, owner.drill_id, patience_s=patience_s)
            removed += gone
        if not left:
            forget(storage, owner.drill_id)
    return removed


def _known(storage: Storage, listed: Iterable[ObjectInfo]) -> Iterator[DrillOwner]:
    """The recorded drills. An unreadable object proves nothing and is left alone."""
    for each in listed:
        with suppress(ValueError, TypeError, ObjectNotFoundError):
            owner = DrillOwner(**strict_json.parse(storage.get(each.path)))
            if _ID.fullmatch(owner.drill_id) and each.path == _path(owner.drill_id):
                yield owner


def _is_dead(owner: DrillOwner, at_ms: int) -> bool:
    if owner.machine != _machine():
        return at_ms - owner.started_at_ms > DEAD_AFTER_MS
    return not owner.born or _born(owner.pid) != owner.born


def _path(drill_id: str) -> str:
    return f"{_FOLDER}/{drill_id}.json"


def _machine() -> str:
    """The host, its boot and the pid namespace: equal for two processes that see the same pids."""
    parts = [socket.gethostname()]
    for name in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        path = Path(name)
        with suppress(OSError):
            parts.append(str(path.readlink()) if path.is_symlink() else path.read_text().strip())
    return "/".join(parts)


def _born(pid: int) -> str:
    """The start time of a process, as the kernel counts it; empty if there is no such process."""
    try:
        # The 22nd field of all, counted after the name, which is in parentheses and may contain anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        return "alive"
    return "alive"
