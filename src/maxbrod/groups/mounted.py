"""The groups of a mount: their commits there, over the positions from which they began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from maxbrod.errors import RefusedError
from maxbrod.kafka.groups import CLASSIC
from maxbrod.kafka.state.cluster_state import CommittedOffset, Group
from maxbrod.model import now_ms
from maxbrod.mount.journal import JournalState, is_mounted, read_journal
from maxbrod.mount.positions import HeldOffset

_AT_WORK_MS: Final = 60_000
"""A consumer without a group's membership is taken to be at work for so long after its commit."""
_MEMBERS: Final = "it has members on the mount, which still commit there: stop them first"
_COMMITTED: Final = "it committed on the mount within the last minute: stop its consumers first"


@dataclass(frozen=True, slots=True, kw_only=True)
class MountedGroups:
    groups: tuple[Group, ...]
    """The archive's groups and the mount's, with the offsets that count."""
    committed: tuple[str, ...]
    """Those that have committed on the mount."""
    active: Mapping[str, str]
    """Those that are at work there, and how one knows."""


def mounted_groups(folder: Path, archive_url: str, archived: Sequence[Group]) -> MountedGroups:
    """RefusedError if the state is of a mount of another archive."""
    # Asked first: a mount that ends in between has written all that it answered.
    running = is_mounted(folder)
    state = read_journal(folder)
    if archive_url not in state.archives:
        raise RefusedError(
            f"this is the state of a mount of {', '.join(state.archives)}, not of {archive_url}",
            operation="move groups",
            object_name=str(folder),
            hint="name the archive as the mount did",
        )
    committed = _committed(state, archive_url)
    by_id = {group.group_id: group for group in archived}
    return MountedGroups(
        groups=tuple(
            _merged(by_id.get(group_id), group_id, committed.get(group_id, {}))
            for group_id in sorted({*by_id, *committed})
        ),
        committed=tuple(sorted(committed)),
        active=_active(state, now_ms()) if running else {},
    )


def _committed(state: JournalState, archive_url: str) -> dict[str, dict[tuple[str, str, int], HeldOffset | None]]:
    """By group: topic id, name in the archive and partition; None was deleted."""
    found: dict[str, dict[tuple[str, str, int], HeldOffset | None]] = {}
    for group_id, offsets in state.offsets.items():
        for (key, partition), held in offsets.items():
            topic = state.topics[key]
            if topic.archive == archive_url:
                found.setdefault(group_id, {})[topic.topic_id, topic.source, partition] = held
    return found


def _merged(
    archived: Group | None, group_id: str, committed: Mapping[tuple[str, str, int], HeldOffset | None]
) -> Group:
    if archived is not None and not committed:
        return archived
    # An offset without a topic id may be of this incarnation: what was committed on the mount is newer.
    said = {(topic_id, partition) for topic_id, _, partition in committed}
    nameless = {(source, partition) for _, source, partition in committed}
    kept = [
        offset
        for offset in (archived.offsets if archived is not None else None) or ()
        if (offset.topic_id, offset.partition) not in said
        and not (offset.topic_id is None and (offset.topic, offset.partition) in nameless)
    ]
    new = [
        CommittedOffset(
            topic=source,
            topic_id=topic_id,
            partition=partition,
            offset=held.offset,
            leader_epoch=-1,
            metadata=held.metadata,
        )
        for (topic_id, source, partition), held in committed.items()
        if held is not None
    ]
    return Group(
        group_id=group_id,
        # A mount serves the classic protocol alone; a group of the newer one keeps its offsets by the same request.
        type=CLASSIC if archived is None else archived.type,
        state="Empty",
        protocol_type="consumer" if archived is None else archived.protocol_type,
        offsets=tuple(kept + new),
    )


def _active(state: JournalState, at_ms: int) -> dict[str, str]:
    recent = {
        group_id: _COMMITTED
        for group_id, committed_ms in state.committed_at_ms.items()
        if group_id not in state.left and committed_ms + _AT_WORK_MS > at_ms
    }
    return recent | dict.fromkeys(state.with_members, _MEMBERS)
