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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Document:
    """One kind of document. `commands` are the commands that print it, when they do not print an error."""

    name: str
    commands: tuple[str, ...]
    about: str
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
_SANDBOX: Final = ("up", "status", "kill", "stop", "pause", "continue", "restart")

DOCUMENTS: Final = (
    Document(
        name="backup",
        commands=("backup",),
        about="The report of a run.",
        report="backup.report:BackupReport",
        computed=("records", "bytes", "raw_bytes", "waiting", "complete", "verdict", "exit_code"),
    ),
    Document(
        name="backup-interval",
        commands=("backup",),
        about="One line for each interval of `backup --follow`.",
        report="backup.follow:Interval",
        computed=("verdict", "exit_code", "lag_offsets", "lag_ms"),
        without=("number", "lags"),
        fields={"interval": int, "report": {"type": ["object", "null"]}, "error": _REFUSED},
    ),
    Document(
        name="restore",
        commands=("restore",),
        about="The report of a restore. With `--to-logdir` it has `directories` and figures of the written logs, too.",
        report="restore.report:RestoreReport",
        computed=("complete", "exit_code", "records", "seen_twice_max"),
    ),
    Document(
        name="restore-plan",
        commands=("restore",),
        about="The plan of `restore --dry-run`. `refused` is the error that the restore would end with.",
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
        name="groups",
        commands=("groups plan", "groups apply", "groups rollback"),
        about="The positions of groups, before and after.",
        fields={
            "restore_id": str,
            "positions": _OBJECTS,
            "groups_missing": _OBJECTS,
            "seen_twice_max": int,
            **_CODE,
        },
    ),
    Document(
        name="compare",
        commands=("compare",),
        about="The report of a comparison.",
        report="compare.report:CompareReport",
        computed=("equal", "exit_code", "source_records", "target_records"),
    ),
    Document(
        name="drill",
        commands=("drill",),
        about="The signed report of a drill; docs/format.md describes it. `files` are those that were written.",
        fields={"report": _OBJECT, "files": list[str]},
    ),
    Document(
        name="drill-verify",
        commands=("drill verify",),
        about="A report whose signature is right.",
        fields={"verified": bool, "signature": {}, "verdict": str},
    ),
    Document(
        name="status",
        commands=("status",),
        about="The promises of each archive.",
        fields={"archives": ("status.run:ArchiveStatus",), **_CODE},
    ),
    Document(name="ls", commands=("ls",), about="The topics of an archive.", report="inspect.listing:Listing"),
    Document(
        name="ls-runs",
        commands=("ls",),
        about="The runs of an archive, with `--runs`.",
        report="archive.runs:RunSummary",
        listed=True,
    ),
    Document(name="show", commands=("show",), about="A topic.", report="inspect.topic:TopicReport"),
    Document(name="show-run", commands=("show",), about="A run, with `--run`.", report="archive.runs:RunReport"),
    Document(
        name="check",
        commands=("check",),
        about="The report of a check. `deep` is null without `--deep`.",
        report="check.run:CheckReport",
        fields={"deep": {"type": ["object", "null"]}, "verdict": str, "problems": _OBJECTS, **_CODE},
    ),
    Document(
        name="check-foreign",
        commands=("check",),
        about="The report of a check of another tool's archive.",
        report="check.foreign:ForeignCheckReport",
        computed=("verdict", "exit_code"),
    ),
    Document(
        name="query",
        commands=("query",),
        about="The answer to a query. `more` says whether rows were left out by `--limit`.",
        fields={"columns": {"type": "array"}, "more": bool, "rows": {"type": "array"}},
    ),
    Document(
        name="convert",
        commands=("convert", "backup"),
        about="The report of a conversion, and of `backup --from-logdir`.",
        report="convert.report:ConvertReport",
        computed=("verdict", "exit_code"),
    ),
    Document(
        name="compact",
        commands=("compact",),
        about="The report of a compaction.",
        report="compact.report:CompactReport",
        computed=("exit_code",),
    ),
    Document(
        name="repair",
        commands=("repair",),
        about="The report of a repair.",
        report="repair.report:RepairReport",
        computed=("exit_code",),
    ),
    Document(name="gc", commands=("gc",), about="The garbage of an archive.", report="inspect.garbage:GarbageReport"),
    Document(
        name="prune", commands=("prune",), about="What goes, and why.", report="prune.run:PruneReport", fields=_CODE
    ),
    Document(
        name="prune-undo",
        commands=("prune",),
        about="What came back, with `--undo`.",
        report="archive.undo:UndoReport",
        fields=_CODE,
    ),
    Document(name="hold", commands=("hold add", "hold release"), about="A hold.", report="archive.holds:Hold"),
    Document(
        name="holds",
        commands=("hold list",),
        about="The holds of an archive.",
        fields={"archive": str, "holds": ("archive.holds:Hold",)},
    ),
    Document(
        name="replicate-egress",
        commands=("replicate egress",),
        about="One line for each interval, as of `backup --follow`.",
        report="backup.follow:Interval",
        computed=("verdict", "exit_code", "lag_offsets", "lag_ms"),
        without=("number", "lags"),
        fields={"interval": int, "report": {"type": ["object", "null"]}, "error": _REFUSED},
    ),
    Document(
        name="replicate-ingress",
        commands=("replicate ingress",),
        about="One line for each interval.",
        fields={"interval": int, "failures": int, "report": {"type": ["object", "null"]}, "error": _REFUSED, **_CODE},
    ),
    Document(
        name="replicate-status",
        commands=("replicate status",),
        about="The state of a link.",
        report="replicate.status:LinkStatus",
        computed=("exit_code",),
        fields={"states": _OBJECT},
    ),
    Document(
        name="replicate-order",
        commands=("replicate pause", "replicate resume"),
        about="The topics that the order is for.",
        fields={"order": str, "topics": list[str]},
    ),
    Document(
        name="replicate-promote",
        commands=("replicate promote",),
        about="The end of a link.",
        report="replicate.promote:PromoteReport",
        computed=("missing", "doubts", "exit_code"),
    ),
    Document(
        name="replicate-fail-back",
        commands=("replicate fail-back",),
        about="Whether the old source can become the mirror, and what has diverged.",
        report="replicate.fail_back:FailBackReport",
        computed=("exit_code",),
    ),
    Document(
        name="replicate-repair",
        commands=("replicate repair",),
        about="What becomes of faulted mirrors.",
        report="replicate.repair:RepairReport",
        computed=("to_delete", "exit_code"),
    ),
    Document(
        name="replicate-egress-tree",
        commands=("replicate egress-tree",),
        about="One line for each interval, as of `backup --follow`.",
        report="backup.follow:Interval",
        computed=("verdict", "exit_code", "lag_offsets", "lag_ms"),
        without=("number", "lags"),
        fields={"interval": int, "report": {"type": ["object", "null"]}, "error": _REFUSED},
    ),
    Document(
        name="replicate-ingress-tree",
        commands=("replicate ingress-tree",),
        about="What was produced from a tree of Parquet segments.",
        report="replicate.seed.report:IngressReport",
        computed=("records", "exit_code"),
    ),
    Document(
        name="replicate-verify",
        commands=("replicate verify",),
        about="The report of a comparison; of mirrors without records `partitions` alone.",
        fields={"partitions": _OBJECTS},
    ),
    Document(
        name="cluster-pack",
        commands=("cluster pack",),
        about="The packed environment, and the settings that use it.",
        fields={"path": str, "settings": {}},
    ),
    Document(
        name="sandbox",
        commands=tuple(f"sandbox {verb}" for verb in _SANDBOX),
        about="A sandbox, its processes and addresses.",
        fields={
            **dict.fromkeys(("directory", "kafka_version", "cluster_id", "state", "bootstrap"), str),
            "listeners": dict[str, str],
            "nodes": _OBJECTS,
            "client_files": list[str],
            "s3": {"type": ["object", "null"]},
        },
    ),
    Document(
        name="sandbox-down",
        commands=("sandbox down",),
        about="What was removed.",
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
    for each in reversed(report.__mro__[:-1]):
        hints |= _hints(each, each.__module__)
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
