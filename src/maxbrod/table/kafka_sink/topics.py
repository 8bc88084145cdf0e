"""The target topics of a write: their ids, partitions and limits, read once per attempt; created if requested."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maxbrod.batch.encode import BATCH_BYTES_MAX
from maxbrod.errors import RefusedError, UnavailableError, UsageError
from maxbrod.kafka.admin.topics import NewTopic, create_topics
from maxbrod.kafka.state.topics import read_configs
from maxbrod.kafka.wire.client import KafkaClient, retry
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from maxbrod.kafka.wire.metadata import Topic
    from maxbrod.table.kafka_sink.options import NewTopics

_PATIENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    topic: str
    topic_id: UUID
    partitions: int
    batch_bytes_max: int


class Targets:
    """Looks topics up when a row first names them. UsageError names those that do not exist."""

    def __init__(self, client: KafkaClient, new_topics: NewTopics | None) -> None:
        self._client = client
        self._new_topics = new_topics
        self._known: dict[str, Target] = {}

    def find(self, names: Iterable[str]) -> list[Target]:
        wanted = list(names)
        missing = [name for name in wanted if name not in self._known]
        if missing:
            self._look_up(missing)
        return [self._known[name] for name in wanted]

    def _look_up(self, names: Sequence[str]) -> None:
        found = dict(self._client.metadata(names).topics)
        absent = sorted(set(names) - found.keys())
        if absent:
            found |= self._created(absent)
        # Without the permission to read the configuration, batches have the size that brokers accept by default.
        configs, _ = read_configs(self._client, names, deadline=Deadline.after(_PATIENCE_S))
        for name in names:
            own = configs.get(name)
            limit = None if own is None else own.effective.get("max.message.bytes")
            self._known[name] = Target(
                topic=name,
                topic_id=found[name].topic_id,
                partitions=len(found[name].partitions),
                batch_bytes_max=BATCH_BYTES_MAX if limit is None else int(limit),
            )

    def _created(self, names: Sequence[str]) -> dict[str, Topic]:
        if self._new_topics is None:
            hint = "create them first, or give the option createTopics; they may also exist without Describe permission"
            raise UsageError(f"there is no topic {', '.join(names)}", operation="write", hint=hint)
        new = self._new_topics
        wanted = [NewTopic(name=name, partitions=new.partitions, replication_factor=new.replicas) for name in names]
        for name, outcome in create_topics(self._client, wanted).items():
            if outcome.code not in {Code.NONE, Code.TOPIC_ALREADY_EXISTS}:  # another task may have been first
                raise RefusedError(
                    f"the topic could not be created: {outcome.reason}", operation="create topic", object_name=name
                )

        def once(limit: Deadline) -> dict[str, Topic]:
            found = self._client.metadata(names, deadline=limit).topics
            if any(name not in found or not found[name].partitions for name in names):
                raise UnavailableError("a new topic is not known yet", object_name=names[0])
            return dict(found)

        return retry(once, deadline=Deadline.after(_PATIENCE_S), what="new topics to be known")
