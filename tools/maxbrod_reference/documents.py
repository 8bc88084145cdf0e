"""The documents that `--json` prints, and their JSON schemas, derived from the classes of the reports.

Tests validate every document that they print against these schemas.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import types
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]
_SCALARS: Final[dict[Any, Schema]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    types.NoneType: {"type": "null"},
}


@dataclass(frozen=True, slots=True, eq=False)
class JsonDocument:
    """One kind of document."""

    name: str
    about: str
    _: dataclasses.KW_ONLY
    commands: tuple[str, ...] = ()
    """The commands that print it, when they do not print an error; by default the one that its name begins with."""
    report: str | None = None
    """The class of the report, as `module:class` in maxbrod."""
    computed: tuple[str, ...] = ()
    """Properties of the report that are fields of the document, if it is not a `Report`, which says so itself."""
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further fields: a type, a schema, or the class of a report."""
    listed: bool = False
    """The document is a list of reports."""
    without: tuple[str, ...] = ()
    """Fields of the report that the document leaves out."""

    def __post_init__(self) -> None:
        verb, _, rest = self.name.partition("-")
        named = f"{verb} {rest}" if rest and verb in _GROUPS else verb
        object.__setattr__(self, "commands", self.commands or (named,))


_GROUPS: Final = frozenset({"cluster", "drill", "evidence", "replicate", "sandbox"})
_CODE: Final = {"exit_code": int}
_ERROR: Final[Schema] = {
    "type": "object",
    "required": ["error", "message", "exit_code", "retryable"],
    "properties": {
        "error": {"type": "string", "description": "The class of the error."},
        "message": {"type": "string"},
        "exit_code": {"type": "integer"},
        "retryable": {"type": "boolean", "description": "Whether the same command may succeed later."},
        "operation": {"type": "string"},
        "object_name": {"type": "string"},
        "offset": {"type": "integer"},
        "position": {"type": "integer"},
        "hint": {"type": "string"},
        "obstacles": {"type": "array", "items": {"type": "object"}, "description": "Of a refused restore."},
    },
}
_REFUSED: Final[Schema] = {"anyOf": [{"type": "null"}, _ERROR]}
_OBJECT: Final[Schema] = {"type": "object"}
_OBJECTS: Final[Schema] = {"type": "array", "items": _OBJECT}
_INTERVAL: Final[dict[str, Any]] = {
    "report": "backup.follow:Interval",
    "computed": ("verdict", "exit_code", "lag_offsets", "lag_ms"),
    "without": ("number", "lags"),
    "fields": {"interval": int, "report": {"type": ["object", "null"]}, "error": _REFUSED},
}
_SANDBOX: Final = ("up", "status", "kill", "stop", "pause", "continue", "restart")

DOCUMENTS: Final = (
    JsonDocument("config", "The configuration in force.", report="setup.settings:ConfigReport"),
    JsonDocument("doctor", "What was tried, and what is missing.", report="setup.doctor:DoctorReport"),
    JsonDocument(
        "backup",
        "The report of a run.",
        report="backup.report:BackupReport",
    ),
    JsonDocument("backup-interval", "One line for each interval of `backup --follow`.", **_INTERVAL),
    JsonDocument(
        "restore",
        "The report of a restore. With `--to-logdir` it has `directories` and figures of the written logs, too.",
        report="restore.report:RestoreReport",
    ),
    JsonDocument(
        "restore-plan",
        "The plan of `restore --dry-run`. `refused` is the error that the restore would end with.",
        fields={
            **dict.fromkeys(("restore_id", "archive"), str),
            **dict.fromkeys(("run_id", "cluster_id"), str | None),
            **dict.fromkeys(("since_ms", "until_ms"), int | None),
            **dict.fromkeys(("records", "bytes"), int),
            **dict.fromkeys(("lines", "left_out", "obstacles"), _OBJECTS),
            "groups": list[str],
            "pruned": list[str],
            "access": _OBJECT,
            "provenance": bool,
            "transform": {"type": ["object", "null"]},
            "refused": _REFUSED,
        },
    ),
    JsonDocument(
        "groups",
        "The positions of groups, before and after.",
        commands=("groups plan", "groups apply", "groups rollback"),
        fields={"restore_id": str, "positions": _OBJECTS, "groups_missing": _OBJECTS, "seen_twice_max": int, **_CODE},
    ),
    JsonDocument(
        "compare",
        "The report of a comparison.",
        report="compare.report:CompareReport",
    ),
    JsonDocument(
        "drill",
        "The signed report of a drill; docs/format.md describes it. `files` are those that were written.",
        fields={"report": _OBJECT, "files": list[str]},
    ),
    JsonDocument(
        "drill-verify", "A report whose signature is right.", fields={"verified": bool, "signature": {}, "verdict": str}
    ),
    JsonDocument(
        "evidence",
        "The signed evidence of an archive; docs/format.md describes it. `files` are those that were written.",
        fields={"evidence": ("evidence.report:EvidenceReport"), "files": list[str]},
    ),
    JsonDocument(
        "evidence-verify",
        "Evidence whose signature is right.",
        fields={
            "verified": bool,
            "signature": {},
            "archive": str,
            "archive_id": {"type": ["string", "null"]},
            "since_ms": {"type": ["integer", "null"]},
            "until_ms": int,
            "made_at_ms": int,
        },
    ),
    JsonDocument(
        "status", "The promises of each archive.", fields={"archives": ("inspect.status:ArchiveStatus",), **_CODE}
    ),
    JsonDocument("ls", "The topics of an archive.", report="inspect.listing:TopicListing"),
    JsonDocument("ls-runs", "The runs of an archive, with `--runs`.", report="archive.runs:RunSummary", listed=True),
    JsonDocument("show", "A topic.", report="inspect.topic:TopicDescription"),
    JsonDocument("show-run", "A run, with `--run`.", report="archive.runs:RunReport"),
    JsonDocument(
        "state",
        "The state of a cluster. With `--against`, `changes` has what differs from that run.",
        report="state.verb:StateReport",
        fields={"state": _OBJECT},
    ),
    JsonDocument(
        "check",
        "The report of a check. `deep` is null without `--deep`.",
        report="check.run:CheckReport",
        fields={"deep": {"type": ["object", "null"]}, "verdict": str, "problems": _OBJECTS, **_CODE},
    ),
    JsonDocument(
        "check-foreign", "The report of a check of another tool's archive.", report="check.foreign:ForeignCheckReport"
    ),
    JsonDocument(
        "query",
        "The answer to a query. `more` says whether rows were left out by `--limit`.",
        fields={"columns": {"type": "array"}, "more": bool, "rows": {"type": "array"}},
    ),
    JsonDocument(
        "convert",
        "The report of a conversion, and of `backup --from-logdir`.",
        commands=("convert", "backup"),
        report="convert.verb:ConvertReport",
    ),
    JsonDocument("erase", "The report of an erasure.", report="erase.report:EraseReport"),
    JsonDocument("compact", "The report of a compaction.", report="compact.report:CompactReport"),
    JsonDocument("copy", "The report of a copy.", report="copy.report:CopyReport"),
    JsonDocument(
        "copy-interval",
        "One line for each interval of `copy --follow`.",
        commands=("copy",),
        fields={"interval": int, "failures": int, "report": {"type": ["object", "null"]}, "error": _REFUSED, **_CODE},
    ),
    JsonDocument("serve", "The report of a dashboard, when it has ended.", report="serve.report:ServeReport"),
    JsonDocument("mount", "The report of a mount, when it has ended.", report="mount.report:MountReport"),
    JsonDocument(
        "run",
        "The jobs, with `--list`: when each begins next, and how it ended.",
        report="schedule.report:ScheduleReport",
    ),
    JsonDocument(
        "run-job",
        "The end of one run of a job: with `--once`, and one line for each while `run` runs.",
        commands=("run",),
        report="schedule.report:JobRunReport",
        without=("code",),
    ),
    JsonDocument("repair", "The report of a repair.", report="repair.report:RepairReport"),
    JsonDocument("gc", "The garbage of an archive.", report="inspect.garbage:GarbageReport"),
    JsonDocument(
        "lock",
        "The locks of what an archive needs.",
        commands=("lock extend", "lock show"),
        report="lock.report:LockReport",
    ),
    JsonDocument("prune", "What goes, and why.", report="prune.report:PruneReport"),
    JsonDocument("prune-undo", "What came back, with `--undo`.", report="archive.undo:UndoReport", fields=_CODE),
    JsonDocument(
        "key",
        "The keys of an encrypted archive.",
        commands=("key list", "key add", "key remove", "key rotate", "key export", "key import"),
        report="key.report:KeysReport",
    ),
    JsonDocument("key-create", "The files of a new key.", commands=("key create",), report="key.report:CreatedKey"),
    JsonDocument("hold", "A hold.", commands=("hold add", "hold release"), report="archive.holds:Hold"),
    JsonDocument(
        "holds",
        "The holds of an archive.",
        commands=("hold list",),
        fields={"archive": str, "holds": ("archive.holds:Hold",)},
    ),
    JsonDocument("replicate-egress", "One line for each interval, as of `backup --follow`.", **_INTERVAL),
    JsonDocument(
        "replicate-ingress",
        "One line for each interval.",
        fields={"interval": int, "failures": int, "report": {"type": ["object", "null"]}, "error": _REFUSED, **_CODE},
    ),
    JsonDocument(
        "replicate-status",
        "The state of a link.",
        report="replicate.status:LinkStatus",
        fields={"states": _OBJECT},
    ),
    JsonDocument(
        "replicate-order",
        "The topics that the order is for.",
        commands=("replicate pause", "replicate resume"),
        fields={"order": str, "topics": list[str]},
    ),
    JsonDocument("replicate-promote", "The end of a link.", report="replicate.promote:PromoteReport"),
    JsonDocument(
        "replicate-fail-back",
        "Whether the old source can become the mirror, and what has diverged.",
        report="replicate.fail_back:FailBackReport",
    ),
    JsonDocument("replicate-repair", "What becomes of faulted mirrors.", report="replicate.repair:MirrorRepairReport"),
    JsonDocument("replicate-egress-tree", "One line for each interval, as of `backup --follow`.", **_INTERVAL),
    JsonDocument(
        "replicate-ingress-tree",
        "What was produced from a tree of Parquet segments.",
        report="replicate.seed.partition:TreeReport",
    ),
    JsonDocument(
        "replicate-verify",
        "The report of a comparison; of mirrors without records `partitions` alone.",
        fields={"partitions": _OBJECTS},
    ),
    JsonDocument(
        "cluster-pack", "The packed environment, and the settings that use it.", fields={"path": str, "settings": {}}
    ),
    JsonDocument(
        "sandbox",
        "A sandbox, its processes and addresses.",
        commands=tuple(f"sandbox {verb}" for verb in _SANDBOX),
        fields={
            **dict.fromkeys(("directory", "kafka_version", "cluster_id", "state", "bootstrap"), str),
            "listeners": dict[str, str],
            "nodes": _OBJECTS,
            "client_files": list[str],
            "store": {"type": ["object", "null"]},
        },
    ),
    JsonDocument("sandbox-fill", "What was written.", fields={"topic": str, "records": int, "end_offset": int}),
    JsonDocument("sandbox-read", "What was read.", fields={"topic": str, "group": str, "offsets": list[int]}),
    JsonDocument("sandbox-delete", "What was deleted.", fields={"topic": str, "deleted": bool}),
    JsonDocument("sandbox-down", "What was removed.", fields={"directory": str, "removed": bool, "left": list[str]}),
)


def error_schema() -> Schema:
    return {"$schema": DRAFT, "title": "maxbrod error", **_ERROR}


@cache
def schema_of(document: JsonDocument) -> Schema:
    """The schema of a document. Fields may be added in later releases, so unknown ones are allowed."""
    properties: dict[str, Schema] = {}
    if document.report is not None:
        report = _load(document.report)
        properties = {name: _schema(hint) for name, hint in _fields(report).items() if name not in document.without}
        for name in document.computed or getattr(report, "published", ()):
            properties[name] = _schema(_hints(getattr(report, name).fget, report.__module__)["return"])
    properties |= {name: _field(value) for name, value in document.fields.items()}
    schema: Schema = {"type": "object", "required": list(properties), "properties": properties}
    head = {"$schema": DRAFT, "title": f"maxbrod {document.name}", "description": document.about}
    return {**head, **({"type": "array", "items": schema} if document.listed else schema)}


def _field(value: Any) -> Schema:  # noqa: ANN401 - a type or a schema
    if isinstance(value, dict):
        return value
    if isinstance(value, tuple):
        return {"type": "array", "items": _schema(_load(value[0]))}
    return _schema(value)


def _load(name: str) -> Any:  # noqa: ANN401 - a class
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"maxbrod.{module}"), attribute)


def _fields(report: Any) -> dict[str, Any]:  # noqa: ANN401 - a dataclass
    hints: dict[str, Any] = {}
    for base in reversed(report.__mro__[:-1]):
        hints |= inspect.get_annotations(base, globals=_names(base.__module__), eval_str=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(report)}


def _hints(what: Any, module: str) -> dict[str, Any]:  # noqa: ANN401 - a class or a function
    return get_type_hints(what, globalns=_names(module))


@cache
def _names(module: str) -> dict[str, Any]:
    """The names that annotations of a module may use: its own, and those that it imports for type checkers only."""
    loaded = import_module(module)
    names = dict(vars(loaded))
    for node in ast.parse(inspect.getsource(loaded)).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for statement in node.body:
                # Names of a later Python than this one, which no report uses.
                with suppress(ImportError):
                    exec(compile(ast.Module(body=[statement], type_ignores=[]), module, "exec"), names)  # noqa: S102
    return names


def _schema(hint: Any) -> Schema:  # noqa: ANN401, C901, PLR0911 - any annotation, a line each
    if hint in _SCALARS:
        return _SCALARS[hint]
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if origin in {Union, types.UnionType}:
        return {"anyOf": [_schema(argument) for argument in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if not isinstance(origin, type):
        return {}
    if issubclass(origin, Enum):
        return {"enum": [member.value for member in origin]}
    if dataclasses.is_dataclass(origin):
        properties = {name: _schema(field) for name, field in _fields(origin).items()}
        return {"type": "object", "required": list(properties), "properties": properties}
    if issubclass(origin, str):
        return {"type": "string"}
    if issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1]) if len(arguments) > 1 else {}}
    if issubclass(origin, tuple) and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        return {"type": "array"}
    if issubclass(origin, Collection):
        return {"type": "array", "items": _schema(arguments[0]) if arguments else {}}
    return {}
