"""The flags of `maxbrod query`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.query.scope import QueryScope

_WHAT: Final = "What is asked about"
_DECODE: Final = "Keys and values"
_OUT: Final = "What becomes of the answer"


def _option(panel: str, name: str, help_text: str, metavar: str | None = None, **more: Any) -> Any:  # noqa: ANN401 - typer's own
    return typer.Option(name, metavar=metavar, help=help_text, show_default=False, rich_help_panel=panel, **more)


WordsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ARCHIVE] [SQL]", help="Where the archive is, unless -a says so, and the query.", show_default=False
    ),
]
FileOption = Annotated[str | None, _option(_WHAT, "--file", "A file that has the query; - is standard input.", "FILE")]
TopicOption = Annotated[
    list[str] | None,
    _option(_WHAT, "--topic", "A name, a glob, or /a regex/ of whole names; may be repeated. All without.", "PATTERN"),
]
ExcludeOption = Annotated[
    list[str] | None, _option(_WHAT, "--exclude", "Topics to leave out; may be repeated.", "PATTERN")
]
PartitionOption = Annotated[
    str | None, _option(_WHAT, "--partition", "Only these partitions, such as 0,3-5.", "NUMBERS")
]
SinceOption = Annotated[
    str | None, _option(_WHAT, "--since", "Only records of this time and later, with its zone.", "TIME")
]
UntilOption = Annotated[str | None, _option(_WHAT, "--until", "Only records before this time, with its zone.", "TIME")]
AsOfOption = Annotated[
    str | None, _option(_WHAT, "--as-of", "The archive as this run left it; see 'maxbrod ls --runs'.", "RUN")
]
IsolationOption = Annotated[
    str,
    _option(_WHAT, "--isolation", "read_committed, or read_uncommitted for aborted records too.", "LEVEL"),
]
KeyOption = Annotated[
    list[str] | None, _option(_DECODE, "--key", "How keys are decoded; as --value.", "[TOPIC=]FORMAT")
]
ValueOption = Annotated[
    list[str] | None,
    _option(
        _DECODE,
        "--value",
        "utf8, json, json:COLUMNS, json:FILE, avro:FILE, protobuf:FILE#MESSAGE or confluent; of one topic, or of all.",
        "[TOPIC=]FORMAT",
    ),
]
PermissiveFlag = Annotated[
    bool, _option(_DECODE, "--permissive", "What cannot be decoded is null, and does not end the query.")
]
OutputOption = Annotated[
    str | None, _option(_OUT, "--output", "table, csv, json (a line for each row) or parquet.", "FORM")
]
ToOption = Annotated[
    str | None,
    _option(_OUT, "--to", "A file; or a folder, with a slash at its end, which Spark's tasks write.", "FILE|FOLDER/"),
]
LimitOption = Annotated[int | None, _option(_OUT, "--limit", "No more rows than that.", "N", min=0)]
HistogramFlag = Annotated[
    bool, _option(_OUT, "--histogram", "Records over time, a line for each topic, instead of a query.")
]
PlotOption = Annotated[
    Path | None,
    _option(_OUT, "--plot", "Draw the rows: the first column along, numbers upwards. PNG, SVG or PDF.", "FILE"),
]


def scope_of(
    *,
    topic: Sequence[str] | None,
    exclude: Sequence[str] | None,
    partition: str | None,
    since: str | None,
    until: str | None,
    as_of: str | None,
    isolation: str,
    key: Sequence[str] | None,
    value: Sequence[str] | None,
    permissive: bool,
) -> QueryScope:
    """UsageError: words that mean nothing."""
    from maxbrod.query.scope import QueryScope  # noqa: PLC0415 - Arrow: not for `--help`

    return QueryScope(
        topics=tuple(topic or ()),
        exclude=tuple(exclude or ()),
        partitions=partition,
        since=since,
        until=until,
        as_of=as_of,
        isolation=isolation,
        key=tuple(key or ()),
        value=tuple(value or ()),
        permissive=permissive,
    )
