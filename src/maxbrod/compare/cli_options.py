"""The flags of `maxbrod compare`, and the request that they make."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.compare.plan.pairs import CompareRequest

_SOURCE: Final = "With what"
_WHAT: Final = "What is compared"
_HOW: Final = "How"


def _option(panel: str, name: str, help_text: str, metavar: str | None = None) -> Any:  # noqa: ANN401 - typer's own
    return typer.Option(name, metavar=metavar, help=help_text, show_default=False, rich_help_panel=panel)


SourceOption = Annotated[
    str | None, _option(_SOURCE, "--source", "A cluster to compare with, instead of an archive.", "HOST:PORT")
]
SourceConfigOption = Annotated[
    Path | None, _option(_SOURCE, "--source-command-config", "Client properties for it, for security.", "FILE")
]
TopicOption = Annotated[
    list[str] | None,
    _option(
        _WHAT,
        "--topic",
        "Of the source: a name, a glob, or /a regex/ of whole names; may be repeated. All without.",
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
    list[str] | None, _option(_WHAT, "--topic-id", "Of a topic that was recreated, this incarnation.", "ID")
]
RenameOption = Annotated[
    list[str] | None,
    _option(
        _WHAT,
        "--rename",
        "What a topic is called at the target: old=new, or /regex of the whole name/replacement/.",
        "OLD=NEW",
    ),
]
PrefixOption = Annotated[str, _option(_WHAT, "--prefix", "What the target's names have before the source's.", "TEXT")]
SuffixOption = Annotated[str, _option(_WHAT, "--suffix", "What they have behind them.", "TEXT")]
RestoreOption = Annotated[
    str | None,
    _option(_WHAT, "--restore", "What this restore has restored, by its report; found by itself without.", "ID"),
]
OffsetsOption = Annotated[
    str,
    _option(
        _HOW,
        "--offsets",
        "exact (a record with the one at its offset), append (in the order of each partition), set (topics as a "
        "whole, in any order), or auto: as it was restored, else exact.",
        "auto|exact|append|set",
    ),
]
IgnoreOption = Annotated[
    list[str] | None,
    _option(_HOW, "--ignore", "timestamp, timestamp_type, key, value or headers; may be repeated.", "FIELD"),
]
DifferencesOption = Annotated[
    int, typer.Option("--differences", metavar="N", min=0, help="How many are shown.", rich_help_panel=_HOW)
]


def compare_request_of(
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
    restore: str | None,
    offsets: str,
    ignore: Sequence[str] | None,
    differences: int,
) -> CompareRequest:
    """UsageError: words that mean nothing, or contradict each other."""
    from maxbrod.archive.words import parse_partitions, parse_time_ms  # noqa: PLC0415 - as below
    from maxbrod.compare.plan.pairs import CompareRequest, parse_fields, parse_match  # noqa: PLC0415 - numpy
    from maxbrod.restore.plan import request as words  # noqa: PLC0415
    from maxbrod.restore.plan.rename import parse_rename  # noqa: PLC0415

    selection = words.RestoreRequest(
        topics=tuple(topic or ()),
        exclude=tuple(exclude or ()),
        partitions=frozenset() if partition is None else parse_partitions(partition),
        ranges=tuple(map(words.parse_range, ranges or ())),
        since_ms=None if since is None else parse_time_ms(since),
        until_ms=None if until is None else parse_time_ms(until),
        as_of=as_of,
        topic_ids=frozenset(topic_id or ()),
        rename=parse_rename(rename or (), prefix=prefix, suffix=suffix),
    )
    return CompareRequest(
        selection=selection,
        match=parse_match(offsets),
        ignored=parse_fields(ignore or ()),
        differences=differences,
        restore=restore,
    )
