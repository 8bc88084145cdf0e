"""The configuration of a target topic: at its creation, during the restore, and afterwards.

During the restore temporary values keep brokers from deleting, compacting, recompressing or refusing restored records,
and from changing their timestamps. How to undo them is part of the plan, which is stored before anything is changed. So
a resumed restore still knows the topic's own values.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - pydantic reads the types of fields
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Container

    from maxbrod.kafka.state.cluster_state import TopicState

RETENTION_MS: Final = "retention.ms"
RETENTION_BYTES: Final = "retention.bytes"
CLEANUP_POLICY: Final = "cleanup.policy"
MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
_MAX_MESSAGE_BYTES: Final = "max.message.bytes"
_SEGMENT_BYTES: Final = "segment.bytes"
_TIMESTAMP_BEFORE: Final = "message.timestamp.before.max.ms"
_TIMESTAMP_DIFFERENCE: Final = "message.timestamp.difference.max.ms"
_ANY_MS: Final = str(2**63 - 1)

_HELD: Final = {
    CLEANUP_POLICY: "delete",
    "compression.type": "producer",
    "message.timestamp.after.max.ms": _ANY_MS,
    _TIMESTAMP_BEFORE: _ANY_MS,
    "message.timestamp.type": "CreateTime",
    RETENTION_BYTES: "-1",
    RETENTION_MS: "-1",
}
MESSAGE_BYTES_DEFAULT: Final = 1_048_588
"""Kafka's default. A batch of fillers is a little smaller."""
_SEGMENT_BYTES_DEFAULT: Final = 1 << 30
_REQUEST_BYTES_MAX: Final = 100 << 20
"""The largest request that a broker reads by default (socket.request.max.bytes)."""
_BATCH_SLACK_BYTES: Final = 1024
"""Messages of magic 0 and 1 grow by their new header."""
PLACED: Final = frozenset({"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"})
"""Settings that name brokers of the cluster that was backed up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """Values to set, and names to delete, which resets them to the broker's default."""

    set: Mapping[str, str] = field(default_factory=dict)
    delete: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.set or self.delete)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigs:
    """`create` is for a topic that does not exist, `hold` for one that exists; `release` is for both, at the end."""

    create: Mapping[str, str] = field(default_factory=dict)
    hold: ConfigChange = field(default_factory=ConfigChange)
    release: ConfigChange = field(default_factory=ConfigChange)
    final: Mapping[str, str] = field(default_factory=dict)
    """The topic's own values after the restore."""
    dropped: tuple[str, ...] = ()
    """Archived settings that the target's brokers do not know."""
    left_out: tuple[str, ...] = ()
    """Archived settings that are not restored: they name brokers of the other cluster, or have no archived value."""


def plan_new_configs(
    source: TopicState | None,
    overrides: Mapping[str, str],
    *,
    replication_factor: int,
    batch_bytes_max: int,
    known: Container[str] | None,
) -> TopicConfigs:
    """The configuration of a topic that the restore creates.

    `known` are the settings that the target's brokers know; None: unknown. `source` is the topic as it was backed up;
    None, or a topic without configs, if the archive does not know it.
    """
    archived = {} if source is None else source.configs or {}
    configs = {name: value for name, value in archived.items() if name not in PLACED and value is not None}
    left_out = sorted(name for name in archived if name not in configs and name not in overrides)
    configs |= overrides
    dropped = sorted(name for name in configs if known is not None and name not in known and name not in overrides)
    final = {name: value for name, value in configs.items() if name not in dropped}
    effective = {**({} if source is None else source.effective or {}), **final}
    if _as_int(effective.get(MIN_INSYNC_REPLICAS), 1) > replication_factor > 0:
        final[MIN_INSYNC_REPLICAS] = str(replication_factor)
    held = _held(effective, batch_bytes_max, known)
    return TopicConfigs(
        create=dict(sorted({**final, **held}.items())),
        release=_way_back(held, final),
        final=dict(sorted(final.items())),
        dropped=tuple(dropped),
        left_out=tuple(left_out),
    )


def plan_existing_configs(
    target: TopicState, *, batch_bytes_max: int, known: Container[str] | None
) -> TopicConfigs | None:
    """The configuration of a topic that exists, which keeps its own in the end. None: this user may not read it."""
    if target.configs is None or target.effective is None:
        return None
    own = {name: value for name, value in target.configs.items() if value is not None}
    held = _held({**target.effective, **own}, batch_bytes_max, known)
    if _as_int(target.effective.get(MIN_INSYNC_REPLICAS), 1) > target.replication_factor:
        held[MIN_INSYNC_REPLICAS] = str(target.replication_factor)
    held = {name: value for name, value in held.items() if own.get(name) != value}
    return TopicConfigs(
        hold=ConfigChange(set=dict(sorted(held.items()))),
        release=_way_back(held, own),
        final=dict(sorted(own.items())),
    )


def _held(effective: Mapping[str, str], batch_bytes_max: int, known: Container[str] | None) -> dict[str, str]:
    held = {name: value for name, value in _HELD.items() if known is None or name in known}
    if known is not None and _TIMESTAMP_BEFORE not in known and _TIMESTAMP_DIFFERENCE in known:
        held[_TIMESTAMP_DIFFERENCE] = _ANY_MS  # brokers before 3.6
    batch_bytes = min(max(batch_bytes_max + _BATCH_SLACK_BYTES, MESSAGE_BYTES_DEFAULT), _REQUEST_BYTES_MAX)
    if _as_int(effective.get(_MAX_MESSAGE_BYTES), MESSAGE_BYTES_DEFAULT) < batch_bytes:
        held[_MAX_MESSAGE_BYTES] = str(batch_bytes)
    # A broker refuses batches that are larger than a segment.
    if _as_int(effective.get(_SEGMENT_BYTES), _SEGMENT_BYTES_DEFAULT) < batch_bytes:
        held[_SEGMENT_BYTES] = str(batch_bytes)
    return held


def _way_back(held: Mapping[str, str], own: Mapping[str, str]) -> ConfigChange:
    changed = {name: own[name] for name in sorted(held) if name in own and own[name] != held[name]}
    return ConfigChange(set=changed, delete=tuple(sorted(held.keys() - own.keys())))


def _as_int(text: str | None, otherwise: int) -> int:
    try:
        return otherwise if text is None else int(text)
    except ValueError:
        return otherwise


def retention_of(configs: Mapping[str, str], name: str) -> int | None:
    """The value of `retention.ms` or `retention.bytes`; None: it deletes nothing, or is unknown."""
    if "delete" not in configs.get(CLEANUP_POLICY, "delete").split(","):
        return None
    found = _as_int(configs.get(name), -1)
    return None if found < 0 else found
