"""`python -m maxbrod_reference` (`make reference`) writes each generated file; a test fails when one is not current."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from prometheus_client import CollectorRegistry

import maxbrod
from maxbrod import errors
from maxbrod.backup.metrics import BackupMetrics
from maxbrod.cli.metrics import FIGURES, RunMetrics
from maxbrod.mount.metrics import MountCollector
from maxbrod.notices import KINDS
from maxbrod.replicate.metrics import BeatMetrics, IngressMetrics, TreeEgressCollector, TreeIngressCollector
from maxbrod.schedule.health import JobsCollector
from maxbrod_reference.documents import DOCUMENTS, error_schema, schema_of
from maxbrod_reference.options import (
    cell,
    cli_page,
    configuration_page,
    json_schema,
    keywords_module,
    manual_page,
    page,
    table,
)

_CODES: Final = {
    errors.EXIT_DONE: "done, and complete",
    errors.EXIT_FAILED: "failed: something did not answer, is full, or is missing on this machine",
    errors.EXIT_USAGE: "the command line or the configuration is wrong",
    errors.EXIT_INCOMPLETE: "incomplete: something is neither archived nor explained, differs, or was stopped",
    errors.EXIT_CORRUPT: "damaged data was found",
    errors.EXIT_REFUSED: "refused: going on could lose or mix data; or the question was answered with no",
}


def pages() -> dict[str, str]:
    """By the name below docs/reference."""
    schemas = {f"json/{document.name}.schema.json": _text(schema_of(document)) for document in DOCUMENTS}
    return {
        "python.md": python_page(),
        "json.md": json_page(),
        "metrics.md": metrics_page(),
        "exit-codes.md": exit_codes_page(),
        "notices.md": notices_page(),
        "json/error.schema.json": _text(error_schema()),
        **schemas,
    }


def _text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def python_page() -> str:
    lines = [
        "`import maxbrod` is cheap: Kafka, Arrow and Spark are loaded when they are needed. The package is typed",
        "(`py.typed`). These names are the public interface; [versions](../versions.md) says what that promises.",
        "",
    ]
    for name in maxbrod.__all__:
        if name.startswith("_"):
            continue
        what = getattr(maxbrod, name)
        lines += _class_lines(name, what) if inspect.isclass(what) else _function_lines(name, what)
    return page("Python", *lines)


def _function_lines(name: str, function: Any) -> list[str]:  # noqa: ANN401 - any function
    head, sections = _docstring(function)
    meanings = dict(_arguments(sections.get("Args", [])))
    rows = [
        f"`**options` | | {meanings.get('options', '')}"
        if parameter.kind is parameter.VAR_KEYWORD
        else f"`{parameter.name}` | {cell(_annotation(parameter))} | {meanings.get(parameter.name, '')}"
        for parameter in inspect.signature(function).parameters.values()
    ]
    lines = [f"## maxbrod.{name}", "", *head, "", *table("argument | type | meaning", rows), ""]
    for title in ("Returns", "Raises"):
        if title in sections:
            lines += [f"**{title}.** {' '.join(sections[title])}", ""]
    return lines


def _annotation(parameter: inspect.Parameter) -> str:
    default = "" if parameter.default is parameter.empty else " = …" if callable(parameter.default) else ""
    if not default and parameter.default is not parameter.empty:
        default = f" = {parameter.default!r}"
    return f"`{parameter.annotation}{default}`".replace("|", "or")


def _docstring(what: Any) -> tuple[list[str], dict[str, list[str]]]:  # noqa: ANN401 - any object
    """The lines before the sections, and the sections (`Args:`, `Returns:`) by name."""
    head: list[str] = []
    sections: dict[str, list[str]] = {}
    current = head
    for line in (inspect.getdoc(what) or "").splitlines():
        if line.endswith(":") and line[:-1] in {"Args", "Returns", "Raises", "Yields"}:
            current = sections.setdefault(line[:-1], [])
        else:
            current.append(line if current is head else line.removeprefix("    "))
    return [line for line in head if not line.startswith("    ")], sections


def _arguments(lines: list[str]) -> Iterator[tuple[str, str]]:
    name, words = "", ""
    for line in lines:
        if line and not line.startswith(" "):
            if name:
                yield name, cell(words)
            name, _, words = line.partition(":")
        else:
            words += f" {line.strip()}"
    if name:
        yield name, cell(words)


def _class_lines(name: str, cls: Any) -> list[str]:  # noqa: ANN401 - any class
    head, _ = _docstring(cls)
    # A dataclass without a docstring gets its signature as one.
    written = [] if head and head[0].startswith(f"{name}(") else [*head, ""]
    lines = [f"## maxbrod.{name}", "", *written]
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    rows = [f"`{field.name}` | `{cell(str(field.type)).replace(chr(92) + '|', 'or')}`" for field in fields]
    for attribute, value in vars(cls).items():
        if isinstance(value, property) and value.fget is not None and not attribute.startswith("_"):
            returned = str(value.fget.__annotations__.get("return", "")).replace("|", "or")
            rows.append(f"`{attribute}` (computed) | `{returned}`")
    return [*lines, *table("field | type", rows), ""] if rows else lines


def json_page() -> str:
    rows = [
        f"{', '.join(f'`{command}`' for command in document.commands)} | {cell(document.about)} "
        f"| [{document.name}](json/{document.name}.schema.json)"
        for document in DOCUMENTS
    ]
    return page(
        "JSON documents",
        "With `--json` a command prints exactly one document on standard output, however it ends; `backup --follow`",
        "and `status --watch` print one on each line. Messages for people go to standard error. A command that could",
        "do nothing prints an [error](json/error.schema.json).",
        "",
        "**Stability.** Within a major version, a field that a schema here requires stays, with its meaning and its",
        "type. New fields, new values of `kind`, and new documents may come with any release: a program must ignore",
        "fields that it does not know. A document that is not listed here is not promised (`bench`, `demo`). The tests",
        "validate the documents that commands print against these schemas.",
        "",
        *table("command | document | schema", rows),
    )


def metrics_page() -> str:
    follow = BackupMetrics().registry
    beats = CollectorRegistry()
    BeatMetrics(beats)
    nothing: Any = SimpleNamespace(written={}, rewinded={}, lags=None)
    written = TreeEgressCollector(nothing)
    idle: Any = SimpleNamespace(statuses=list, counts=None, listings=0, listing_ns=0, notification_lag_ms=None)
    read = TreeIngressCollector(idle)
    single = [metric for verb in FIGURES for metric in RunMetrics(verb, "").registry.collect()]
    return page(
        "Metrics",
        "`--metrics-port PORT` serves these metrics for Prometheus, and `--metrics-file` writes them for its textfile",
        "collector; [monitoring](../monitoring.md) has the alerts. A metric keeps its name, its type and its",
        "meaning within a major version.",
        "",
        "## backup --follow",
        "",
        *_metrics_table(follow.collect()),
        "",
        "## Single runs",
        "",
        "Each has the label `archive`.",
        "",
        *_metrics_table(single),
        "",
        "## run",
        "",
        "Those of jobs have the labels `name` and `verb`.",
        "",
        *_metrics_table(JobsCollector(lambda: ({}, False, (0, 0, 0))).collect()),
        "",
        "## replicate ingress",
        "",
        "An instance exports what it works on: add up the instances of a link.",
        "",
        *_metrics_table(IngressMetrics().registry.collect()),
        "",
        "## replicate egress",
        "",
        "Those of `backup --follow`, and these.",
        "",
        *_metrics_table(beats.collect()),
        "",
        "## Egress into a Parquet tree",
        "",
        "Each has the labels `region`, `topic` and `partition`, the lag only `topic`.",
        "",
        *_metrics_table(written.collect()),
        "",
        "## Ingress from a Parquet tree",
        "",
        "Each has the labels `region`, `topic` and `partition`, except for listings and notifications.",
        "",
        *_metrics_table(read.collect()),
        "",
        "## `mount`",
        "",
        *_metrics_table(MountCollector(lambda: ()).collect()),
    )


def _metrics_table(metrics: Iterable[Any]) -> list[str]:
    rows = []
    for metric in metrics:
        total = "_total" if metric.type == "counter" else ""
        rows.append(f"`{metric.name}{total}` | {metric.type} | {cell(metric.documentation)}")
    return table("metric | type | meaning", rows)


def exit_codes_page() -> str:
    classes = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, errors.MaxbrodError)]
    rows = [
        f"`{cls.__name__}` | {cls.exit_code} | {'yes' if cls.retryable else 'no'} "
        f"| {cell((inspect.getdoc(cls) or '').partition('.')[0])}"
        for cls in sorted(classes, key=lambda cls: (cls.exit_code, cls.__name__))
    ]
    return page(
        "Exit codes and errors",
        "Every command ends with one of these codes. [At 3 a.m.](../trouble.md)",
        "says what to do.",
        "",
        *table("exit code | meaning", (f"{code} | {meaning}" for code, meaning in _CODES.items())),
        "| 130, 143 | ended at once by a signal |",
        "",
        "`--json` prints the class of an error as `error`, and Python programs catch it (`maxbrod.errors`). If it is",
        "retryable, the same command may succeed later.",
        "",
        *table("error | exit code | retryable | meaning", rows),
    )


def notices_page() -> str:
    rows = [f"`{kind}` | {cell(meaning)}" for kind, meaning in sorted(KINDS.items())]
    return page(
        "Notices",
        "Reports of `backup`, `convert` and `repair` have `notices`: a kind, a message, and, where they apply, the",
        "topic, the partition, the offsets and a hint. `exit_code` is what the notice adds to that of the command.",
        "[At 3 a.m.](../trouble.md) says what to do about each.",
        "",
        *table("kind | meaning", rows),
    )


_DOCS: Final = "docs/reference"


def generated() -> dict[str, str]:
    """Return the text of every generated file, by its path in the repository."""
    return {
        f"{_DOCS}/cli.md": cli_page(),
        f"{_DOCS}/configuration.md": configuration_page(),
        f"{_DOCS}/maxbrod.schema.json": json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n",
        **{f"{_DOCS}/{name}": text for name, text in pages().items()},
        f"{_DOCS}/maxbrod.1": manual_page(),
        "src/maxbrod/keywords.py": keywords_module(),
    }


if __name__ == "__main__":
    for name, text in generated().items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
