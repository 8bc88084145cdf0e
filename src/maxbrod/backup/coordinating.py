"""The coordination topic of two instances that take turns: reads what is new in it, and writes to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from maxbrod.batch.columns import RECORD_SCHEMA
from maxbrod.batch.transactions import from_fetch
from maxbrod.errors import CorruptDataError, RefusedError, UnavailableError, UnsupportedFormatError
from maxbrod.kafka.admin.topics import NewTopic, create_topics
from maxbrod.kafka.fetch.offsets import EARLIEST, LATEST, list_offsets
from maxbrod.kafka.fetch.ranges import read_range
from maxbrod.kafka.produce.appends import Feed, stamped
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.produce.producer_ids import new_producer_id
from maxbrod.kafka.wire.client import KafkaClient, retry
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.layouts.avro.instances import TOPIC, decode_coordination, encode_coordination
from maxbrod.layouts.visible_records import decode_committed
from maxbrod.model import TimestampType, TopicPartition, now_ms

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maxbrod.backup.plan.turns import Mailbox, Send
    from maxbrod.kafka.wire.metadata import Topic

_COMPACTED: Final = {"cleanup.policy": "compact"}


class CoordinationTopic:
    """`mail` holds the messages that were not acknowledged when `look` was last called."""

    def __init__(self, client: KafkaClient, mail: Mailbox, *, patience_s: float) -> None:
        self.mail = mail
        self._client = client
        self._patience_s = patience_s
        self._read_to: dict[TopicPartition, int] = {}

    def look(self) -> None:
        """Read what was written since the last time. The topic is created if it is missing."""
        places = [TopicPartition(topic=TOPIC, partition=partition) for partition in sorted(self._topic().partitions)]
        ends = list_offsets(self._client, dict.fromkeys(places, LATEST), read_committed=True, deadline=self._deadline())
        starts = list_offsets(self._client, dict.fromkeys(places, EARLIEST), deadline=self._deadline())
        for where in places:
            end, read_to = ends[where].offset, self._read_to.get(where, 0)
            # A log that has become shorter was created again.
            first = max(read_to if read_to <= end else 0, starts[where].offset)
            for key, value in self._records(where, first, end):
                self._read(key, value)
            self._read_to[where] = end

    def _read(self, key: bytes | None, value: bytes | None) -> None:
        if key is None:
            return
        try:
            self.mail.read(key.decode(), None if value is None else decode_coordination(value))
        except (UnicodeDecodeError, CorruptDataError, UnsupportedFormatError):
            # Not one of the messages that two instances exchange: the original ignores what it does not look for.
            return

    def _records(self, where: TopicPartition, first: int, end: int) -> Iterator[tuple[bytes | None, bytes | None]]:
        for chunk in read_range(self._client, where, first, end, patience_s=self._patience_s):
            aborted = from_fetch(chunk.data, chunk.headers, chunk.aborted) if len(chunk.headers) else ()
            for batch in decode_committed(chunk.data, chunk.headers, aborted, columns=["offset", "key", "value"]):
                offsets, keys, values = (batch.column(name).to_pylist() for name in ("offset", "key", "value"))
                yield from (
                    (key, value)
                    for offset, key, value in zip(offsets, keys, values, strict=True)
                    if first <= offset < end
                )

    def send(self, messages: Sequence[Send]) -> None:
        """Returns when all replicas have them."""
        from maxbrod.batch.encode import encode  # noqa: PLC0415 - numba
        from maxbrod.batch.hashes import partition_for  # noqa: PLC0415
        from maxbrod.batch.headers import walk  # noqa: PLC0415

        topic = self._topic()
        keys = [message.key.encode() for message in messages]
        values = [None if message.message is None else encode_coordination(message.message) for message in messages]
        # As the original's producer places them: messages of one key stay in order.
        places = partition_for(pa.array(keys, pa.binary()), len(topic.partitions), null_partition=0)
        identity = new_producer_id(self._client, deadline=self._deadline())
        feeds = []
        for partition in sorted(set(places.tolist())):
            rows = [at for at, each in enumerate(places.tolist()) if each == partition]
            data = encode(_records_of([keys[at] for at in rows], [values[at] for at in rows]))
            batches = stamped(data, walk(data), identity, first_sequence=0)
            where = TopicPartition(topic=TOPIC, partition=partition)
            feeds.append(Feed(where=where, topic_id=topic.topic_id, first_offset=None, appends=batches))
        for _ in produce_all(self._client, feeds, patience_s=self._patience_s):
            pass

    def _topic(self) -> Topic:
        found = self._client.metadata([TOPIC], deadline=self._deadline()).topics.get(TOPIC)
        if found is not None:
            return found
        new = NewTopic(name=TOPIC, partitions=1, configs=_COMPACTED)
        outcome = create_topics(self._client, [new], deadline=self._deadline())[TOPIC]
        if not outcome.done:
            raise RefusedError(
                f"the topic could not be created: {outcome.reason}",
                operation="take turns",
                object_name=TOPIC,
                hint="create it with one partition and cleanup.policy=compact",
            )

        def once(limit: Deadline) -> Topic:
            created = self._client.metadata([TOPIC], deadline=limit).topics.get(TOPIC)
            if created is None or any(partition.leader is None for partition in created.partitions.values()):
                raise UnavailableError("the topic has no leader yet", object_name=TOPIC)
            return created

        return retry(once, deadline=self._deadline(), what="a leader of the topic")

    def _deadline(self) -> Deadline:
        return Deadline.after(self._patience_s)


def _records_of(keys: Sequence[bytes], values: Sequence[bytes | None]) -> pa.RecordBatch:
    count = len(keys)
    numbers = {"timestamp_ms": now_ms(), "timestamp_type": int(TimestampType.CREATE), "leader_epoch": -1}
    numbers |= {"producer_id": -1, "producer_epoch": -1, "sequence": -1, "transactional": False, "control": False}
    columns: dict[str, list[Any]] = {name: [value] * count for name, value in numbers.items()}
    columns |= {"offset": list(range(count)), "key": list(keys), "value": list(values), "headers": [[]] * count}
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[each.name], each.type) for each in RECORD_SCHEMA], schema=RECORD_SCHEMA
    )
