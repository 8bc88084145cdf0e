"""The options of a write, into an archive or into Kafka, parsed from the text that Spark passes. Unknown names are
refused.

`kafka.…` are the properties of Kafka's own clients, as Spark's Kafka sink takes them; no error shows their values.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from maxbrod.config import KafkaConfig, StorageConfig, from_java_properties
from maxbrod.errors import UsageError
from maxbrod.layouts.kafka.format import Compression, SegmentLimits
from maxbrod.model import Codec
from maxbrod.options import parse_seconds
from maxbrod.storage.urls import parse_url
from maxbrod.table.read.options import GivenOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

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
