"""How options are declared, and the options that several verbs share.

A verb declares its options once, as a frozen dataclass in its `options.py`. Each field has a type, a default and an
`Option` with the help text. From it follow the flag, the key in the verb's section of the configuration file, the
keyword of the Python function, the reference in `docs/reference/`, and the JSON schema.

Nothing large may be imported here or in an `options.py`: `maxbrod --help` loads them all. pydantic validates values,
and is imported only once there are some.
"""

from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, get_args

from maxbrod.option_values import Numbers, Pairs, Ranges, Rate, Reads, Renames, Seconds, Time, Words

ARCHIVE: Final = "Archive"
CLUSTER: Final = "Cluster"
SELECTION: Final = "Selection"
TARGET: Final = "Target topics"
BEHAVIOR: Final = "Behavior"
OUTPUT: Final = "Output"
METRICS: Final = "Metrics"
OTHER_LAYOUTS: Final = "Other layouts"
REGISTRY: Final = "Schema registry"
SPARK: Final = "Spark"

_OPTION: Final = "option"


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

    def __init_subclass__(cls) -> None:
        # pydantic and `declared` look for an `Option` in the annotation.
        for name, kind in cls.__annotations__.items():
            about = getattr(vars(cls).get(name), "metadata", {}).get(_OPTION)
            if about is not None:
                cls.__annotations__[name] = Annotated[kind, about]


def option(
    text: str,
    panel: str | None = None,
    metavar: str | None = None,
    flags: tuple[str, ...] | None = None,
    *,
    default: Any = None,  # noqa: ANN401 - of the field's type
    default_factory: Callable[[], Any] | None = None,
    **about: Any,  # noqa: ANN401 - see `Option`
) -> Any:  # noqa: ANN401 - as dataclasses' own
    """Declare a field of `Options`: its help, and what else `Option` has. The default is None."""
    metadata = {_OPTION: Option(text, panel, metavar, flags, **about)}
    if default_factory is not None:
        return field(default_factory=default_factory, metadata=metadata)
    return field(default=default, metadata=metadata)


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
    """All options of one declaration, in the order of its fields, and those of metrics last."""
    return sorted(map(_declared, fields(model)), key=lambda known: known.option.panel == METRICS)


def _declared(declaration: Field[Any]) -> Declared:
    kind, *metadata = get_args(declaration.type)
    option = next(known for known in metadata if isinstance(known, Option))
    default = declaration.default if declaration.default_factory is MISSING else declaration.default_factory()
    parts = [part for part in (get_args(kind) or (kind,)) if part is not type(None)]
    bare = parts[0] if type(None) in get_args(kind) else kind
    reads = next((known for known in (*metadata, *get_args(bare)) if isinstance(known, Reads)), None)
    return Declared(name=declaration.name, type=bare, default=default, option=option, reads=reads)


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
FromStorage = Annotated[
    Pairs,
    Option(
        "Set a storage option for SRC alone, such as s3.endpoint=http://old:9000. Keys belong into the file. "
        "May be repeated.",
        metavar="K=V",
    ),
]
ToStorage = Annotated[
    Pairs, Option("Set a storage option for DST alone, as --from-storage does. May be repeated.", metavar="K=V")
]
AcceptLoss = Annotated[bool, Option("Continue if the target layout cannot hold everything.", OTHER_LAYOUTS)]
RateLimit = Annotated[
    Rate | None,
    Option("Limit the rate to this many bytes a second, such as 50MB.", BEHAVIOR, "BYTES", ("--rate",), low=1),
]
SingleWriter = Annotated[
    bool, Option("No other process writes to this archive. For storage that ignores conditional puts.", BEHAVIOR)
]
SegmentRecords = Annotated[
    int | None, Option("Write at most about this many records to a segment.", BEHAVIOR, "N", low=1)
]


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


@dataclass(frozen=True, kw_only=True)
class MetricsOptions(Options):
    """Where the metrics of a run go."""

    metrics_port: int | None = option(
        "While the command runs, serve /metrics for Prometheus, /healthz and /readyz on this port.",
        METRICS,
        "PORT",
        low=0,
        high=65535,
        python=False,
    )
    metrics_host: str = option("Serve metrics on this address.", METRICS, "ADDRESS", default="127.0.0.1", python=False)
    metrics_names: MetricsNames = ()
    metrics_file: Path | None = option(
        "When the command has ended, write metrics to this file, for Prometheus' textfile collector.",
        METRICS,
        "FILE",
        python=False,
    )


@dataclass(frozen=True, kw_only=True)
class SelectionOptions(Options):
    """The records that a restore or a comparison is about, and the names of the target topics."""

    topics: Topics = ()
    exclude: Exclude = ()
    internal: bool = option("Select internal topics as well.", SELECTION, default=False, flags=())
    partitions: Partitions = None
    ranges: Ranges = option(
        "Select this range of offsets of a partition; END is exclusive. If a topic lists ranges, only those are "
        "selected. May be repeated.",
        SELECTION,
        "TOPIC:P:FIRST..END",
        ("--range",),
        default=(),
    )
    since: Since = None
    until: Until = None
    as_of: AsOf = None
    topic_ids: Words = option(
        "Select this incarnation of a topic that was deleted and created again. The newest by default.",
        SELECTION,
        "ID",
        ("--topic-id",),
        default=(),
    )
    rename: Renames = option(
        "Name of a target topic: old=new, or /regular expression for the whole name/replacement/. May be repeated.",
        TARGET,
        "OLD=NEW",
        default=(),
    )
    prefix: str = option("Prefix of all target topics that --rename does not list.", TARGET, "TEXT", default="")
    suffix: str = option("Suffix of all target topics that --rename does not list.", TARGET, "TEXT", default="")


# Options that every verb has in common. The file has them at its top level, or not at all.


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(Options):
    """How to reach the cluster."""

    bootstrap: str | None = option(
        "One or more brokers, separated by commas.", CLUSTER, "HOST:PORT", setting="kafka.bootstrap"
    )
    command_config: Path | None = option(
        "Client properties, in the format of Kafka's own tools. In the configuration file they are the section kafka.",
        CLUSTER,
        "FILE",
        setting=None,
        python=False,
    )
    patience: Seconds | None = option(
        "How long to wait for a broker or a store that does not answer. 2m for brokers, 3m for stores by default.",
        CLUSTER,
        "TIME",
        setting="patience",
    )


@dataclass(frozen=True, kw_only=True)
class ArchiveOptions(Options):
    archive: str | None = option(
        "A folder, or a URL: s3://bucket/prefix, gs://… or az://…",
        ARCHIVE,
        "URL",
        ("--archive", "-a"),
        setting="archive",
    )


@dataclass(frozen=True, kw_only=True)
class LayoutOption(Options):
    layout: str | None = option(
        "kafka (maxbrod's own), kbak, kbs, binlog, avro or parquet. Detected automatically by default.",
        ARCHIVE,
        "NAME",
        setting="layout",
    )


@dataclass(frozen=True, kw_only=True)
class StorageOptions(Options):
    """The configuration file, and what it says about the storage. Keys are never flags: any user can list processes."""

    config: Path | None = option(
        "A configuration file. Flags override it.", ARCHIVE, "FILE", ("--config", "-c"), setting=None
    )
    s3_endpoint: str | None = option(
        "An S3 server other than Amazon's. Credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
        ARCHIVE,
        "URL",
        setting="storage.s3.endpoint",
    )
    s3_region: str | None = option("The S3 region.", ARCHIVE, "NAME", setting="storage.s3.region")
    s3_path_style: bool | None = option(
        "Put the bucket into the path, not into the host name.", ARCHIVE, setting="storage.s3.path_style"
    )
    archive_key: Path | None = option(
        "A key of an encrypted archive: a private one, or, to write only, a public one. A new archive is encrypted "
        "for it.",
        ARCHIVE,
        "FILE",
        setting="storage.encryption.key_file",
    )
    signing_key: Path | None = option(
        "An Ed25519 private key in PEM form: sign every commit to the catalog with it. 'maxbrod check --signature' "
        "then proves that nobody else has changed the archive.",
        ARCHIVE,
        "FILE",
        setting="storage.signing.key_file",
    )


@dataclass(frozen=True, kw_only=True)
class ImmutableOptions(Options):
    """For verbs that fill an archive which nobody is to change."""

    create_only: bool | None = option(
        "Create objects, and neither overwrite nor delete one. For a writer that may do neither.",
        ARCHIVE,
        setting="storage.create_only",
    )
    lock: Seconds | None = option(
        "In S3: lock every new object for this long, such as 30d.", ARCHIVE, "TIME", setting="storage.lock"
    )
    lock_mode: str | None = option(
        "The mode of these locks: governance (default), or compliance, which nobody can end.",
        ARCHIVE,
        "governance|compliance",
        setting="storage.lock_mode",
    )


@dataclass(frozen=True, kw_only=True)
class SparkOptions(Options):
    engine: str | None = option(
        "Where tasks run: auto (small work in this process, the rest on Spark), spark or local.",
        SPARK,
        "auto|spark|local",
        setting="spark.engine",
    )
    master: str | None = option(
        "Where Spark runs: local[*] (this machine), spark://…, yarn, k8s://… or sc://…",
        SPARK,
        "URL",
        setting="spark.master",
    )


@dataclass(frozen=True, kw_only=True)
class QuietOption(Options):
    quiet: bool = option("Print only problems.", default=False, flags=("--quiet", "-q"), setting=None)


@dataclass(frozen=True, kw_only=True)
class LogOptions(Options):
    """Every verb has them; see `cli.commands`."""

    verbose: bool = option(
        "Print each step to standard error.", OUTPUT, default=False, flags=("--verbose", "-v"), setting="log.verbose"
    )
    progress: bool = option(
        "Print the progress to standard error as JSON, a line each second: phase, bytes, records, rate.",
        OUTPUT,
        default=False,
        setting="log.progress",
    )
    log_file: Path | None = option(
        "Append each step, warning and error to this file.", OUTPUT, "FILE", setting="log.file"
    )
    log_format: str | None = option(
        "text (default) or json: how lines of the log are written.", OUTPUT, "NAME", setting="log.format"
    )


@dataclass(frozen=True, kw_only=True)
class JsonOption(Options):
    # Known from the command line before any file is read: also a mistake in the file is then told as JSON.
    json: bool = option("Print one JSON document instead of text.", default=False, setting=None)


@dataclass(frozen=True, kw_only=True)
class LookOptions(Options):
    """For verbs that look at an archive while somebody waits."""

    patience: Seconds | None = option(
        "How long to wait for a store that does not answer. 10s by default, and 3m if the archive is changed or read.",
        ARCHIVE,
        "TIME",
        setting=None,
    )


PLACE: Final = (ArchiveOptions, LayoutOption, StorageOptions)
"""Where an archive is, in any layout."""
