"""The flags of `maxbrod restore`, and the request that they make."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maxbrod.restore.plan.request import RestoreRequest

_WHAT: Final = "What is restored"
_WHERE: Final = "Into which topics"
_HOW: Final = "How"


def _option(panel: str, name: str, help_text: str, metavar: str | None = None) -> Any:  # noqa: ANN401 - typer's own
    return typer.Option(name, metavar=metavar, help=help_text, show_default=False, rich_help_panel=panel)


TopicOption = Annotated[
    list[str] | None,
    _option(
        _WHAT,
        "--topic",
        "A name, a glob such as 'orders-*', or /a regex/ of whole names; may be repeated. All without.",
        "PATTERN",
    ),
]
ExcludeOption = Annotated[
    list[str] | None, _option(_WHAT, "--exclude", "Topics to leave out; may be repeated.", "PATTERN")
]
PartitionOption = Annotated[
    str | None, _option(_WHAT, "--partition", "Only these partitions, such as 0,3-5.", "NUMBERS")
]
RangeOption = Annotated[
    list[str] | None,
    _option(
        _WHAT, "--range", "Only these offsets of a partition, the end left out; may be repeated.", "TOPIC:P:FIRST..END"
    ),
]
SinceOption = Annotated[
    str | None, _option(_WHAT, "--since", "Only records of this time and later, with its zone.", "TIME")
]
UntilOption = Annotated[str | None, _option(_WHAT, "--until", "Only records before this time, with its zone.", "TIME")]
AsOfOption = Annotated[
    str | None, _option(_WHAT, "--as-of", "The archive as this run left it; see 'maxbrod ls --runs'.", "RUN")
]
TopicIdOption = Annotated[
    list[str] | None,
    _option(_WHAT, "--topic-id", "Of a topic that was recreated, this incarnation; the newest without.", "ID"),
]
WhereOption = Annotated[
    str | None,
    _option(
        _WHAT,
        "--where",
        "Only records that this is true of: Spark SQL over key, value, headers, timestamp, topic, partition, offset "
        "and the other columns of the table. Null counts as false.",
        "SQL",
    ),
]
SelectOption = Annotated[
    str | None,
    _option(
        _WHAT,
        "--select",
        'Rewrite key, value, headers or timestamp: "sha2(key, 256) as key, …". What is not named stays as it is.',
        "SQL",
    ),
]
RenameOption = Annotated[
    list[str] | None,
    _option(
        _WHERE,
        "--rename",
        "Another name: old=new, or /regex of the whole name/replacement/; may be repeated.",
        "OLD=NEW",
    ),
]
ToLogdirOption = Annotated[
    list[Path] | None,
    _option(
        _WHERE,
        "--to-logdir",
        "A log directory of a stopped broker: its empty partitions are written straight from the archive, without a "
        "cluster; may be repeated, for every directory of every broker.",
        "DIR",
    ),
]
LeaderEpochsOption = Annotated[
    str,
    _option(
        _HOW,
        "--leader-epochs",
        "With --to-logdir: keep them, or lower those above the target's own to it.",
        "keep|lower",
    ),
]
PrefixOption = Annotated[str, _option(_WHERE, "--prefix", "Put before every name.", "TEXT")]
SuffixOption = Annotated[str, _option(_WHERE, "--suffix", "Put after every name.", "TEXT")]
PartitionCountOption = Annotated[
    list[str] | None,
    _option(
        _WHERE,
        "--partition-count",
        "Another number of partitions, of all topics or of one (topic=N; repeatable): keys go where Kafka's Java "
        "client sends them, and offsets change.",
        "N|TOPIC=N",
    ),
]
ConfigSetOption = Annotated[
    list[str] | None,
    _option(_WHERE, "--config-set", "For topics that are created, instead of what is archived.", "NAME=VALUE"),
]
OffsetsOption = Annotated[
    str,
    _option(
        _HOW,
        "--offsets",
        "exact (records stand where they stood), append (one after another, also behind what is there), or auto: "
        "exact where that is cheap.",
        "auto|exact|append",
    ),
]
StrictOption = Annotated[bool, _option(_HOW, "--strict", "Refuse where anything would differ from what was.")]
AcceptGapsOption = Annotated[
    bool,
    _option(_HOW, "--accept-gaps", "Restore what there is, where the archive lacks something, or is found damaged."),
]
AgainOption = Annotated[
    bool,
    _option(
        _HOW,
        "--again",
        "Once more, though the same command was carried out: into topics that are empty, or with --offsets append "
        "behind what is there.",
    ),
]
RateOption = Annotated[str | None, _option(_HOW, "--rate", "At most this much a second, such as 50MB.", "BYTES")]
GroupsOption = Annotated[
    list[str] | None,
    _option(
        _HOW,
        "--groups",
        "Put these groups where they stood; a name, glob or /regex of whole names/; repeatable.",
        "PATTERN",
    ),
]
ForceGroupsOption = Annotated[
    bool, _option(_HOW, "--force-groups", "Groups with members, too: these are removed, come back, and read on there.")
]
WithAclsOption = Annotated[
    bool,
    _option(_HOW, "--with-acls", "Also the ACLs about what is restored, under its new names; never more than was."),
]
WithQuotasOption = Annotated[bool, _option(_HOW, "--with-quotas", "Also client quotas that the cluster does not have.")]
ProvenanceOption = Annotated[
    bool,
    _option(_HOW, "--provenance", "Headers in every record that say where it came from. All are encoded anew for it."),
]
StagingOption = Annotated[
    str | None,
    _option(
        _HOW,
        "--staging",
        "Where records stand between --where or --select and the cluster; in the archive without. Removed in the end.",
        "URL",
    ),
]
DryRunOption = Annotated[bool, _option(_HOW, "--dry-run", "Print the plan and what stands in its way; change nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before anything is changed.")]


def request_of(
    *,
    topic: Sequence[str] | None,
    exclude: Sequence[str] | None,
    partition: str | None,
    ranges: Sequence[str] | None,
    since: str | None,
    until: str | None,
    as_of: str | None,
    topic_id: Sequence[str] | None,
    rename: Sequence[str] | None,
    prefix: str,
    suffix: str,
    partition_count: Sequence[str] | None,
    config_set: Sequence[str] | None,
    offsets: str,
    strict: bool,
    accept_gaps: bool,
    again: bool,
    rate: str | None,
    groups: Sequence[str] | None,
    force_groups: bool,
    provenance: bool,
    with_acls: bool,
    with_quotas: bool,
    where: str | None,
    select: str | None,
    staging: str | None,
) -> RestoreRequest:
    """UsageError: words that mean nothing, or contradict each other."""
    from maxbrod.archive.words import parse_partitions, parse_time_ms  # noqa: PLC0415 - as below
    from maxbrod.restore.plan import request as words  # noqa: PLC0415 - numpy: not for `--help`
    from maxbrod.restore.plan.rename import parse_rename  # noqa: PLC0415

    everywhere, counts = words.parse_partition_counts(partition_count or ())
    return words.RestoreRequest(
        topics=tuple(topic or ()),
        exclude=tuple(exclude or ()),
        partitions=frozenset() if partition is None else parse_partitions(partition),
        ranges=tuple(map(words.parse_range, ranges or ())),
        since_ms=None if since is None else parse_time_ms(since),
        until_ms=None if until is None else parse_time_ms(until),
        as_of=as_of,
        topic_ids=frozenset(topic_id or ()),
        rename=parse_rename(rename or (), prefix=prefix, suffix=suffix),
        partition_count=everywhere,
        partition_counts=counts,
        configs=parse_settings(config_set or ()),
        offsets=words.parse_offsets(offsets),
        strict=strict,
        accept_gaps=accept_gaps,
        again=again,
        rate_bytes_per_s=None if rate is None else parse_rate(rate),
        groups=tuple(groups or ()),
        force_groups=force_groups,
        provenance=provenance,
        with_acls=with_acls,
        with_quotas=with_quotas,
        where=where,
        select=select,
        staging=staging,
    )


def parse_settings(words: Iterable[str]) -> dict[str, str]:
    """`name=value`, each name once."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (equals and name):
            raise UsageError(f"{word!r} sets nothing", hint="give --config-set name=value")
        if found.setdefault(name, value) != value:
            raise UsageError(f"{name} is set to {found[name]} and to {value}", hint="give one of them")
    return found


def parse_rate(word: str) -> int:
    """Bytes a second."""
    from maxbrod.config import parse_bytes  # noqa: PLC0415 - pydantic: not for `--help`

    text = word.strip().removesuffix("/s")
    try:
        found = int(str(parse_bytes(text)))
    except ValueError:
        raise UsageError(f"--rate {word!r} is no rate", hint="give bytes a second, such as 50MB") from None
    return found
