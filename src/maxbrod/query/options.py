"""The options of `maxbrod query`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from maxbrod.option_values import Words
from maxbrod.options import OUTPUT, SELECTION, AsOf, Exclude, Options, Partitions, Since, Topics, Until, option

DECODING: Final = "Keys and values"


@dataclass(frozen=True, kw_only=True)
class ScopeOptions(Options):
    """The scope of a query, which the views of a Spark session have as well."""

    topics: Topics = ()
    exclude: Exclude = ()
    partitions: Partitions = None
    since: Since = None
    until: Until = None
    as_of: AsOf = None
    isolation: str = option(
        "read_committed, or read_uncommitted to include aborted records.", SELECTION, "LEVEL", default="read_committed"
    )
    key: Words = option(
        "Decode keys with this format; see --value. May be repeated.", DECODING, "[TOPIC=]FORMAT", default=()
    )
    value: Words = option(
        "Decode values with this format, for one topic or for all: utf8, json, json:COLUMNS, json:FILE, avro:FILE, "
        "protobuf:FILE#MESSAGE or confluent. May be repeated.",
        DECODING,
        "[TOPIC=]FORMAT",
        default=(),
    )
    permissive: bool = option("Return null for what cannot be decoded, instead of failing.", DECODING, default=False)


@dataclass(frozen=True, kw_only=True)
class QueryOptions(ScopeOptions):
    sql: str | None = option("The query.", SELECTION, "SQL", (), python=False)
    file: str | None = option("Read the query from this file; - is standard input.", SELECTION, "FILE", python=False)
    output: str | None = option("table, csv, json (one line for each row) or parquet.", OUTPUT, "FORM", python=False)
    to: str | None = option(
        "Write to a file; or to a folder, with a slash at its end, which Spark's tasks write.",
        OUTPUT,
        "FILE|FOLDER/",
        python=False,
    )
    limit: int | None = option("Return at most this many rows.", OUTPUT, "N", low=0)
    histogram: bool = option(
        "Show records over time, one line for each topic, instead of a query.", OUTPUT, default=False, python=False
    )
    plot: Path | None = option(
        "Plot the rows: the first column is the x axis, numbers are drawn on the y axis. PNG, SVG or PDF.",
        OUTPUT,
        "FILE",
        python=False,
    )
