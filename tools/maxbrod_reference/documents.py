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
class Document:
    """One kind of document."""

    name: str
    about: str
    _: dataclasses.KW_ONLY
    commands: tuple[str, ...] = ()
    """The commands that print it, when they do not print an error; by default the command of its name."""
    report: str | None = None
    """The class of the report, as `module:class` in maxbrod."""
    computed: tuple[str, ...] = ()
    """Properties of the report that are fields of the document."""
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further fields: a type, a schema, or the class of a report."""
    listed: bool = False
    """The document is a list of reports."""
    without: tuple[str, ...] = ()
    """Fields of the report that the document leaves out."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "commands", self.commands or (self.name,))


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
    Document(
        "backup",
        "The report of a run.",
        report="backup.report:BackupReport",
        computed=("records", "bytes", "raw_bytes", "waiting", "complete", "verdict", "exit_code"),
    ),
    Document("backup-interval", "One line for each interval of `backup --follow`.", commands=("backup",), **_INTERVAL),
    Document(
        "restore",
        "The report of a restore. With `--to-logdir` it has `directories` and figures of the written logs, too.",
        report="restore.report:RestoreReport",
        computed=("complete", "exit_code", "records", "seen_twice_max"),
    ),
    Document(
        "restore-plan",
        "The plan of `restore --dry-run`. `refused` is the error that the restore would end with.",
        commands=("restore",),
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
    Document(
        "groups",
        "The positions of groups, before and after.",
        commands=("groups plan", "groups apply", "groups rollback"),
        fields={
            "restore_id": str,
            "positions": _OBJECTS,
            "groups_missing": _OBJECTS,
            "seen_twice_max": int,
            **_CODE,
        },
    ),
    Document(
        "compare",
        "The report of a comparison.",
        report="compare.report:CompareReport",
        computed=("equal", "exit_code", "source_records", "target_records"),
    ),
    Document(
        "drill",
        "The signed report of a drill; docs/format.md describes it. `files` are those that were written.",
        fields={"report": _OBJECT, "files": list[str]},
    ),
    Document(
        "drill-verify",
        "A report whose signature is right.",
        commands=("drill verify",),
        fields={"verified": bool, "signature": {}, "verdict": str},
    ),
    Document("status", "The promises of each archive.", fields={"archives": ("status.run:ArchiveStatus",), **_CODE}),
    Document("ls", "The topics of an archive.", report="inspect.listing:TopicListing"),
    Document(
        "ls-runs",
        "The runs of an archive, with `--runs`.",
        commands=("ls",),
        report="archive.runs:RunSummary",
        listed=True,
    ),
    Document("show", "A topic.", report="inspect.topic:TopicDescription"),
    Document("show-run", "A run, with `--run`.", commands=("show",), report="archive.runs:RunReport"),
    Document(
        "check",
        "The report of a check. `deep` is null without `--deep`.",
        report="check.run:CheckReport",
        fields={"deep": {"type": ["object", "null"]}, "verdict": str, "problems": _OBJECTS, **_CODE},
    ),
    Document(
        "check-foreign",
        "The report of a check of another tool's archive.",
        commands=("check",),
        report="check.foreign:ForeignCheckReport",
        computed=("verdict", "exit_code"),
    ),
    Document(
        "query",
        "The answer to a query. `more` says whether rows were left out by `--limit`.",
        fields={"columns": {"type": "array"}, "more": bool, "rows": {"type": "array"}},
    ),
    Document(
        "convert",
        "The report of a conversion, and of `backup --from-logdir`.",
        commands=("convert", "backup"),
        report="convert.report:ConvertReport",
        computed=("verdict", "exit_code"),
    ),
    Document("compact", "The report of a compaction.", report="compact.report:CompactReport", computed=("exit_code",)),
    Document("repair", "The report of a repair.", report="repair.report:RepairReport", computed=("exit_code",)),
    Document("gc", "The garbage of an archive.", report="inspect.garbage:GarbageReport"),
    Document("prune", "What goes, and why.", report="prune.report:PruneReport", fields=_CODE),
    Document(
        "prune-undo",
        "What came back, with `--undo`.",
        commands=("prune",),
        report="archive.undo:UndoReport",
        fields=_CODE,
    ),
    Document("hold", "A hold.", commands=("hold add", "hold release"), report="archive.holds:Hold"),
    Document(
        "holds",
        "The holds of an archive.",
        commands=("hold list",),
        fields={"archive": str, "holds": ("archive.holds:Hold",)},
    ),
    Document(
        "replicate-egress",
        "One line for each interval, as of `backup --follow`.",
        commands=("replicate egress",),
        **_INTERVAL,
    ),
    Document(
        "replicate-ingress",
        "One line for each interval.",
        commands=("replicate ingress",),
        fields={"interval": int, "failures": int, "report": {"type": ["object", "null"]}, "error": _REFUSED, **_CODE},
    ),
    Document(
        "replicate-status",
        "The state of a link.",
        commands=("replicate status",),
        report="replicate.status:LinkStatus",
        computed=("exit_code",),
        fields={"states": _OBJECT},
    ),
    Document(
        "replicate-order",
        "The topics that the order is for.",
        commands=("replicate pause", "replicate resume"),
        fields={"order": str, "topics": list[str]},
    ),
    Document(
        "replicate-promote",
        "The end of a link.",
        commands=("replicate promote",),
        report="replicate.promote:PromoteReport",
        computed=("missing", "doubts", "exit_code"),
    ),
    Document(
        "replicate-fail-back",
        "Whether the old source can become the mirror, and what has diverged.",
        commands=("replicate fail-back",),
        report="replicate.fail_back:FailBackReport",
        computed=("exit_code",),
    ),
    Document(
        "replicate-repair",
        "What becomes of faulted mirrors.",
        commands=("replicate repair",),
        report="replicate.repair:RepairReport",
        computed=("to_delete", "exit_code"),
    ),
    Document(
        "replicate-egress-tree",
        "One line for each interval, as of `backup --follow`.",
        commands=("replicate egress-tree",),
        **_INTERVAL,
    ),
    Document(
        "replicate-ingress-tree",
        "What was produced from a tree of Parquet segments.",
        commands=("replicate ingress-tree",),
        report="replicate.seed.report:TreeReport",
        computed=("records", "exit_code"),
    ),
    Document(
        "replicate-verify",
        "The report of a comparison; of mirrors without records `partitions` alone.",
        commands=("replicate verify",),
        fields={"partitions": _OBJECTS},
    ),
    Document(
        "cluster-pack",
        "The packed environment, and the settings that use it.",
        commands=("cluster pack",),
        fields={"path": str, "settings": {}},
    ),
    Document(
        "sandbox",
        "A sandbox, its processes and addresses.",
        commands=tuple(f"sandbox {verb}" for verb in _SANDBOX),
        fields={
            **dict.fromkeys(("directory", "kafka_version", "cluster_id", "state", "bootstrap"), str),
            "listeners": dict[str, str],
            "nodes": _OBJECTS,
            "client_files": list[str],
            "s3": {"type": ["object", "null"]},
        },
    ),
    Document(
        "sandbox-down",
        "What was removed.",
        commands=("sandbox down",),
        fields={"directory": str, "removed": bool, "left": list[str]},
    ),
)


def error_schema() -> Schema:
    return {"$schema": DRAFT, "title": "maxbrod error", **_ERROR}


@cache
def schema_of(document: Document) -> Schema:
    """The schema of a document. Fields may be added in later releases, so unknown ones are allowed."""
    properties: dict[str, Schema] = {}
    if document.report is not None:
        report = _load(document.report)
        properties = {name: _schema(hint) for name, hint in _fields(report).items() if name not in document.without}
        for name in document.computed:
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
        hints |= _hints(base, base.__module__)
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
            for each in node.body:
                # Names of a later Python than this one, which no report uses.
                with suppress(ImportError):
                    exec(compile(ast.Module(body=[each], type_ignores=[]), module, "exec"), names)  # noqa: S102
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
        return {"enum": [each.value for each in origin]}
    if dataclasses.is_dataclass(origin):
        properties = {name: _schema(each) for name, each in _fields(origin).items()}
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
