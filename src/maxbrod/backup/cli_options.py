"""The flags of `maxbrod backup`, and how they are laid over the configuration file: a flag wins.

No flag takes a secret, because a command line can be read by every user of the machine.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import ValidationError

    from maxbrod.config import BackupConfig, Config, KafkaConfig

_CLUSTER: Final = "Where the cluster is"
_LOGDIR: Final = "From the disks of a cluster that is gone"
_WHAT: Final = "What is backed up"
_HOW: Final = "How it is written"
_LAYOUT: Final = "In another tool's layout"
_FOLLOW: Final = "Following"

# Settings whose flag has another name than theirs.
_FLAGS: Final = {"topics": "--topic"}
_SETTING: Final = re.compile(r"[a-z]+_[a-z_]+")


def _option(panel: str, name: str, help_text: str, metavar: str | None = None) -> Any:  # noqa: ANN401 - typer's own
    return typer.Option(name, metavar=metavar, help=help_text, show_default=False, rich_help_panel=panel)


BootstrapOption = Annotated[
    str | None, _option(_CLUSTER, "--bootstrap", "One broker or more, with commas between them.", "HOST:PORT")
]
CommandConfigOption = Annotated[
    Path | None,
    _option(_CLUSTER, "--command-config", "Client properties as Kafka's own tools take them, for security.", "FILE"),
]
FromLogdirOption = Annotated[
    list[Path] | None,
    _option(
        _LOGDIR,
        "--from-logdir",
        "A broker's log directory, or a folder of several brokers'; may be repeated. No broker may run on it.",
        "DIR",
    ),
]
UncommittedTailFlag = Annotated[
    bool,
    typer.Option(
        "--uncommitted-tail",
        help="Take what stands above the noted high watermark, too: after a crash acknowledged records may.",
        rich_help_panel=_LOGDIR,
    ),
]
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
InternalOption = Annotated[
    bool | None, _option(_WHAT, "--internal/--no-internal", "Take internal topics as well, such as __consumer_offsets.")
]
StartOption = Annotated[
    list[str] | None,
    _option(
        _WHAT,
        "--start",
        "Where a partition begins that the archive does not know yet: earliest, latest, a time with its zone, or "
        "topic:partition:offset, which may be repeated. Earliest without.",
        "WHERE",
    ),
]
CompressionOption = Annotated[
    str | None,
    _option(
        _HOW,
        "--compression",
        "auto (as it comes, and smaller where that costs little), source (as it comes), or zstd (smallest).",
        "auto|source|zstd[:LEVEL]",
    ),
]
SegmentBytesOption = Annotated[
    str | None, _option(_HOW, "--segment-bytes", "A segment has at most about this much log; 256MiB.", "BYTES")
]
SegmentRecordsOption = Annotated[
    int | None, _option(_HOW, "--segment-records", "And at most about this many records.", "N")
]
ExactTimestampsOption = Annotated[
    bool | None,
    _option(
        _HOW,
        "--exact-timestamps/--no-exact-timestamps",
        "Look into every record for the lowest time, so that queries by time read fewer segments; costs time.",
    ),
]
CodecOption = Annotated[
    str | None, _option(_LAYOUT, "--codec", "How another layout is compressed, and at which level.", "NAME[:LEVEL]")
]
LayoutExtraOption = Annotated[
    list[str] | None,
    _option(_LAYOUT, "--layout-option", "What only that layout knows, such as region=eu-1; may be repeated.", "K=V"),
]
AcceptLossOption = Annotated[
    bool | None,
    _option(_LAYOUT, "--accept-loss/--no-accept-loss", "Go on where that layout cannot hold everything."),
]
SingleWriterOption = Annotated[
    bool | None,
    _option(
        _HOW,
        "--single-writer/--no-single-writer",
        "Nobody else writes to this archive: for stores that ignore conditional puts.",
    ),
]
PatienceOption = Annotated[
    str | None, _option(_HOW, "--patience", "How long a broker may stay away before it is given up; 2m.", "TIME")
]
MasterOption = Annotated[
    str | None,
    _option(_HOW, "--master", "Where Spark runs: local[*] (this machine), spark://…, yarn, k8s://…, sc://…", "URL"),
]
FollowOption = Annotated[
    bool | None, _option(_FOLLOW, "--follow/--no-follow", "Go on until SIGTERM or Ctrl-C, one run per interval.")
]
EveryOption = Annotated[
    str | None, _option(_FOLLOW, "--every", "The interval, and so the recovery point; 60s.", "TIME")
]
RollBytesOption = Annotated[
    str | None, _option(_FOLLOW, "--roll-bytes", "Read a partition when about this much waits in it …", "BYTES")
]
RollRecordsOption = Annotated[int | None, _option(_FOLLOW, "--roll-records", "… or this many records …", "N")]
RollAgeOption = Annotated[
    str | None, _option(_FOLLOW, "--roll-age", "… or since this long. 0, the default: at every interval.", "TIME")
]
MetricsPortOption = Annotated[
    int | None, _option(_FOLLOW, "--metrics-port", "Serve metrics for Prometheus here.", "PORT")
]
MetricsHostOption = Annotated[
    str | None, _option(_FOLLOW, "--metrics-host", "The address to serve them on; 127.0.0.1.", "ADDRESS")
]
QuietFlag = Annotated[bool, typer.Option("--quiet", "-q", help="Say only what is wrong.")]


def layout_extras(words: Sequence[str] | None) -> dict[str, str] | None:
    """Options of one layout, by name; None where none was given."""
    if not words:
        return None
    pairs = [word.partition("=") for word in words]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise UsageError(f"{name!r} is no option of a layout", hint="say it as name=value")
    return {name: value for name, _, value in pairs}


def with_flags(
    config: Config,
    *,
    bootstrap: str | None,
    command_config: Path | None,
    master: str | None,
    start: Sequence[str] | None,
    **backup: Any,  # noqa: ANN401 - flags of any type
) -> Config:
    """The configuration with what flags say; None is a flag that was not given. `backup` are fields of BackupConfig."""
    given = {name: value for name, value in backup.items() if value is not None}
    if start:
        given["start"] = _start(start)
    spark = config.spark if master is None else config.spark.model_copy(update={"master": master})
    changed = {
        "kafka": _kafka(config.kafka, bootstrap, command_config),
        "backup": _backup(config.backup, given),
        "spark": spark,
    }
    return config.model_copy(update=changed)


def _start(words: Sequence[str]) -> str | dict[str, dict[int, int]]:
    from maxbrod.backup.plan.starts import AtOffsets, parse_start  # noqa: PLC0415 - not for `--help`

    meant = parse_start(words)
    if not isinstance(meant, AtOffsets):
        return words[0]
    offsets: dict[str, dict[int, int]] = {}
    for where, offset in meant.offsets.items():
        offsets.setdefault(where.topic, {})[where.partition] = offset
    return offsets


def _backup(section: BackupConfig, given: Mapping[str, Any]) -> BackupConfig:
    from pydantic import ValidationError  # noqa: PLC0415 - not for `--help`

    try:
        return type(section).model_validate({**section.model_dump(), **given})
    except ValidationError as error:
        raise _usage_error(error) from None


def _usage_error(error: ValidationError) -> UsageError:
    complaints = error.errors(include_input=False, include_url=False, include_context=False)
    first = complaints[0]
    message = first["msg"].removeprefix("Value error, ")
    message = f"{message[:1].lower()}{message[1:]}"
    if first["loc"]:
        setting = str(first["loc"][0])
        message = f"{_FLAGS.get(setting, _flag(setting))} {message}"
    else:
        # It is about several, in the words of the file.
        message = _SETTING.sub(lambda found: _flag(found[0]), message)
    return UsageError(message, hint="see 'maxbrod backup --help'")


def _flag(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"


def _kafka(section: KafkaConfig | None, bootstrap: str | None, command_config: Path | None) -> KafkaConfig | None:
    from maxbrod.config import KafkaConfig  # noqa: PLC0415

    if command_config is not None:
        known = bootstrap or (section.bootstrap if section is not None else None)
        return _from_properties(command_config, known)
    if bootstrap is None:
        return section
    return KafkaConfig(bootstrap=bootstrap) if section is None else section.model_copy(update={"bootstrap": bootstrap})


def _from_properties(path: Path, bootstrap: str | None) -> KafkaConfig:
    from maxbrod.config import from_java_properties  # noqa: PLC0415
    from maxbrod.errors import naming  # noqa: PLC0415
    from maxbrod.java_properties import load_properties  # noqa: PLC0415

    properties = load_properties(path)
    if bootstrap is not None:
        properties["bootstrap.servers"] = bootstrap
    with naming(str(path)):
        return from_java_properties(properties)
