"""The options of `maxbrod restore`."""

from dataclasses import dataclass, field
from typing import Annotated

from maxbrod.options import (
    BEHAVIOR,
    SELECTION,
    TARGET,
    Counts,
    MetricsFile,
    MetricsHost,
    MetricsNames,
    MetricsPort,
    Option,
    Pairs,
    Paths,
    Rate,
    SelectionOptions,
    Words,
)


@dataclass(frozen=True, kw_only=True)
class RestoreOptions(SelectionOptions):
    where: Annotated[
        str | None,
        Option(
            "Restore only records for which this Spark SQL expression is true. It can use key, value, headers, "
            "timestamp, topic, partition, offset and the other columns of the table. Null counts as false.",
            SELECTION,
            "SQL",
        ),
    ] = None
    select: Annotated[
        str | None,
        Option(
            'Rewrite key, value, headers or timestamp: "sha2(key, 256) as key, …". Other fields stay unchanged.',
            SELECTION,
            "SQL",
        ),
    ] = None
    to_logdir: Annotated[
        Paths,
        Option(
            "A log directory of a stopped broker. Its empty partitions are written directly from the archive, without "
            "a cluster. May be repeated; name every directory of every broker.",
            TARGET,
            "DIR",
            python=False,
        ),
    ] = ()
    partition_count: Annotated[
        Counts,
        Option(
            "Another number of partitions, for all topics or for one (TOPIC=N, may be repeated). Keys go where Kafka's "
            "Java client sends them, and offsets change.",
            TARGET,
            "N|TOPIC=N",
        ),
    ] = ()
    partition_counts: Annotated[
        dict[str, int], Option("Another number of partitions, by topic of the archive.", TARGET, flags=())
    ] = field(default_factory=dict)
    configs: Annotated[
        Pairs,
        Option(
            "Configuration of topics that are created, instead of the archived value. May be repeated.",
            TARGET,
            "NAME=VALUE",
            ("--config-set",),
        ),
    ] = field(default_factory=dict)
    offsets: Annotated[
        str,
        Option(
            "exact (records keep their offsets), append (records are appended in order, also to topics that are not "
            "empty), or auto (exact where that is cheap).",
            BEHAVIOR,
            "auto|exact|append",
        ),
    ] = "auto"
    batches: Annotated[
        str,
        Option(
            "auto (join small neighbouring batches, which restores faster), keep (batches as archived), or join (all "
            "neighbouring batches up to the size limit). Records, their order and their offsets are the same.",
            BEHAVIOR,
            "auto|keep|join",
        ),
    ] = "auto"
    leader_epochs: Annotated[
        str,
        Option(
            "With --to-logdir: keep leader epochs, or lower those above the target's own epoch to it.",
            BEHAVIOR,
            "keep|lower",
            python=False,
        ),
    ] = "keep"
    strict: Annotated[bool, Option("Refuse if anything would differ from the original.", BEHAVIOR)] = False
    accept_gaps: Annotated[
        bool, Option("Restore the rest if records are missing from the archive or damaged.", BEHAVIOR)
    ] = False
    again: Annotated[
        bool,
        Option(
            "Repeat a restore that has finished: into empty topics, or after existing records with --offsets append.",
            BEHAVIOR,
        ),
    ] = False
    rate_bytes_per_s: Annotated[
        Rate | None,
        Option("Limit the rate to this many bytes a second, such as 50MB.", BEHAVIOR, "BYTES", ("--rate",), low=1),
    ] = None
    provenance: Annotated[
        bool,
        Option("Add headers to every record that name its origin. This re-encodes all records.", BEHAVIOR),
    ] = False
    groups: Annotated[
        Words,
        Option(
            "Restore the committed offsets of these groups: a name, a glob, or a /regular expression/ that matches the "
            "whole name. May be repeated. No groups by default.",
            BEHAVIOR,
            "PATTERN",
        ),
    ] = ()
    force_groups: Annotated[
        bool,
        Option("Include groups with members: they are removed, rejoin, and continue at the new offset.", BEHAVIOR),
    ] = False
    with_acls: Annotated[
        bool,
        Option(
            "Restore the ACLs of restored topics and groups, under their new names; never wider than before.", BEHAVIOR
        ),
    ] = False
    with_quotas: Annotated[bool, Option("Restore client quotas that the cluster does not have.", BEHAVIOR)] = False
    staging: Annotated[
        str | None,
        Option(
            "Where to keep records between --where or --select and the cluster. In the archive by default. Removed at "
            "the end.",
            BEHAVIOR,
            "URL",
        ),
    ] = None
    dry_run: Annotated[bool, Option("Print the plan and all obstacles; change nothing.", BEHAVIOR, python=False)] = (
        False
    )
    yes: Annotated[bool, Option("Do not ask for confirmation.", BEHAVIOR, flags=("--yes", "-y"), python=False)] = False
    metrics_port: MetricsPort = None
    metrics_host: MetricsHost = "127.0.0.1"
    metrics_names: MetricsNames = ()
    metrics_file: MetricsFile = None
