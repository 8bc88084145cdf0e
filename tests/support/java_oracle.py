"""Kafka's own Java classes as an oracle: what they write we must read, what we write they must read.

One JVM per run of the tests, driven through py4j; needs a Java runtime and no compiler. A call costs about
0.1 ms and a record about ten of them, so this is for hundreds of records; let a tool make millions.
"""

from __future__ import annotations

import subprocess
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from py4j.java_gateway import GatewayParameters, JavaGateway

from maxbrod.sandbox.jars import QUICK_OPTIONS, QUIET_OPTIONS, java_command, kafka_release, spark_jar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
CREATE_TIME: Final = "CREATE_TIME"
LOG_APPEND_TIME: Final = "LOG_APPEND_TIME"
_BYTES: Final = "org.apache.kafka.common.serialization.ByteArray"

Headers = tuple[tuple[str, bytes | None], ...]


class JavaRecord(NamedTuple):
    """A record as Java sees it. `offset` is ignored by a producer; None lets the builder count on."""

    timestamp_ms: int = -1
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    offset: int | None = None


class JavaBatch(NamedTuple):
    """What Java reads from the header of a batch."""

    magic: int
    base_offset: int
    last_offset: int
    codec: str
    timestamp_type: str
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool
    is_control: bool
    partition_leader_epoch: int
    size_bytes: int
    records: tuple[JavaRecord, ...]


class JavaOracle:
    """`oracle.jvm` reaches any class by its name; the methods are for what many tests need."""

    def __init__(self, gateway: JavaGateway) -> None:
        self._gateway = gateway
        self.jvm = gateway.jvm
        common = gateway.jvm.org.apache.kafka.common
        # Kafka 4.3 moved these out of org.apache.kafka.common.record.
        self._record_classes = common.record.internal
        self._memory_records = self._record_classes.MemoryRecords
        self._timestamp_types = common.record.TimestampType
        self._compression = common.compress.Compression
        self._header = common.header.internals.RecordHeader
        self._utils = common.utils.Utils
        self._byte_buffer = gateway.jvm.java.nio.ByteBuffer
        # Py4J asks the JVM for every part of a name, each time: looked up once, as many calls need them.
        self._topic_partition = common.TopicPartition
        self._system_time = common.utils.Time.SYSTEM
        self._long_ref = common.utils.PrimitiveRef
        self._no_caching = common.utils.BufferSupplier.NO_CACHING
        self._producer_record_class = gateway.jvm.org.apache.kafka.clients.producer.ProducerRecord
        self._array_list = gateway.jvm.java.util.ArrayList
        self._long = gateway.jvm.java.lang.Long
        self._long_max = self._long.MAX_VALUE
        log = gateway.jvm.org.apache.kafka.storage.internals.log
        self._validator, self._client = log.LogValidator, log.AppendOrigin.CLIENT

    @classmethod
    @contextmanager
    def start(cls) -> Iterator[JavaOracle]:
        jars = [spark_jar("py4j"), *kafka_release().jars]
        arguments = ("--die-on-broken-pipe", "--enable-auth", "0")
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        with ExitStack() as undo:
            temporary = undo.enter_context(TemporaryDirectory(prefix="java-oracle-"))
            options = (*QUIET_OPTIONS, *QUICK_OPTIONS, "-Xmx512m", f"-Djava.io.tmpdir={temporary}")
            command = java_command(jars, "py4j.GatewayServer", *arguments, options=options)
            java = undo.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null, text=True))
            assert java.stdout is not None
            port, token = int(java.stdout.readline()), java.stdout.readline().strip()
            parameters = GatewayParameters(port=port, auth_token=token, auto_convert=True)
            gateway = JavaGateway(gateway_parameters=parameters)
            try:
                yield cls(gateway)
            finally:
                gateway.shutdown()
                java.kill()

    # Bytes

    def memory_records(
        self,
        magic: int,
        codec: str,
        timestamp_type: str,
        records: Iterable[JavaRecord],
        base_offset: int = 0,
        *,
        log_append_time_ms: int = -1,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        is_transactional: bool = False,
        partition_leader_epoch: int = -1,
    ) -> bytes:
        """One batch (magic 2), or one message set (magic 0 and 1), by Java's MemoryRecordsBuilder."""
        builder = self._record_classes.MemoryRecordsBuilder(
            self._byte_buffer.allocate(1 << 12),
            magic,
            self._compression.of(codec).build(),
            getattr(self._timestamp_types, "NO_TIMESTAMP_TYPE" if magic == 0 else timestamp_type),
            base_offset,
            log_append_time_ms,
            producer_id,
            producer_epoch,
            base_sequence,
            is_transactional,
            False,  # not a control batch
            partition_leader_epoch,
            2**31 - 1,
        )
        for position, record in enumerate(records):
            offset = base_offset + position if record.offset is None else record.offset
            headers = self._java_headers(record.headers)
            builder.appendWithOffset(offset, record.timestamp_ms, record.key, record.value, headers)
        return bytes(self._utils.toArray(builder.build().buffer()))

    def transaction_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        base_offset: int = 0,
        timestamp_ms: int = 0,
        partition_leader_epoch: int = 0,
        coordinator_epoch: int = 0,
    ) -> bytes:
        """A control batch that ends a transaction."""
        kinds = self._record_classes.ControlRecordType
        marker = self._record_classes.EndTransactionMarker(kinds.COMMIT if commit else kinds.ABORT, coordinator_epoch)
        records = self._record_classes.MemoryRecords.withEndTransactionMarker(
            base_offset, timestamp_ms, partition_leader_epoch, producer_id, producer_epoch, marker
        )
        return bytes(self._utils.toArray(records.buffer()))

    def validated(self, batch: bytes, offset: int) -> bytes:
        """One batch of a client as a broker would store it at `offset`; Java's exception if it would refuse it."""
        records = self._memory_records.readableRecords(self._byte_buffer.wrap(batch))
        (one,) = records.batches().iterator()
        one.ensureValid()
        codec = one.compressionType()
        validator = self._validator(
            records,
            self._topic_partition("topic", 0),
            self._system_time,
            codec,
            self._compression.of(codec).build(),
            False,  # not a compacted topic
            2,
            self._timestamp_types.CREATE_TIME,
            self._long_max,
            self._long_max,
            0,
            self._client,
        )
        # Without a recorder of metrics: it is asked for only where something is refused.
        result = validator.validateMessagesAndAssignOffsets(self._long_ref.ofLong(offset), None, self._no_caching)
        return bytes(self._utils.toArray(result.validatedRecords().buffer()))

    def parse(self, data: bytes) -> list[JavaRecord]:
        """Every record of every batch, control records included, after Java has checked the checksums."""
        return [record for batch in self._batches(data) for record in self._records(batch)]

    def parse_batches(self, data: bytes) -> list[JavaBatch]:
        return [self._batch(batch) for batch in self._batches(data)]

    def _batches(self, data: bytes) -> Iterator[Any]:
        for batch in self._memory_records.readableRecords(self._byte_buffer.wrap(data)).batches().iterator():
            batch.ensureValid()
            yield batch

    def _records(self, batch: Any) -> Iterator[JavaRecord]:
        return (self._record(record) for record in batch.iterator())

    def _batch(self, batch: Any) -> JavaBatch:
        return JavaBatch(
            magic=batch.magic(),
            base_offset=batch.baseOffset(),
            last_offset=batch.lastOffset(),
            codec=batch.compressionType().toString(),
            timestamp_type=batch.timestampType().name(),
            max_timestamp_ms=batch.maxTimestamp(),
            producer_id=batch.producerId(),
            producer_epoch=batch.producerEpoch(),
            base_sequence=batch.baseSequence(),
            is_transactional=batch.isTransactional(),
            is_control=batch.isControlBatch(),
            partition_leader_epoch=batch.partitionLeaderEpoch() if batch.magic() == 2 else -1,
            size_bytes=batch.sizeInBytes(),
            records=tuple(self._records(batch)),
        )

    def _record(self, record: Any) -> JavaRecord:
        record.ensureValid()
        return JavaRecord(
            timestamp_ms=record.timestamp(),
            key=self._utils.toNullableArray(record.key()),
            value=self._utils.toNullableArray(record.value()),
            headers=_python_headers(record.headers()),
            offset=record.offset(),
        )

    def _java_headers(self, headers: Headers) -> Any:
        array = self._gateway.new_array(self.jvm.org.apache.kafka.common.header.Header, len(headers))
        for index, (key, value) in enumerate(headers):
            array[index] = self._header(key, value)
        return array

    # Clients

    def properties(self, values: Mapping[str, str]) -> Any:
        properties = self.jvm.java.util.Properties()
        for name, value in values.items():
            properties.setProperty(name, value)
        return properties

    @contextmanager
    def producer(self, client: Mapping[str, str], **config: str) -> Iterator[Any]:
        """A KafkaProducer of bytes. `config` may spell dots as underscores: `transactional_id="t"`."""
        ours = {"key.serializer": f"{_BYTES}Serializer", "value.serializer": f"{_BYTES}Serializer"}
        values = {**client, **ours, **_dotted(config)}
        producer = self.jvm.org.apache.kafka.clients.producer.KafkaProducer(self.properties(values))
        try:
            yield producer
        finally:
            producer.close(self.jvm.java.time.Duration.ofSeconds(30))

    def send(self, producer: Any, topic: str, partition: int | None, records: Iterable[JavaRecord]) -> list[int]:
        """Send, wait until all are acknowledged, and return their offsets."""
        futures = [producer.send(self._producer_record(topic, partition, record)) for record in records]
        producer.flush()
        return [future.get().offset() for future in futures]

    def produce(
        self,
        bootstrap: str | Mapping[str, str],
        topic: str,
        partition: int | None,
        records: Sequence[JavaRecord],
        codec: str = "none",
        *,
        transactional_id: str | None = None,
        commit: bool = True,
        **config: str,
    ) -> list[int]:
        """Write records with a producer of their own; in one transaction, committed or aborted, if it has an id.

        They form one batch, unless `batch_size` divides them: the producer lingers until the flush.
        """
        client = {"bootstrap.servers": bootstrap} if isinstance(bootstrap, str) else bootstrap
        if transactional_id is not None:
            config["transactional_id"] = transactional_id
        with self.producer(client, **{"compression_type": codec, "linger_ms": "60000", **config}) as producer:
            if transactional_id is None:
                return self.send(producer, topic, partition, records)
            producer.initTransactions()
            producer.beginTransaction()
            offsets = self.send(producer, topic, partition, records)
            (producer.commitTransaction if commit else producer.abortTransaction)()
            return offsets

    def _producer_record(self, topic: str, partition: int | None, record: JavaRecord) -> Any:
        headers = [self._header(key, value) for key, value in record.headers]
        timestamp_ms = None if record.timestamp_ms == -1 else self._long(str(record.timestamp_ms))
        return self._producer_record_class(
            topic, partition, timestamp_ms, record.key, record.value, self._array_list(headers)
        )

    def consume(
        self,
        bootstrap: str | Mapping[str, str],
        topic: str,
        partition: int,
        *,
        from_offset: int = 0,
        isolation_level: str = "read_committed",
    ) -> list[JavaRecord]:
        """Every record from an offset to what is the end now, as Java's KafkaConsumer delivers them."""
        client = {"bootstrap.servers": bootstrap} if isinstance(bootstrap, str) else bootstrap
        ours = {"key.deserializer": f"{_BYTES}Deserializer", "value.deserializer": f"{_BYTES}Deserializer"}
        values = {**client, **ours, "isolation.level": isolation_level, "auto.offset.reset": "none"}
        consumer = self.jvm.org.apache.kafka.clients.consumer.KafkaConsumer(self.properties(values))
        try:
            where = self._topic_partition(topic, partition)
            consumer.assign([where])
            consumer.seek(where, from_offset)
            end = consumer.endOffsets([where])[where]
            records: list[JavaRecord] = []
            while consumer.position(where) < end:
                polled = consumer.poll(self.jvm.java.time.Duration.ofMillis(200))
                records.extend(_consumed(record) for record in polled.iterator())
            return records
        finally:
            consumer.close()

    def consume_all(
        self, bootstrap: str, topic: str, *, isolation_level: str = "read_committed"
    ) -> list[tuple[int, JavaRecord]]:
        """Every record of a topic with its partition, by one consumer, up to what are the ends now."""
        ours = {"key.deserializer": f"{_BYTES}Deserializer", "value.deserializer": f"{_BYTES}Deserializer"}
        values = {"bootstrap.servers": bootstrap, **ours, "isolation.level": isolation_level}
        consumer = self.jvm.org.apache.kafka.clients.consumer.KafkaConsumer(self.properties(values))
        try:
            numbers = [found.partition() for found in consumer.partitionsFor(topic)]
            places = [self._topic_partition(topic, number) for number in numbers]
            consumer.assign(places)
            consumer.seekToBeginning(places)
            ends = consumer.endOffsets(places)
            records: list[tuple[int, JavaRecord]] = []
            while any(consumer.position(place) < ends[place] for place in places):
                polled = consumer.poll(self.jvm.java.time.Duration.ofMillis(200))
                records += [(record.partition(), _consumed(record)) for record in polled.iterator()]
            return records
        finally:
            consumer.close()


def _dotted(config: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in config.items()}


def _consumed(record: Any) -> JavaRecord:
    return JavaRecord(
        timestamp_ms=record.timestamp(),
        key=record.key(),
        value=record.value(),
        headers=_python_headers(record.headers().toArray()),
        offset=record.offset(),
    )


def _python_headers(headers: Any) -> Headers:
    return tuple((header.key(), header.value()) for header in headers)
