"""The options of `maxbrod replicate`."""

from dataclasses import dataclass, field
from typing import Annotated, Final

from maxbrod.options import (
    BEHAVIOR,
    OUTPUT,
    SELECTION,
    TARGET,
    Bytes,
    Exclude,
    MetricsFile,
    MetricsHost,
    MetricsNames,
    MetricsPort,
    MinTopics,
    Option,
    Options,
    Pairs,
    Rate,
    Renames,
    Seconds,
    Topics,
    Words,
)

FOLLOWING: Final = "Following"


@dataclass(frozen=True, kw_only=True)
class ReplicateOptions(Options):
    topics: Topics = ()
    exclude: Exclude = ()
    min_topics: MinTopics = None
    link: Annotated[
        str | None,
        Option("The name of the link at the destination. By default the id of the source cluster.", TARGET, "NAME"),
    ] = None
    rename: Annotated[
        Renames,
        Option(
            "Name of a destination topic: old=new, or /regular expression for the whole name/replacement/. May be "
            "repeated.",
            TARGET,
            "OLD=NEW",
        ),
    ] = ()
    prefix: Annotated[
        str,
        Option("Prefix of all destination topics that --rename does not list, such as the source's region.", TARGET),
    ] = ""
    offsets: Annotated[
        str,
        Option(
            "exact (mirrors have the source's offsets, in topics of their own), or append (records are appended at the "
            "next free offsets, also to topics that others write to).",
            TARGET,
            "exact|append",
        ),
    ] = "exact"
    configs: Annotated[
        Pairs,
        Option(
            "Configuration of destination topics, instead of the source's value. May be repeated.",
            TARGET,
            "NAME=VALUE",
            ("--config-set",),
        ),
    ] = field(default_factory=dict)
    groups: Annotated[
        Words,
        Option(
            "Carry the committed offsets of these groups: a name, a glob, or a /regular expression/ that matches the "
            "whole name. May be repeated. No groups by default.",
            BEHAVIOR,
            "PATTERN",
        ),
    ] = ()
    accept_gaps: Annotated[
        bool, Option("Continue behind offsets that the archive has lost. They become holes.", BEHAVIOR)
    ] = False
    force: Annotated[
        bool, Option("Promote although ingress seems to be running, or groups have members.", BEHAVIOR)
    ] = False
    yes: Annotated[
        bool,
        Option(
            "Delete mirrors that are not what the archive has, so that ingress mirrors them anew.",
            BEHAVIOR,
            flags=("--yes", "-y"),
        ),
    ] = False
    rate_bytes_per_s: Annotated[
        Rate | None,
        Option("Limit the rate to this many bytes a second, such as 50MB.", BEHAVIOR, "BYTES", ("--rate",), low=1),
    ] = None
    every: Annotated[Seconds, Option("The interval.", FOLLOWING, "TIME")] = 10.0
    once: Annotated[bool, Option("End after one interval.", FOLLOWING)] = False
    takeover: Annotated[
        Seconds,
        Option("Take over the work of an instance that has not renewed its lease for this long.", FOLLOWING, "TIME"),
    ] = 30.0
    roll_bytes: Annotated[
        Bytes, Option("Archive a partition once about this much is waiting in it.", FOLLOWING, "BYTES", low=1)
    ] = 100 << 20
    roll_records: Annotated[
        int, Option("Archive a partition once this many records are waiting in it.", FOLLOWING, "N", low=1)
    ] = 1_000_000
    roll_age: Annotated[
        Seconds,
        Option("Archive a partition once a record has waited this long. 0: at every interval.", FOLLOWING, "TIME"),
    ] = 300.0
    topic_limits: Annotated[
        Words,
        Option(
            "Limits of one topic, instead of those above, such as orders:age=30s,records=5000. May be repeated.",
            FOLLOWING,
            "TOPIC:records=N,bytes=SIZE,age=TIME",
        ),
    ] = ()
    ranges: Annotated[
        Words,
        Option(
            "Verify only this range of offsets of a source partition; END is exclusive. May be repeated.",
            SELECTION,
            "TOPIC:P:FIRST..END",
            ("--range",),
        ),
    ] = ()
    watch: Annotated[Seconds | None, Option("Look again at this interval until stopped.", OUTPUT, "TIME")] = None
    metrics_port: MetricsPort = None
    metrics_host: MetricsHost = "127.0.0.1"
    metrics_names: MetricsNames = ()
    metrics_file: MetricsFile = None
