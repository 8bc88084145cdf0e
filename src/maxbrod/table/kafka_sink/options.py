"""The options of a write into Kafka, parsed from the text that Spark passes. Unknown names are refused.

`kafka.…` are the properties of Kafka's own clients, as Spark's Kafka sink takes them; no error shows their values.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from maxbrod.config import KafkaConfig, StorageConfig, from_java_properties
from maxbrod.errors import UsageError
from maxbrod.model import Codec
from maxbrod.options import parse_seconds
from maxbrod.storage.urls import parse_url
from maxbrod.table.read.options import choice, known_options, storage_of, switch

if TYPE_CHECKING:
    from collections.abc import Mapping

_KAFKA: Final = "kafka."
_NAMES: Final = (
    *("topic", "state", "writeId", "transactionalIdPrefix", "transactionTimeout", "codec"),
    *("createTopics", "newTopicPartitions", "newTopicReplicas"),
)
_OF_SPARK: Final = ("checkpointLocation", "queryName")
_CODECS: Final = {codec.name.lower(): codec for codec in Codec}
_BESIDE_CHECKPOINT: Final = "maxbrod-kafka-sink"
_NAME_CHARACTERS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopics:
    """How missing topics are created; -1: the cluster's default."""

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
    """Names in any case, because Spark passes them in lower case. UsageError names the option that is wrong."""
    given = known_options(options, _NAMES, what="a write into Kafka", hidden=_OF_SPARK, prefixes=(_KAFKA, "storage."))
    create = switch("createTopics", given.get("createtopics", "false"))
    state, checkpoint = _stream_places(given) if stream else (_batch_state(given), None)
    return KafkaSinkOptions(
        kafka=from_java_properties(_under(given, _KAFKA)),
        storage=storage_of(given),
        topic=given.get("topic"),
        state=state,
        checkpoint=checkpoint,
        prefix=given.get("transactionalidprefix", "maxbrod"),
        timeout_ms=_timeout_ms(given.get("transactiontimeout")),
        codec=choice("codec", given.get("codec", "none").lower(), _CODECS),
        new_topics=NewTopics(partitions=_count("newTopicPartitions", given), replicas=_count("newTopicReplicas", given))
        if create
        else None,
    )


def sink_name(state: str) -> str:
    """The same for every run of one query, and another for any other."""
    return hashlib.sha256(state.encode()).hexdigest()[:_NAME_CHARACTERS]


def _under(given: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}


def _stream_places(given: Mapping[str, str]) -> tuple[str, str | None]:
    """The URL of the state, and that of the checkpoint if the state is inside it."""
    if "writeid" in given:
        raise UsageError("a stream has no writeId", hint="Spark numbers its batches; leave the option out")
    if "state" in given:
        return given["state"].rstrip("/"), None
    checkpoint = _checkpoint(given.get("checkpointlocation"))
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


def _batch_state(given: Mapping[str, str]) -> str | None:
    if ("state" in given) != ("writeid" in given):
        hint = "state is the URL under which decisions are stored, and writeId names this write there"
        raise UsageError("the options state and writeId must be given together", hint=hint)
    if "state" not in given:
        return None
    write_id = given["writeid"]
    if not write_id or not all(each.isalnum() or each in "._-" for each in write_id) or write_id.strip(".") == "":
        raise UsageError("the option writeId must be letters, digits, '.', '_' and '-'")
    return f"{given['state'].rstrip('/')}/{write_id}"


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


def _count(name: str, given: Mapping[str, str]) -> int:
    word = given.get(name.lower())
    if word is None:
        return -1
    if not (word.isascii() and word.isdigit() and 1 <= int(word) < 1 << 31):
        raise UsageError(f"the option {name} is {word!r}, which is not a count")
    return int(word)
