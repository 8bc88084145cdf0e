"""The options of `maxbrod query`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from maxbrod.options import OUTPUT, SELECTION, AsOf, Exclude, Option, Options, Partitions, Since, Topics, Until, Words

DECODING: Final = "Keys and values"


@dataclass(frozen=True, kw_only=True)
class ScopeOptions(Options):
    """What a query can see, which the views of a Spark session have as well."""

    topics: Topics = ()
    exclude: Exclude = ()
    partitions: Partitions = None
    since: Since = None
    until: Until = None
    as_of: AsOf = None
    isolation: Annotated[
        str, Option("read_committed, or read_uncommitted to include aborted records.", SELECTION, "LEVEL")
    ] = "read_committed"
    key: Annotated[
        Words, Option("Decode keys with this format; see --value. May be repeated.", DECODING, "[TOPIC=]FORMAT")
    ] = ()
    value: Annotated[
        Words,
        Option(
            "Decode values with this format, for one topic or for all: utf8, json, json:COLUMNS, json:FILE, avro:FILE, "
            "protobuf:FILE#MESSAGE or confluent. May be repeated.",
            DECODING,
            "[TOPIC=]FORMAT",
        ),
    ] = ()
    permissive: Annotated[bool, Option("Return null for what cannot be decoded, instead of failing.", DECODING)] = False


@dataclass(frozen=True, kw_only=True)
class QueryOptions(ScopeOptions):
    sql: Annotated[str | None, Option("The query.", SELECTION, "SQL", (), python=False)] = None
    file: Annotated[
        str | None, Option("Read the query from this file; - is standard input.", SELECTION, "FILE", python=False)
    ] = None
    output: Annotated[
        str | None, Option("table, csv, json (one line for each row) or parquet.", OUTPUT, "FORM", python=False)
    ] = None
    to: Annotated[
        str | None,
        Option(
            "Write to a file; or to a folder, with a slash at its end, which Spark's tasks write.",
            OUTPUT,
            "FILE|FOLDER/",
            python=False,
        ),
    ] = None
    limit: Annotated[int | None, Option("Return at most this many rows.", OUTPUT, "N", low=0)] = None
    histogram: Annotated[
        bool, Option("Show records over time, one line for each topic, instead of a query.", OUTPUT, python=False)
    ] = False
    plot: Annotated[
        Path | None,
        Option(
            "Plot the rows: the first column is the x axis, numbers are drawn on the y axis. PNG, SVG or PDF.",
            OUTPUT,
            "FILE",
            python=False,
        ),
    ] = None
