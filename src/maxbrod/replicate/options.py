"""The options of the verbs of `maxbrod replicate`. Those of links share a section of the file, trees have their own."""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from maxbrod.errors import UsageError
from maxbrod.option_values import Bytes, Pairs, Renames, Seconds, Words
from maxbrod.options import (
    BEHAVIOR,
    OUTPUT,
    SELECTION,
    TARGET,
    Exclude,
    MetricsNames,
    MetricsOptions,
    MinTopics,
    Options,
    RateLimit,
    Topics,
    option,
)

FOLLOWING: Final = "Following"
SOURCE: Final = "Source"
TREE: Final = "Tree"
SEGMENTS: Final = "Segments"
DESTINATION: Final = "Destination"
LATE: Final = "Late segments"
NOTIFICATIONS: Final = "Notifications"
METRICS: Final = "Metrics"


@dataclass(frozen=True, kw_only=True)
class TopicOptions(Options):
    topics: Topics = ()
    exclude: Exclude = ()


@dataclass(frozen=True, kw_only=True)
class LinkOptions(TopicOptions):
    link: str | None = option(
        "The name of the link at the destination. By default the id of the source cluster.", TARGET, "NAME"
    )
    rename: Renames = option(
        "Name of a destination topic: old=new, or /regular expression for the whole name/replacement/. May be "
        "repeated.",
        TARGET,
        "OLD=NEW",
        default=(),
    )
    prefix: str = option(
        "Prefix of all destination topics that --rename does not list, such as the source's region.",
        TARGET,
        "TEXT",
        default="",
    )
    offsets: str = option(
        "exact (mirrors have the source's offsets, in topics of their own), or append (records are appended at the "
        "next free offsets, also to topics that others write to).",
        TARGET,
        "exact|append",
        default="exact",
    )


@dataclass(frozen=True, kw_only=True)
class CarryOptions(LinkOptions):
    configs: Pairs = option(
        "Configuration of destination topics, instead of the source's value. May be repeated.",
        TARGET,
        "NAME=VALUE",
        ("--config-set",),
        default_factory=dict,
    )
    groups: Words = option(
        "Carry the committed offsets of these groups: a name, a glob, or a /regular expression/ that matches the "
        "whole name. May be repeated. No groups by default.",
        BEHAVIOR,
        "PATTERN",
        default=(),
    )


@dataclass(frozen=True, kw_only=True)
class FollowOptions(MetricsOptions):
    every: Seconds = option(
        "The interval. 0: as soon as there is something to do, up to ten times a second.",
        FOLLOWING,
        "TIME",
        default=10.0,
    )
    once: bool = option("End after one interval.", FOLLOWING, default=False)
    takeover: Seconds = option(
        "Take over the work of an instance that has not renewed its lease for this long.",
        FOLLOWING,
        "TIME",
        default=30.0,
    )


@dataclass(frozen=True, kw_only=True)
class EgressOptions(FollowOptions, TopicOptions):
    min_topics: MinTopics = None
    roll_bytes: Bytes = option(
        "Archive a partition once about this much is waiting in it.", FOLLOWING, "BYTES", default=100 << 20, low=1
    )
    roll_records: int = option(
        "Archive a partition once this many records are waiting in it.", FOLLOWING, "N", default=1_000_000, low=1
    )
    roll_age: Seconds = option(
        "Archive a partition once a record has waited this long. 0: at every interval.",
        FOLLOWING,
        "TIME",
        default=300.0,
    )
    topic_limits: Words = option(
        "Limits of one topic, instead of those above, such as orders:age=30s,records=5000. May be repeated.",
        FOLLOWING,
        "TOPIC:records=N,bytes=SIZE,age=TIME",
        default=(),
    )


@dataclass(frozen=True, kw_only=True)
class IngressOptions(FollowOptions, CarryOptions):
    accept_gaps: bool = option(
        "Continue behind offsets that the archive has lost. They become holes.", BEHAVIOR, default=False
    )
    rate_bytes_per_s: RateLimit = None


@dataclass(frozen=True, kw_only=True)
class LinkStatusOptions(LinkOptions):
    watch: Seconds | None = option("Look again at this interval until stopped.", OUTPUT, "TIME")


@dataclass(frozen=True, kw_only=True)
class PromoteOptions(CarryOptions):
    force: bool = option(
        "Promote although ingress seems to be running, or groups have members.", BEHAVIOR, default=False
    )


@dataclass(frozen=True, kw_only=True)
class MirrorRepairOptions(LinkOptions):
    yes: bool = option(
        "Delete mirrors that are not what the archive has, so that ingress mirrors them anew.",
        BEHAVIOR,
        default=False,
        flags=("--yes", "-y"),
    )


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(LinkOptions):
    ranges: Words = option(
        "Verify only this range of offsets of a source partition; END is exclusive. May be repeated.",
        SELECTION,
        "TOPIC:P:FIRST..END",
        ("--range",),
        default=(),
    )


@dataclass(frozen=True, kw_only=True)
class ReplicateOptions(
    LinkStatusOptions, VerifyOptions, EgressOptions, IngressOptions, MirrorRepairOptions, PromoteOptions
):
    """The section of the file."""


@dataclass(frozen=True, kw_only=True)
class EgressTreeOptions(TopicOptions):
    min_topics: MinTopics = None
    region: str | None = option("The region of the source, which is a folder of the tree. Required.", TREE, "REGION")
    key_prefix: str = option(
        "The folder of a new tree, above the regions. A tree keeps the one that it has.", TREE, "PREFIX", default="data"
    )
    group: str = option(
        "The consumer group that has the progress, for the original tool to continue.",
        TREE,
        "NAME",
        default="replicator.egress",
    )
    codec: Literal["snappy", "gzip", "zstd", "none"] = option("Compress segments.", TREE, "NAME", default="snappy")
    roll_records: int = option(
        "Write a segment once this many records are waiting; it has no more.", SEGMENTS, "N", default=1_000_000, low=1
    )
    roll_bytes: Bytes = option(
        "Write a segment once about this much is waiting; its records have about this size.",
        SEGMENTS,
        "BYTES",
        default=100 << 20,
        low=1,
    )
    roll_age: Seconds = option(
        "Write a segment once a record has waited this long. 0: at every interval.", SEGMENTS, "TIME", default=300.0
    )
    topic_limits: Words = option(
        "Limits of one topic, instead of those above, such as orders:age=30s,records=5000. May be repeated.",
        SEGMENTS,
        "TOPIC:records=N,bytes=SIZE,age=TIME",
        default=(),
    )
    every: Seconds = option("Look at the source this often.", BEHAVIOR, "TIME", default=10.0)
    once: bool = option("End when everything that the source has now is in the tree.", BEHAVIOR, default=False)
    metrics_port: int | None = option("Serve Prometheus metrics on this port.", METRICS, "PORT", low=0, high=65535)
    metrics_host: str = option("Serve metrics on this address.", METRICS, "ADDRESS", default="127.0.0.1")
    metrics_names: MetricsNames = ()


@dataclass(frozen=True, kw_only=True)
class IngressTreeOptions(Options):
    sources: Words = option(
        "A topic of a region, and the destination topic if its name does not follow from --destination. May be "
        "repeated.",
        SOURCE,
        "REGION/TOPIC[=TOPIC]",
        ("--source",),
        default=(),
    )
    key_prefix: str = option("The folder of the tree, above the regions.", SOURCE, "PREFIX", default="data")
    local_region: str | None = option("The region of the destination. It is refused as a source.", SOURCE, "REGION")
    destination: str = option(
        "The name of destination topics; {region} and {topic} are the source's.",
        DESTINATION,
        "NAME",
        default="{topic}.ingress",
    )
    checkpoint_topic: str = option(
        "The compacted topic of checkpoints. Created if missing.",
        DESTINATION,
        "TOPIC",
        default="replicator.checkpoints",
    )
    group: str = option(
        "The name of this link. Transactional ids begin with it.", DESTINATION, "NAME", default="replicator.ingress"
    )
    delivery: Literal["exactly-once", "at-least-once"] = option(
        "exactly-once: records and checkpoint in one transaction, and consumers read committed records. "
        "at-least-once: as the original tool does it.",
        DESTINATION,
        "HOW",
        default="exactly-once",
    )
    codec: Literal["none", "gzip", "snappy", "lz4", "zstd"] = option(
        "Compress batches for the destination.", DESTINATION, "NAME", default="lz4"
    )
    lost_segment_timeout: Seconds = option(
        "Give missing offsets up when all waits for their segment have taken this long.", LATE, "TIME", default=86_400.0
    )
    late_segment_retries: int = option(
        "The number of waits. Each takes twice as long as the one before.", LATE, "N", default=16, low=1, high=50
    )
    first_segment_delay: Seconds = option(
        "Without a checkpoint, wait this long for earlier segments than the first.", LATE, "TIME", default=1800.0
    )
    worker_init_delay: Seconds = option(
        "Wait about this long before a partition is begun with.", LATE, "TIME", default=10.0
    )
    poll_every: Seconds = option(
        "List the tree at least this often. This finds segments without a notification.", LATE, "TIME", default=60.0
    )
    queue: str | None = option(
        "An SQS queue of S3 events: its name or its URL. Needs the extra sqs.", NOTIFICATIONS, "QUEUE"
    )
    sqs_endpoint: str | None = option("A server of queues other than Amazon's.", NOTIFICATIONS, "URL")
    events_topic: str | None = option(
        "The topic through which instances share segment events. Created if missing. Required with --queue.",
        NOTIFICATIONS,
        "TOPIC",
    )
    events_retention: Seconds = option(
        "The retention time of that topic.", NOTIFICATIONS, "TIME", default=86_400.0, low=600
    )
    batch_size: int = option(
        "Append at most this many records at once, then a checkpoint.", BEHAVIOR, "N", default=10_000, low=1
    )
    parallelism: int = option("Partitions that are worked on at once.", BEHAVIOR, "N", default=4, low=1, high=64)
    takeover: Seconds = option(
        "A partition that another instance has taken over is taken back if it makes no progress for this long.",
        BEHAVIOR,
        "TIME",
        default=300.0,
    )
    once: bool = option("End when everything that is in the tree now is at the destination.", BEHAVIOR, default=False)
    metrics_port: int | None = option("Serve Prometheus metrics on this port.", METRICS, "PORT", low=0, high=65535)
    metrics_host: str = option("Serve metrics on this address.", METRICS, "ADDRESS", default="127.0.0.1")
    metrics_names: MetricsNames = ()

    def __post_init__(self) -> None:
        if self.queue is not None and self.events_topic is None:
            raise ValueError("queue needs events_topic: an event is acknowledged when it is durable there")


class SourceTopic(NamedTuple):
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
