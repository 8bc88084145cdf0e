"""The options of `maxbrod restore`."""

from dataclasses import dataclass

from maxbrod.option_values import Counts, Pairs, Paths, RegistryUrl, Words
from maxbrod.options import BEHAVIOR, REGISTRY, SELECTION, TARGET, MetricsOptions, RateLimit, SelectionOptions, option


@dataclass(frozen=True, kw_only=True)
class RestoreOptions(SelectionOptions, MetricsOptions):
    where: str | None = option(
        "Restore only records for which this Spark SQL expression is true. It can use key, value, headers, "
        "timestamp, topic, partition, offset and the other columns of the table. Null counts as false.",
        SELECTION,
        "SQL",
    )
    select: str | None = option(
        'Rewrite key, value, headers or timestamp: "sha2(key, 256) as key, …". Other fields stay unchanged.',
        SELECTION,
        "SQL",
    )
    to_logdir: Paths = option(
        "A log directory of a stopped broker. Its empty partitions are written directly from the archive, without "
        "a cluster. May be repeated; name every directory of every broker.",
        TARGET,
        "DIR",
        default=(),
        python=False,
    )
    partition_count: Counts = option(
        "Another number of partitions, for all topics or for one (TOPIC=N, may be repeated). Keys go where Kafka's "
        "Java client sends them, and offsets change.",
        TARGET,
        "N|TOPIC=N",
        default=(),
    )
    partition_counts: dict[str, int] = option(
        "Another number of partitions, by topic of the archive.", TARGET, default_factory=dict, flags=()
    )
    configs: Pairs = option(
        "Configuration of topics that are created, instead of the archived value. May be repeated.",
        TARGET,
        "NAME=VALUE",
        ("--config-set",),
        default_factory=dict,
    )
    offsets: str = option(
        "exact (records keep their offsets), append (records are appended in order, also to topics that are not "
        "empty), or auto (exact where that is cheap).",
        BEHAVIOR,
        "auto|exact|append",
        default="auto",
    )
    batches: str = option(
        "auto (join small neighbouring batches, which restores faster), keep (batches as archived), or join (all "
        "neighbouring batches up to the size limit). Records, their order and their offsets are the same.",
        BEHAVIOR,
        "auto|keep|join",
        default="auto",
    )
    leader_epochs: str = option(
        "With --to-logdir: keep leader epochs, or lower those above the target's own epoch to it.",
        BEHAVIOR,
        "keep|lower",
        default="keep",
        python=False,
    )
    strict: bool = option("Refuse if anything would differ from the original.", BEHAVIOR, default=False)
    accept_gaps: bool = option(
        "Restore the rest if records are missing from the archive or damaged.", BEHAVIOR, default=False
    )
    again: bool = option(
        "Repeat a restore that has finished: into empty topics, or after existing records with --offsets append.",
        BEHAVIOR,
        default=False,
    )
    order: Words = option(
        "Restore topics that match first, and let consumers use them while the rest is restored: a name, a glob, or a "
        "/regular expression/. May be repeated, most urgent first. Topics that match none come last.",
        BEHAVIOR,
        "PATTERN",
        default=(),
    )
    rate_bytes_per_s: RateLimit = None
    provenance: bool = option(
        "Add headers to every record that name its origin. This re-encodes all records.", BEHAVIOR, default=False
    )
    groups: Words = option(
        "Restore the committed offsets of these groups: a name, a glob, or a /regular expression/ that matches the "
        "whole name. May be repeated. No groups by default.",
        BEHAVIOR,
        "PATTERN",
        default=(),
    )
    force_groups: bool = option(
        "Include groups with members: they are removed, rejoin, and continue at the new offset.",
        BEHAVIOR,
        default=False,
    )
    with_acls: bool = option(
        "Restore the ACLs of restored topics and groups, under their new names; never wider than before.",
        BEHAVIOR,
        default=False,
    )
    with_quotas: bool = option("Restore client quotas that the cluster does not have.", BEHAVIOR, default=False)
    with_settings: bool = option(
        "Restore subscriptions to client metrics, and settings that were made for all brokers, if the cluster does not "
        "have them. Settings of restored groups always come back.",
        BEHAVIOR,
        default=False,
    )
    schema_registry: RegistryUrl | None = option(
        "Bring the captured schemas back into this registry, with the same ids. User, password, token and certificates "
        "are in the section registry of the configuration file.",
        REGISTRY,
        "URL",
    )
    remap_schemas: bool = option(
        "Register the schemas under ids that the registry gives, and exchange the ids in keys, values and headers of "
        "the records.",
        REGISTRY,
        default=False,
    )
    framed: Words = option(
        "With --remap-schemas: keys or values of these topics begin with schema ids. By default those for which a "
        "subject TOPIC-key or TOPIC-value was captured. May be repeated.",
        REGISTRY,
        "TOPIC[:key|:value]",
        default=(),
    )
    unframed: Words = option(
        "With --remap-schemas: keys or values of these topics have no schema ids. May be repeated.",
        REGISTRY,
        "TOPIC[:key|:value]",
        default=(),
    )
    staging: str | None = option(
        "Where to keep records between --where or --select and the cluster. In the archive by default. Removed at "
        "the end.",
        BEHAVIOR,
        "URL",
    )
    dry_run: bool = option("Print the plan and all obstacles; change nothing.", BEHAVIOR, default=False, python=False)
    yes: bool = option("Do not ask for confirmation.", BEHAVIOR, default=False, flags=("--yes", "-y"), python=False)
