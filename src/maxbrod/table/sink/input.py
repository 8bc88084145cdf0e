"""The input of a write, into an archive or into Kafka: its options, and the columns of the DataFrame.

Options are parsed from the text that Spark passes; unknown names are refused. `kafka.…` are the properties of Kafka's
own clients, as Spark's Kafka sink takes them; no error shows their values. Columns of that sink are accepted as it
accepts them, with text for keys and values. Arrow or numpy converts whole batches, never single records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import types as spark

from maxbrod.batch.columns import headers_array, number_array, number_column
from maxbrod.config import KafkaConfig, StorageConfig, from_java_properties
from maxbrod.errors import RefusedError, UsageError
from maxbrod.layouts.kafka.format import Compression, SegmentLimits
from maxbrod.model import Codec, TimestampType
from maxbrod.option_values import parse_seconds
from maxbrod.storage.urls import parse_url
from maxbrod.table.read.options import GivenOptions

PARTITIONS_MAX: Final = 1_000_000
"""The most partitions of a topic. Clusters have far fewer, so a larger number is a mistake; a snapshot would hold a
place for each."""
_ARCHIVE_NAMES: Final = ("topic", "partitions", "compression", "codec", "segmentBytes", "singleWriter")
_KAFKA_NAMES: Final = (
    *("topic", "state", "writeId", "transactionalIdPrefix", "transactionTimeout", "codec"),
    *("createTopics", "newTopicPartitions", "newTopicReplicas"),
)
_KAFKA: Final = "kafka."
_OF_SPARK: Final = ("checkpointLocation", "queryName")
"""Spark's own options, which it passes on."""
_CODECS: Final = {codec.name.lower(): codec for codec in Codec}
_BESIDE_CHECKPOINT: Final = "maxbrod-kafka-sink"
_NAME_CHARACTERS: Final = 12
_US_PER_MS: Final = 1000
_BYTES: Final = (spark.BinaryType, spark.StringType)
_TYPES: Final[dict[str, tuple[type[spark.DataType], ...]]] = {
    "topic": (spark.StringType,),
    "partition": (spark.IntegerType,),
    "offset": (spark.LongType,),
    "key": _BYTES,
    "value": _BYTES,
    "timestamp": (spark.TimestampType,),
    "timestampMs": (spark.LongType,),
    "timestampType": (spark.IntegerType,),
    "headers": (spark.ArrayType,),
}
"""Every column that may be written, and its types."""
_HEADERS: Final = "array<struct<key:string,value:binary>>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSinkOptions:
    """The archive that a DataFrame is written into, and the form in which it is stored. `storage` may hold secrets."""

    url: str
    storage: StorageConfig = field(default_factory=StorageConfig, repr=False)
    topic: str | None = None
    """The topic of all rows; None: each row names its own."""
    partitions: int | None = None
    compression: Compression = field(default_factory=Compression)
    codec: Codec = Codec.NONE
    """The codec of record batches."""
    limits: SegmentLimits = field(default_factory=SegmentLimits)
    single_writer: bool = False


def parse_archive_sink_options(options: Mapping[str, str]) -> ArchiveSinkOptions:
    """UsageError names the option that is wrong."""
    given = GivenOptions.known(options, _ARCHIVE_NAMES, what="a write", hidden=("path", *_OF_SPARK))
    return ArchiveSinkOptions(
        url=given.archive('df.write.format("maxbrod").mode("append").save(url)'),
        storage=given.storage(),
        topic=given.get("topic"),
        partitions=given.number(
            "partitions", low=1, high=PARTITIONS_MAX, hint=f"give the number of partitions: 1 to {PARTITIONS_MAX}"
        ),
        compression=Compression.parse(given.get("compression", "auto")),
        codec=given.choice("codec", "none", _CODECS),
        limits=SegmentLimits(bytes_max=given.size("segmentBytes") or SegmentLimits().bytes_max),
        single_writer=given.switch("singleWriter"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopics:
    """The partitions and replicas of topics that a write creates; -1: the cluster's default."""

    partitions: int = -1
    replicas: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSinkOptions:
    """The parsed options. `kafka` and `storage` may hold secrets."""

    kafka: KafkaConfig = field(repr=False)
    storage: StorageConfig = field(repr=False)
    topic: str | None
    """The topic of all rows, whatever their column `topic` has."""
    state: str | None
    """The URL under which decisions are stored. None: they are not stored."""
    checkpoint: str | None
    """The URL of the query's checkpoint, if the state is kept inside it."""
    prefix: str
    timeout_ms: int | None
    """None: the longest that the brokers allow."""
    codec: Codec
    new_topics: NewTopics | None
    """None: topics must exist."""

    def ids_prefix(self, name: str) -> str:
        """The prefix of all transactional ids of this sink, and of no other."""
        return f"{self.prefix}-{name}-"


def parse_kafka_sink_options(options: Mapping[str, str], *, stream: bool) -> KafkaSinkOptions:
    """UsageError names the option that is wrong."""
    given = GivenOptions.known(
        options, _KAFKA_NAMES, what="a write into Kafka", hidden=_OF_SPARK, prefixes=(_KAFKA, "storage.")
    )
    create = given.switch("createTopics")
    state, checkpoint = _stream_places(given) if stream else (_batch_state(given), None)
    return KafkaSinkOptions(
        kafka=from_java_properties(given.under(_KAFKA)),
        storage=given.storage(),
        topic=given.get("topic"),
        state=state,
        checkpoint=checkpoint,
        prefix=given.get("transactionalIdPrefix", "maxbrod"),
        timeout_ms=_timeout_ms(given.get("transactionTimeout")),
        codec=given.choice("codec", "none", _CODECS, ignore_case=True),
        new_topics=NewTopics(partitions=_count("newTopicPartitions", given), replicas=_count("newTopicReplicas", given))
        if create
        else None,
    )


def sink_name(state: str) -> str:
    """The same for every run of one query, and another for any other."""
    return hashlib.sha256(state.encode()).hexdigest()[:_NAME_CHARACTERS]


def _stream_places(given: GivenOptions) -> tuple[str, str | None]:
    """The URL of the state, and that of the checkpoint if the state is inside it."""
    if given.get("writeId") is not None:
        raise UsageError("a stream has no writeId", hint="Spark numbers its batches; leave the option out")
    state = given.get("state")
    if state is not None:
        return state.rstrip("/"), None
    checkpoint = _checkpoint(given.get("checkpointLocation"))
    return f"{checkpoint}/{_BESIDE_CHECKPOINT}", checkpoint


def _checkpoint(url: str | None) -> str:
    if url is None:
        hint = "give the option checkpointLocation to this query, or a URL as the option state"
        raise UsageError("there is no place to record which batches are in Kafka", hint=hint)
    if url.startswith("file:/") and not url.startswith("file://"):
        url = url.removeprefix("file:")  # Hadoop's way to write it
    try:
        parse_url(url)
    except UsageError:
        raise no_checkpoint() from None
    return url.rstrip("/")


def no_checkpoint() -> UsageError:
    """For a checkpoint that Spark can reach and we cannot."""
    return UsageError(
        "decisions cannot be stored in the checkpoint, which cannot be reached from here",
        hint="set the option state to an s3://, gs://, az:// or file:// URL that every driver can reach",
    )


def _batch_state(given: GivenOptions) -> str | None:
    state, write_id = given.get("state"), given.get("writeId")
    if state is None and write_id is None:
        return None
    if state is None or write_id is None:
        hint = "state is the URL under which decisions are stored, and writeId names this write there"
        raise UsageError("the options state and writeId must be given together", hint=hint)
    if not write_id or not all(letter.isalnum() or letter in "._-" for letter in write_id) or not write_id.strip("."):
        raise UsageError("the option writeId must be letters, digits, '.', '_' and '-'")
    return f"{state.rstrip('/')}/{write_id}"


def _timeout_ms(word: str | None) -> int | None:
    if word is None:
        return None
    try:
        seconds = parse_seconds(word)
    except ValueError as error:
        raise UsageError(f"the option transactionTimeout {error}") from None
    if not isinstance(seconds, float) or not 1 <= seconds * 1000 < 1 << 31:
        raise UsageError("the option transactionTimeout is out of range")
    return int(seconds * 1000)


def _count(name: str, given: GivenOptions) -> int:
    found = given.number(name, low=1, high=(1 << 31) - 1, complaint=", which is not a count")
    return -1 if found is None else found


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRows:
    """Rows of a DataFrame: records, their topics, and their partitions and offsets if the rows have them."""

    records: pa.RecordBatch
    """`timestamp_ms`, `timestamp_type`, `key`, `value` and `headers` of RECORD_SCHEMA, and `offset` if it is given."""
    topic: pa.DictionaryArray
    """Text, never null, each once in the dictionary."""
    partition: NDArray[np.int32] | None
    """-1 where the row has null."""

    def __len__(self) -> int:
        return int(self.records.num_rows)


def check_columns(schema: spark.StructType, *, topic: str | None) -> None:
    """UsageError: a column is missing, unknown, duplicate or of another type. `topic` is the topic of all rows."""
    names = schema.fieldNames()
    unknown = [name for name in names if name not in _TYPES]
    if unknown:
        raise UsageError(
            f"a record has no column {unknown[0]!r}",
            hint=f"select or rename before writing; records have {', '.join(_TYPES)}",
        )
    if len(set(names)) < len(names):
        raise UsageError("a column occurs twice", hint="select each column once before writing")
    for column in schema.fields:
        _check_type(column)
    if "value" not in names:
        raise UsageError("the DataFrame has no column 'value'", hint="select the value of the records under this name")
    if topic is None and "topic" not in names:
        raise UsageError("no topic is named", hint="give a column 'topic', or the option 'topic' for all rows")


def _check_type(field: spark.StructField) -> None:
    expected = _TYPES[field.name]
    fits = isinstance(field.dataType, expected)
    if field.name == "headers" and fits:
        fits = _are_headers(field.dataType)
    if not fits:
        words = [kind().simpleString() for kind in expected] if field.name != "headers" else [_HEADERS]
        raise UsageError(
            f"the column {field.name} is {field.dataType.simpleString()}, not {' or '.join(words)}",
            hint="cast it before writing",
        )


def _are_headers(kind: Any) -> bool:  # noqa: ANN401 - of Spark, which is not typed
    entry = kind.elementType
    return (
        isinstance(entry, spark.StructType)
        and entry.fieldNames() == ["key", "value"]
        and all(isinstance(field.dataType, _BYTES) for field in entry.fields)
    )


def to_rows(batch: pa.RecordBatch, *, topic: str | None, now_ms: int) -> SinkRows:
    """Convert a batch of a DataFrame whose columns were checked. SinkRows without a timestamp get `now_ms`.

    `topic` is the topic of all rows, whatever their column has. RefusedError: a row has null where it must not.
    """
    names = batch.schema.names

    def column(name: str) -> pa.Array | None:
        return batch.column(name) if name in names else None

    count = batch.num_rows
    columns = {
        "timestamp_ms": number_array(_timestamps(column("timestampMs"), column("timestamp"), now_ms, count)),
        "timestamp_type": number_array(_timestamp_types(column("timestampType"), count)),
        "key": _bytes(column("key"), count),
        "value": _bytes(column("value"), count),
        "headers": _headers(column("headers"), count),
    }
    offsets = column("offset")
    if offsets is not None:
        _refuse_null("offset", offsets)
        columns["offset"] = offsets
    partitions = column("partition")
    return SinkRows(
        records=pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)),
        topic=_topics(column("topic"), topic, count),
        partition=None if partitions is None else _partitions(partitions),
    )


def numbers(array: pa.Array, default: int) -> NDArray[Any]:
    """The values of an array of integers, with `default` for null."""
    if not array.null_count:
        return number_column(array)
    valid = number_column(array.is_valid())
    if not valid.any():
        return np.full(len(array), default, f"i{array.type.bit_width // 8}")
    return np.where(valid, number_column(array), default)


def _topics(column: pa.Array | None, topic: str | None, count: int) -> pa.DictionaryArray:
    if topic is not None:
        return pa.DictionaryArray.from_arrays(number_array(np.zeros(count, np.int32)), pa.array([topic], pa.string()))
    if column is None:
        raise UsageError("no topic is named", hint="give a column 'topic', or the option 'topic' for all rows")
    _refuse_null("topic", column)
    return column.cast(pa.string()).dictionary_encode()


def _partitions(column: pa.Array) -> NDArray[np.int32]:
    found = numbers(column, 0)
    if len(found) and int(found.min()) < 0:
        raise RefusedError(
            f"a row names partition {int(found.min())}", operation="write", hint="partitions count from 0"
        )
    return numbers(column, -1)


def _timestamps(exact: pa.Array | None, column: pa.Array | None, now_ms: int, count: int) -> NDArray[np.int64]:
    """Milliseconds if given, otherwise the timestamp rounded down to milliseconds, otherwise now."""
    times = np.full(count, now_ms, np.int64)
    if column is not None:
        valid = number_column(column.is_valid())
        # Down, not towards 1970, so that negative times keep their order.
        times = np.where(valid, numbers(column.cast(pa.timestamp("us", tz="UTC")), 0) // _US_PER_MS, times)
    if exact is not None:
        times = np.where(number_column(exact.is_valid()), numbers(exact, 0), times)
    return times


def _timestamp_types(column: pa.Array | None, count: int) -> NDArray[np.int8]:
    if column is None:
        return np.full(count, TimestampType.CREATE, np.int8)
    found = numbers(column, TimestampType.CREATE)
    wrong = np.flatnonzero((found < TimestampType.NONE) | (found > TimestampType.LOG_APPEND))
    if wrong.size:
        raise RefusedError(
            f"a row has the timestampType {int(found[wrong[0]])}",
            hint="Kafka has 0 (create time) and 1 (append time)",
        )
    return found.astype(np.int8)


def _bytes(column: pa.Array | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.binary()) if column is None else column.cast(pa.binary())


def _headers(column: pa.Array | None, count: int) -> pa.Array:
    if column is None:
        return headers_array(np.zeros(count + 1, np.int32), *(pa.nulls(0, pa.binary()),) * 2)
    entries = column.flatten()
    keys, values = (part.cast(pa.binary()) for part in entries.flatten())
    if entries.null_count or keys.null_count:
        raise RefusedError("a row has a header that is null, or whose key is", hint="Kafka has no such header")
    counts = numbers(pc.list_value_length(column), 0)
    return headers_array(np.concatenate([np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)]), keys, values)


def _refuse_null(name: str, column: pa.Array) -> None:
    if column.null_count:
        row = int(np.flatnonzero(~number_column(column.is_valid()))[0])
        raise RefusedError(
            f"the column {name} is null in a row (the {row + 1}. of its batch)",
            operation="write",
            hint=f"filter such rows out before writing: where {name} is not null",
        )
