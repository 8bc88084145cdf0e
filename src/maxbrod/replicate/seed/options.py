"""The options of `maxbrod replicate egress-tree` and `ingress-tree`."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from maxbrod.errors import UsageError
from maxbrod.options import BEHAVIOR, Bytes, Exclude, MetricsNames, MinTopics, Option, Options, Seconds, Topics, Words

SOURCE: Final = "Source"
TREE: Final = "Tree"
SEGMENTS: Final = "Segments"
DESTINATION: Final = "Destination"
LATE: Final = "Late segments"
NOTIFICATIONS: Final = "Notifications"
METRICS: Final = "Metrics"


@dataclass(frozen=True, kw_only=True)
class EgressTreeOptions(Options):
    topics: Topics = ()
    exclude: Exclude = ()
    min_topics: MinTopics = None
    region: Annotated[
        str | None, Option("The region of the source, which is a folder of the tree. Required.", TREE, "REGION")
    ] = None
    key_prefix: Annotated[
        str, Option("The folder of a new tree, above the regions. A tree keeps the one that it has.", TREE, "PREFIX")
    ] = "data"
    group: Annotated[
        str,
        Option("The consumer group that has the progress, for the original tool to continue.", TREE, "NAME"),
    ] = "replicator.egress"
    codec: Annotated[Literal["snappy", "gzip", "zstd", "none"], Option("Compress segments.", TREE, "NAME")] = "snappy"
    roll_records: Annotated[
        int, Option("Write a segment once this many records are waiting; it has no more.", SEGMENTS, "N", low=1)
    ] = 1_000_000
    roll_bytes: Annotated[
        Bytes,
        Option(
            "Write a segment once about this much is waiting; its records have about this size.",
            SEGMENTS,
            "BYTES",
            low=1,
        ),
    ] = 100 << 20
    roll_age: Annotated[
        Seconds, Option("Write a segment once a record has waited this long. 0: at every interval.", SEGMENTS, "TIME")
    ] = 300.0
    topic_limits: Annotated[
        Words,
        Option(
            "Limits of one topic, instead of those above, such as orders:age=30s,records=5000. May be repeated.",
            SEGMENTS,
            "TOPIC:records=N,bytes=SIZE,age=TIME",
        ),
    ] = ()
    every: Annotated[Seconds, Option("Look at the source this often.", BEHAVIOR, "TIME")] = 10.0
    once: Annotated[bool, Option("End when everything that the source has now is in the tree.", BEHAVIOR)] = False
    metrics_port: Annotated[
        int | None, Option("Serve Prometheus metrics on this port.", METRICS, "PORT", low=0, high=65535)
    ] = None
    metrics_host: Annotated[str, Option("Serve metrics on this address.", METRICS, "ADDRESS")] = "127.0.0.1"
    metrics_names: MetricsNames = ()


@dataclass(frozen=True, kw_only=True)
class IngressTreeOptions(Options):
    sources: Annotated[
        Words,
        Option(
            "A topic of a region, and the destination topic if its name does not follow from --destination. May be "
            "repeated.",
            SOURCE,
            "REGION/TOPIC[=TOPIC]",
            ("--source",),
        ),
    ] = ()
    key_prefix: Annotated[str, Option("The folder of the tree, above the regions.", SOURCE, "PREFIX")] = "data"
    local_region: Annotated[
        str | None, Option("The region of the destination. It is refused as a source.", SOURCE, "REGION")
    ] = None
    destination: Annotated[
        str,
        Option("The name of destination topics; {region} and {topic} are the source's.", DESTINATION, "NAME"),
    ] = "{topic}.ingress"
    checkpoint_topic: Annotated[
        str, Option("The compacted topic of checkpoints. Created if missing.", DESTINATION, "TOPIC")
    ] = "replicator.checkpoints"
    group: Annotated[str, Option("The name of this link. Transactional ids begin with it.", DESTINATION, "NAME")] = (
        "replicator.ingress"
    )
    delivery: Annotated[
        Literal["exactly-once", "at-least-once"],
        Option(
            "exactly-once: records and checkpoint in one transaction, and consumers read committed records. "
            "at-least-once: as the original tool does it.",
            DESTINATION,
            "HOW",
        ),
    ] = "exactly-once"
    codec: Annotated[
        Literal["none", "gzip", "snappy", "lz4", "zstd"],
        Option("Compress batches for the destination.", DESTINATION, "NAME"),
    ] = "lz4"
    lost_segment_timeout: Annotated[
        Seconds, Option("Give missing offsets up when all waits for their segment have taken this long.", LATE, "TIME")
    ] = 86_400.0
    late_segment_retries: Annotated[
        int, Option("The number of waits. Each takes twice as long as the one before.", LATE, "N", low=1, high=50)
    ] = 16
    first_segment_delay: Annotated[
        Seconds, Option("Without a checkpoint, wait this long for earlier segments than the first.", LATE, "TIME")
    ] = 1800.0
    worker_init_delay: Annotated[
        Seconds, Option("Wait about this long before a partition is begun with.", LATE, "TIME")
    ] = 10.0
    poll_every: Annotated[
        Seconds, Option("List the tree at least this often. It finds what no notification told.", LATE, "TIME")
    ] = 60.0
    queue: Annotated[
        str | None,
        Option("An SQS queue of S3 events: its name or its URL. Needs the extra sqs.", NOTIFICATIONS, "QUEUE"),
    ] = None
    sqs_endpoint: Annotated[str | None, Option("A server of queues other than Amazon's.", NOTIFICATIONS, "URL")] = None
    events_topic: Annotated[
        str | None,
        Option(
            "The topic through which instances share segment events. Created if missing. Required with --queue.",
            NOTIFICATIONS,
            "TOPIC",
        ),
    ] = None
    events_retention: Annotated[
        Seconds, Option("The retention time of that topic.", NOTIFICATIONS, "TIME", low=600)
    ] = 86_400.0
    batch_size: Annotated[
        int, Option("Append at most this many records at once, then a checkpoint.", BEHAVIOR, "N", low=1)
    ] = 10_000
    parallelism: Annotated[int, Option("Partitions that are worked on at once.", BEHAVIOR, "N", low=1, high=64)] = 4
    takeover: Annotated[
        Seconds,
        Option(
            "A partition that another instance has taken over is taken back if it makes no progress for this long.",
            BEHAVIOR,
            "TIME",
        ),
    ] = 300.0
    once: Annotated[bool, Option("End when everything that is in the tree now is at the destination.", BEHAVIOR)] = (
        False
    )
    metrics_port: Annotated[
        int | None, Option("Serve Prometheus metrics on this port.", METRICS, "PORT", low=0, high=65535)
    ] = None
    metrics_host: Annotated[str, Option("Serve metrics on this address.", METRICS, "ADDRESS")] = "127.0.0.1"
    metrics_names: MetricsNames = ()

    def __post_init__(self) -> None:
        if self.queue is not None and self.events_topic is None:
            raise ValueError("queue needs events_topic: an event is acknowledged when it is durable there")


@dataclass(frozen=True, slots=True)
class SourceTopic:
    region: str
    topic: str


def sources_of(options: IngressTreeOptions) -> dict[SourceTopic, str]:
    """The destination topic of each source. UsageError: one is wrong, or two are the same."""
    found: dict[SourceTopic, str] = {}
    for word in options.sources:
        named, _, destination = word.partition("=")
        region, slash, topic = named.partition("/")
        if not (region and slash and topic) or "/" in topic:
            raise UsageError(f"the source {word!r} is not of the form REGION/TOPIC or REGION/TOPIC=DESTINATION")
        if region == options.local_region:
            raise UsageError(f"the source {word!r} is of the local region", hint="it would replicate in a circle")
        source = SourceTopic(region, topic)
        if source in found:
            raise UsageError(f"the source {named} is given twice")
        try:
            found[source] = destination or options.destination.format(region=region, topic=topic)
        except (KeyError, IndexError, ValueError) as error:
            raise UsageError(
                f"{options.destination!r} cannot be the name of destination topics",
                hint="{region} and {topic} are known",
            ) from error
    if not found:
        raise UsageError("no source is named", hint="give --source REGION/TOPIC")
    return found
