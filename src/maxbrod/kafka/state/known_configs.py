"""The settings of topics that a cluster's brokers know. Releases add and remove some. Changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.errors import MaxbrodError
from maxbrod.kafka.state.topics import BROKER, TOPIC, configs_request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.kafka.wire.deadline import Deadline

_PREFIX: Final = "log."
_OTHER_NAMES: Final = {
    "message.max.bytes": "max.message.bytes",
    "log.cleaner.delete.retention.ms": "delete.retention.ms",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms",
    "log.flush.interval.messages": "flush.messages",
    "log.flush.interval.ms": "flush.ms",
    "log.index.size.max.bytes": "segment.index.bytes",
    "log.local.retention.bytes": "local.retention.bytes",
    "log.local.retention.ms": "local.retention.ms",
    "log.roll.jitter.ms": "segment.jitter.ms",
    "log.roll.ms": "segment.ms",
    "log.segment.delete.delay.ms": "file.delete.delay.ms",
    "remote.log.storage.system.enable": "remote.storage.enable",
}
"""A broker's name for the default of a setting, and the topic's name."""
_WITHOUT_DEFAULT: Final = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
    }
)
_SAME_NAME: Final = frozenset({"compression", "min", "unclean"})
"""How settings begin that brokers and topics call alike."""


def read_known_configs(client: KafkaClient, topics: Iterable[str], *, deadline: Deadline) -> frozenset[str] | None:
    """The names of settings that a topic of this cluster may have; None if this user may not find out.

    Any existing topic tells them. Without one, they follow from the names of the brokers' defaults.
    """
    nodes = sorted(client.metadata([], deadline=deadline).brokers)
    one = sorted(topics)[:1]
    for kind, names in ((TOPIC, one), (BROKER, [str(node) for node in nodes[:1]])):
        if not names:
            continue
        try:
            (result,) = client.ask_broker(nodes[0], configs_request(names, kind), deadline=deadline).results
        except MaxbrodError:
            continue
        if not result.error_code:
            found = {config.name for config in result.configs}
            return frozenset(found if kind == TOPIC else _of_topics(found))
    return None


def _of_topics(names: Iterable[str]) -> set[str]:
    found = {_OTHER_NAMES.get(name, name.removeprefix(_PREFIX)) for name in names if name.startswith(_PREFIX)}
    found |= {topic for broker, topic in _OTHER_NAMES.items() if broker in names}
    return found | _WITHOUT_DEFAULT | {name for name in names if name.partition(".")[0] in _SAME_NAME}
