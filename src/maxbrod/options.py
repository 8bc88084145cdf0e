"""How options are declared, and the options that several verbs share.

A verb declares its options once, as a frozen dataclass in its `options.py`. Each field has a type, a default and an
`Option` with the help text. From it follow the flag, the key in the verb's section of the configuration file, the
keyword of the Python function, the reference in `docs/reference/`, and the JSON schema.

Nothing large may be imported here or in an `options.py`: `maxbrod --help` loads them all. pydantic validates values,
and is imported only once there are some.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, get_args

ARCHIVE: Final = "Archive"
CLUSTER: Final = "Cluster"
SELECTION: Final = "Selection"
TARGET: Final = "Target topics"
BEHAVIOR: Final = "Behavior"
OUTPUT: Final = "Output"
METRICS: Final = "Metrics"
OTHER_LAYOUTS: Final = "Other layouts"
SPARK: Final = "Spark"

_BYTE_UNITS: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reads:
    """How values of one kind are read from a flag, a file or a Python call."""

    parse: Callable[[Any], Any]
    """Applied before the type is checked. Its ValueError is shown to the user and never repeats the value."""
    python: str
    """The type of the keyword parameter, as source text."""
    schema: Mapping[str, Any]
    repeated: bool = False
    """True if the flag may be given more than once."""
    show: Callable[[Any], str] = str
    """The default as text."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:  # noqa: ANN401 - pydantic's own
        from pydantic_core import core_schema  # noqa: PLC0415 - not for `--help`

        return core_schema.no_info_before_validator_function(self.parse, handler(source))

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:  # noqa: ANN401
        handler(core_schema)
        return dict(self.schema)


@dataclass(frozen=True, slots=True)
class Option:
    """What an option is besides its type and default."""

    help: str
    panel: str | None = None
    metavar: str | None = None
    flags: tuple[str, ...] | None = None
    """None: one flag, named after the field. Empty: the option has no flag."""
    argument: bool = False
    """A word without a flag."""
    setting: str | None = ""
    """Where the file has it: "" is the verb's own section under the field's name, None is nowhere."""
    python: bool = True
    """True if it is a keyword of the Python function."""
    low: int | None = None
    high: int | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:  # noqa: ANN401 - pydantic's own
        from pydantic_core import core_schema  # noqa: PLC0415 - not for `--help`

        inner = handler(source)
        if self.low is None and self.high is None:
            return inner
        return core_schema.no_info_after_validator_function(self._bounded, inner)

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:  # noqa: ANN401
        bounds = {"minimum": self.low, "maximum": self.high}
        known = {name: bound for name, bound in bounds.items() if bound is not None}
        return {**handler(core_schema), **known, "description": self.help}

    def _bounded(self, value: int | None) -> int | None:
        if value is not None and self.low is not None and value < self.low:
            raise ValueError(f"must be at least {self.low}")
        if value is not None and self.high is not None and value > self.high:
            raise ValueError(f"must be at most {self.high}")
        return value


@dataclass(frozen=True, kw_only=True)
class Options:
    """The base of every declaration. An unknown key is a typing mistake: ignoring it is how backups go missing."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "hide_input_in_errors": True}


@dataclass(frozen=True, slots=True)
class Declared:
    """One option as its dataclass declares it."""

    name: str
    type: Any
    """The bare type, without annotations; for `X | None` that is `X`."""
    default: Any
    option: Option
    reads: Reads | None

    @property
    def flags(self) -> tuple[str, ...]:
        if self.option.argument:
            return ()
        return (f"--{self.name.replace('_', '-')}",) if self.option.flags is None else self.option.flags

    @property
    def shown_default(self) -> str | None:
        """The default as a user writes it; None where the default is to do nothing in particular."""
        if self.default is None or self.default is False or self.default in ("", (), {}):
            return None
        if self.default is True:
            return "on"
        return self.reads.show(self.default) if self.reads is not None else str(self.default)

    @property
    def whole_help(self) -> str:
        shown = self.shown_default
        return self.option.help if shown is None else f"{self.option.help} Default: {shown}."

    @property
    def repeated(self) -> bool:
        return self.reads is not None and self.reads.repeated


def declared(model: type[Options]) -> list[Declared]:
    """All options of one declaration, in the order of its fields."""
    return [_declared(field) for field in fields(model)]


def _declared(each: Field[Any]) -> Declared:
    kind, *metadata = get_args(each.type)
    option = next(known for known in metadata if isinstance(known, Option))
    default = each.default if each.default_factory is MISSING else each.default_factory()
    parts = [part for part in (get_args(kind) or (kind,)) if part is not type(None)]
    bare = parts[0] if type(None) in get_args(kind) else kind
    reads = next((known for known in (*metadata, *get_args(bare)) if isinstance(known, Reads)), None)
    return Declared(name=each.name, type=bare, default=default, option=option, reads=reads)


def parse_bytes(value: object) -> object:
    """`64MiB`, `2 GB`, or a plain number of bytes."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
    if found is None or found[2].lower() not in _BYTE_UNITS:
        raise ValueError("is not a number of bytes such as 64MiB")
    return int(float(found[1]) * _BYTE_UNITS[found[2].lower()])


def parse_rate(value: object) -> object:
    """As bytes, also with `/s` at the end."""
    return parse_bytes(value.strip().removesuffix("/s") if isinstance(value, str) else value)


def parse_seconds(value: object) -> object:
    """`500ms`, `60s`, `5m`, `1h30m`, or a plain number of seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value < 0:
        raise ValueError("must not be negative")
    if not isinstance(value, str):
        return value
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", value.strip().lower())
    if not parts or re.sub(r"\s", "", value.lower()) != "".join(number + unit for number, unit in parts):
        raise ValueError("is not a time such as 60s, 5m or 1h")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def parse_words(value: object) -> object:
    """One word, or several."""
    if value is None:
        return ()
    if isinstance(value, Mapping):
        return value
    return (value,) if isinstance(value, str | Path) or not isinstance(value, Iterable) else tuple(value)


def parse_time(value: object) -> object:
    """A time as text: YAML and Python also have times as values."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def parse_numbers(value: object) -> object:
    """`0,3-5`, one number, or several, as text."""
    if value is None or isinstance(value, str):
        return value
    return ",".join(map(str, sorted(value) if isinstance(value, Iterable) else (value,)))


def parse_counts(value: object) -> object:
    """`12` for all topics, or `topic=12` for one; numbers and mappings as words."""
    if isinstance(value, Mapping):
        return tuple(f"{topic}={count}" for topic, count in value.items())
    words = parse_words(value)
    return tuple(map(str, words)) if isinstance(words, tuple) else words


def parse_pairs(value: object) -> object:
    """`name=value`, each name once; or a mapping."""
    if value is None or isinstance(value, Mapping):
        return {str(name): _text(each) for name, each in (value or {}).items()}
    found: dict[str, str] = {}
    for word in parse_words(value):  # type: ignore[attr-defined] # a tuple
        name, equals, each = str(word).partition("=")
        if not (equals and name):
            raise ValueError(f"{name!r} is not of the form name=value")
        if found.setdefault(name, each) != each:
            raise ValueError(f"{name} has two different values")
    return found


def _text(value: object) -> object:
    """YAML's booleans as Kafka writes them, numbers as text."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def parse_renames(value: object) -> object:
    """`old=new` and `/regex/replacement/` as words; a mapping has old and new names."""
    return tuple(f"{old}={new}" for old, new in value.items()) if isinstance(value, Mapping) else parse_words(value)


def parse_ranges(value: object) -> object:
    """`topic:partition:first..end` as words; Python also has ranges as values."""
    found = (value,) if hasattr(value, "where") else parse_words(value)
    return tuple(map(_range, found)) if isinstance(found, tuple) else found


def _range(value: Any) -> object:  # noqa: ANN401 - a word, or an OffsetRange, which is declared higher up
    if not hasattr(value, "where"):
        return value
    first, end = ("" if offset is None else offset for offset in (value.first, value.end))
    return f"{value.where.topic}:{value.where.partition}:{first}..{end}"


def show_bytes(value: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value % size == 0:
            return f"{value // size}{unit}"
    return str(value)


def show_seconds(value: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if value > size and value % size == 0:
            return f"{value / size:g}{unit}"
    return f"{value:g}s"


_TEXT: Final = {"type": "string"}
_TEXTS: Final = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}
_SCALAR: Final = {"type": ["string", "number", "boolean"]}
_MAPPING: Final = {"type": "object", "additionalProperties": _SCALAR}
_NUMBERS: Final = {"type": "array", "items": {"type": "integer"}}

Words = Annotated[
    tuple[str, ...],
    Reads(parse=parse_words, python="str | Iterable[str]", schema=_TEXTS, repeated=True, show=", ".join),
]
Paths = Annotated[
    tuple[Path, ...],
    Reads(parse=parse_words, python="str | Path | Iterable[str | Path]", schema=_TEXTS, repeated=True),
]
Pairs = Annotated[
    dict[str, str],
    Reads(parse=parse_pairs, python="Mapping[str, str]", schema={"anyOf": [_MAPPING, *_TEXTS["anyOf"]]}, repeated=True),
]
Renames = Annotated[
    tuple[str, ...],
    Reads(
        parse=parse_renames,
        python="str | Iterable[str] | Mapping[str, str]",
        schema={"anyOf": [*_TEXTS["anyOf"], {"type": "object", "additionalProperties": _TEXT}]},
        repeated=True,
    ),
]
Ranges = Annotated[
    tuple[str, ...],
    Reads(parse=parse_ranges, python="str | OffsetRange | Iterable[str | OffsetRange]", schema=_TEXTS, repeated=True),
]
Counts = Annotated[
    tuple[str, ...],
    Reads(
        parse=parse_counts,
        python="int | str | Iterable[str] | Mapping[str, int] | None",
        schema={
            "anyOf": [
                {"type": "integer"},
                *_TEXTS["anyOf"],
                {"type": "object", "additionalProperties": {"type": "integer"}},
            ]
        },
        repeated=True,
    ),
]
Bytes = Annotated[
    int, Reads(parse=parse_bytes, python="int | str", schema={"type": ["integer", "string"]}, show=show_bytes)
]
Rate = Annotated[int, Reads(parse=parse_rate, python="int | str", schema={"type": ["integer", "string"]})]
Seconds = Annotated[
    float, Reads(parse=parse_seconds, python="float | str", schema={"type": ["number", "string"]}, show=show_seconds)
]
Time = Annotated[str, Reads(parse=parse_time, python="str | int | datetime", schema={"type": ["string", "integer"]})]
Numbers = Annotated[
    str,
    Reads(
        parse=parse_numbers,
        python="str | int | Iterable[int]",
        schema={"anyOf": [{"type": ["string", "integer"]}, _NUMBERS]},
    ),
]

# Options that several verbs have in their own sections.

Topics = Annotated[
    Words,
    Option(
        "Select topics by name, by a glob such as 'orders-*', or by a /regular expression/ for the whole name. May be "
        "repeated. All topics by default.",
        SELECTION,
        "PATTERN",
        ("--topic",),
    ),
]
MinTopics = Annotated[
    int | None,
    Option(
        "Be incomplete if fewer topics than this are found. With it a user that may not see whether topics are hidden "
        "from it can be complete: it says how many there are.",
        SELECTION,
        "N",
        low=1,
    ),
]
TopicWords = Annotated[
    Words,
    Option(
        "Names, globs, or /regular expressions/ that match the whole name. All topics by default.",
        metavar="TOPIC",
        argument=True,
    ),
]
Exclude = Annotated[Words, Option("Exclude these topics. May be repeated.", SELECTION, "PATTERN")]
Partitions = Annotated[
    Numbers | None, Option("Select these partitions, such as 0,3-5.", SELECTION, "NUMBERS", ("--partition",))
]
Since = Annotated[
    Time | None, Option("Select records with this timestamp or a later one. Give the time zone.", SELECTION, "TIME")
]
Until = Annotated[
    Time | None, Option("Select records with an earlier timestamp than this. Give the time zone.", SELECTION, "TIME")
]
AsOf = Annotated[str | None, Option("Read the archive as this run left it; see 'maxbrod ls --runs'.", SELECTION, "RUN")]
Codec = Annotated[
    str | None,
    Option(
        "Compress with this codec and level. By default as the layout's own tool does.", OTHER_LAYOUTS, "NAME[:LEVEL]"
    ),
]
LayoutOptions = Annotated[
    Pairs,
    Option(
        "Set an option that only the target layout has, such as region=eu-1. May be repeated.",
        OTHER_LAYOUTS,
        "K=V",
        ("--layout-option",),
    ),
]
AcceptLoss = Annotated[bool, Option("Continue if the target layout cannot hold everything.", OTHER_LAYOUTS)]
SegmentRecords = Annotated[
    int | None, Option("Write at most about this many records to a segment.", BEHAVIOR, "N", low=1)
]


MetricsPort = Annotated[
    int | None,
    Option(
        "While the command runs, serve /metrics for Prometheus, /healthz and /readyz on this port.",
        METRICS,
        "PORT",
        low=0,
        high=65535,
        python=False,
    ),
]
MetricsHost = Annotated[str, Option("Serve metrics on this address.", METRICS, "ADDRESS", python=False)]
MetricsNames = Annotated[
    Words,
    Option(
        "Also answer requests for this host name, such as that of a proxy. Addresses, localhost and the name of this "
        "machine are answered anyway. May be repeated.",
        METRICS,
        "HOST",
        ("--metrics-name",),
        python=False,
    ),
]
MetricsFile = Annotated[
    Path | None,
    Option(
        "When the command has ended, write metrics to this file, for Prometheus' textfile collector.",
        METRICS,
        "FILE",
        python=False,
    ),
]


@dataclass(frozen=True, kw_only=True)
class SelectionOptions(Options):
    """The records that a restore or a comparison is about, and the names of the target topics."""

    topics: Topics = ()
    exclude: Exclude = ()
    internal: Annotated[bool, Option("Select internal topics as well.", SELECTION, flags=())] = False
    partitions: Partitions = None
    ranges: Annotated[
        Ranges,
        Option(
            "Select this range of offsets of a partition; END is exclusive. If a topic lists ranges, only those are "
            "selected. May be repeated.",
            SELECTION,
            "TOPIC:P:FIRST..END",
            ("--range",),
        ),
    ] = ()
    since: Since = None
    until: Until = None
    as_of: AsOf = None
    topic_ids: Annotated[
        Words,
        Option(
            "Select this incarnation of a topic that was deleted and created again. The newest by default.",
            SELECTION,
            "ID",
            ("--topic-id",),
        ),
    ] = ()
    rename: Annotated[
        Renames,
        Option(
            "Name of a target topic: old=new, or /regular expression for the whole name/replacement/. May be repeated.",
            TARGET,
            "OLD=NEW",
        ),
    ] = ()
    prefix: Annotated[str, Option("Prefix of all target topics that --rename does not list.", TARGET, "TEXT")] = ""
    suffix: Annotated[str, Option("Suffix of all target topics that --rename does not list.", TARGET, "TEXT")] = ""


# Options that every verb has in common. The file has them at its top level, or not at all.


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(Options):
    """How to reach the cluster."""

    bootstrap: Annotated[
        str | None,
        Option("One or more brokers, separated by commas.", CLUSTER, "HOST:PORT", setting="kafka.bootstrap"),
    ] = None
    command_config: Annotated[
        Path | None,
        Option(
            "Client properties, in the format of Kafka's own tools. The file has them in its section kafka.",
            CLUSTER,
            "FILE",
            setting=None,
            python=False,
        ),
    ] = None
    patience: Annotated[
        Seconds | None,
        Option("How long to wait for an unavailable broker. 2m by default.", CLUSTER, "TIME", setting="patience"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ArchiveOptions(Options):
    archive: Annotated[
        str | None,
        Option(
            "A folder, or a URL: s3://bucket/prefix, gs://… or az://…",
            ARCHIVE,
            "URL",
            ("--archive", "-a"),
            setting="archive",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class LayoutOption(Options):
    layout: Annotated[
        str | None,
        Option(
            "kafka (maxbrod's own), kbak, kbs, binlog, avro or parquet. Detected automatically by default.",
            ARCHIVE,
            "NAME",
            setting="layout",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class StorageOptions(Options):
    """The configuration file, and what it says about the storage. Keys are never flags: any user can list processes."""

    config: Annotated[
        Path | None,
        Option("A configuration file. Flags override it.", ARCHIVE, "FILE", ("--config", "-c"), setting=None),
    ] = None
    s3_endpoint: Annotated[
        str | None,
        Option(
            "An S3 server other than Amazon's. Credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
            ARCHIVE,
            "URL",
            setting="storage.s3.endpoint",
        ),
    ] = None
    s3_region: Annotated[str | None, Option("The S3 region.", ARCHIVE, "NAME", setting="storage.s3.region")] = None
    s3_path_style: Annotated[
        bool | None,
        Option("Put the bucket into the path, not into the host name.", ARCHIVE, setting="storage.s3.path_style"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class SparkOptions(Options):
    engine: Annotated[
        str | None,
        Option(
            "Where tasks run: auto (small work in this process, the rest on Spark), spark or local.",
            SPARK,
            "auto|spark|local",
            setting="spark.engine",
        ),
    ] = None
    master: Annotated[
        str | None,
        Option(
            "Where Spark runs: local[*] (this machine), spark://…, yarn, k8s://… or sc://…",
            SPARK,
            "URL",
            setting="spark.master",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class QuietOption(Options):
    quiet: Annotated[bool, Option("Print only problems.", flags=("--quiet", "-q"), setting=None)] = False


@dataclass(frozen=True, kw_only=True)
class LogOptions(Options):
    """Every verb has them; see `cli.commands`."""

    verbose: Annotated[
        bool, Option("Print each step to standard error.", OUTPUT, flags=("--verbose", "-v"), setting="log.verbose")
    ] = False
    log_file: Annotated[
        Path | None,
        Option("Append each step, warning and error to this file.", OUTPUT, "FILE", setting="log.file"),
    ] = None
    log_format: Annotated[
        str | None,
        Option("text (default) or json: how lines of the log are written.", OUTPUT, "NAME", setting="log.format"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class JsonOption(Options):
    # Known from the command line before any file is read: also a mistake in the file is then told as JSON.
    json: Annotated[bool, Option("Print one JSON document instead of text.", setting=None)] = False


PLACE: Final = (ArchiveOptions, LayoutOption, StorageOptions)
"""Where an archive is, in any layout."""
