"""What follows from the declared options: the page and the JSON schema of the configuration, keywords of functions."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, get_args

from pydantic import BaseModel

from maxbrod.config import Config
from maxbrod.options import Declared, Options, declared
from maxbrod_reference.page import cell, page, table

if TYPE_CHECKING:
    from collections.abc import Iterable

FROM_OPTIONS: Final = " from the declarations of the options"
FUNCTIONS: Final = ("backup", "restore", "compare", "compact", "query")
_SHARED_KEYWORDS: Final = {"layout": "str | None", "patience": "float | str"}
_IMPORTS: Final = {
    "datetime": "from datetime import datetime",
    "Path": "from pathlib import Path",
    "OffsetRange": "\n    from maxbrod.restore.plan.request import OffsetRange",
}
"""Names that types of keywords use, in the order of their imports; besides those of collections.abc."""


def configuration_page() -> str:
    lines = [
        "`--config FILE` names a YAML file. It has the connections that all verbs share, and a section for each verb",
        "with the options of that verb. A flag overrides the file, and the file overrides the default. `${NAME}` in a",
        "value is replaced by the environment variable, `${NAME:-default}` has a default, and `$$` is a plain `$`. An",
        "unknown key is an error. [maxbrod.schema.json](maxbrod.schema.json) describes the file to editors:",
        "",
        "```yaml",
        "# yaml-language-server: $schema=maxbrod.schema.json",
        "archive: s3://backups/kafka",
        "kafka:",
        "  bootstrap: broker1:9092,broker2:9092",
        "backup:",
        "  exclude: [tmp-*]",
        "restore:",
        "  groups: '*'",
        "```",
        "",
        "Sizes are numbers of bytes, or `64MiB`, `2GB`. Times are numbers of seconds, or `500ms`, `60s`, `5m`,",
        "`1h30m`.",
        "An option that takes a list takes a single value as well.",
        "",
    ]
    lines += ["## Top level", "", *_model_table(Config, "")]
    for name, each in Config.model_fields.items():
        section = _section_of(each)
        if section is None:
            continue
        if issubclass(section, BaseModel):
            lines += _model_sections(section, name)
        else:
            lines += [f"## {name}", "", f"The options of `maxbrod {name}`.", "", *_options_table(section)]
    return page("Configuration file", *lines, source=FROM_OPTIONS)


def _section_of(each: Any) -> Any:  # noqa: ANN401 - a field of pydantic's
    for part in (each.annotation, *get_args(each.annotation)):
        if isinstance(part, type) and issubclass(part, BaseModel | Options):
            return part
    return None


def _model_sections(model: type[BaseModel], path: str) -> list[str]:
    lines = [f"## {path}", "", (model.__doc__ or "").strip(), "", *_model_table(model, path)]
    for name, each in model.model_fields.items():
        section = _section_of(each)
        if section is not None:
            lines += _model_sections(section, f"{path}.{name}")
    return lines


def _model_table(model: type[BaseModel], path: str) -> list[str]:
    rows = []
    properties = json_schema()["$defs"][model.__name__]["properties"] if path else json_schema()["properties"]
    for name, each in model.model_fields.items():
        if _section_of(each) is not None:
            continue
        default = (
            "" if each.is_required() or each.default is None else _value(each.get_default(call_default_factory=True))
        )
        rows.append(f"`{name}` | {cell(_schema_type(properties[name]))} | {default} | {cell(each.description or '')}")
    return [*table("key | type | default | meaning", rows), ""] if rows else []


def _options_table(model: type[Options]) -> list[str]:
    rows = []
    properties = json_schema()["$defs"][model.__name__]["properties"]
    for each in declared(model):
        argument = cell(each.option.metavar or "") if each.option.argument else None
        flag = f"`{each.flags[0]}`" if each.flags else "" if argument is None else f"`{argument}`"
        default = "" if each.shown_default is None else f"`{each.shown_default}`"
        kind = cell(_schema_type(properties[each.name]))
        rows.append(f"`{each.name}` | {kind} | {default} | {flag} | {cell(each.option.help)}")
    return [*table("key | type | default | flag | meaning", rows), ""]


def _schema_type(schema: dict[str, Any]) -> str:
    """In words."""
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        words = [_schema_type(each) for each in schema["anyOf"] if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(words))
    if schema.get("type") == "array":
        return f"list of {_schema_type(schema['items'])}"
    kinds = schema.get("type", "")
    names = {"string": "text", "integer": "number", "boolean": "true or false", "object": "mapping"}
    words = [names.get(kind, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "null"]
    return "secret" if schema.get("format") == "password" else " or ".join(dict.fromkeys(words))


def _value(value: Any) -> str:  # noqa: ANN401 - any default
    if value is True or value is False:
        return f"`{str(value).lower()}`"
    return "" if value in ({}, (), None) else f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


@cache
def json_schema() -> dict[str, Any]:
    """The schema of the file, for editors. Java properties are allowed in `kafka`, and checked when it is read."""
    schema = Config.model_json_schema(mode="validation")
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    kafka = schema["$defs"]["KafkaConfig"]
    kafka["patternProperties"] = {"\\.": {"type": ["string", "number", "boolean"]}}
    kafka["anyOf"] = [{"required": kafka.pop("required")}, {"required": ["bootstrap.servers"]}]
    backup = schema["$defs"]["BackupOptions"]["properties"]
    backup["patience"] = {**schema["properties"]["patience"], "deprecated": True}
    without_titles: dict[str, Any] = _without_titles(schema)
    return {"title": "maxbrod configuration", **without_titles}


def _without_titles(schema: Any) -> Any:  # noqa: ANN401 - any JSON
    """Titles only repeat the names of keys."""
    if isinstance(schema, list):
        return [_without_titles(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without_titles(each) for name, each in schema.items() if name != "title" or not isinstance(each, str)
    }


def keywords_module(verb: str) -> str:
    model = type(Config.model_fields[verb].default)
    classes = {f"{verb.capitalize()}Keywords": [each for each in declared(model) if each.option.python]}
    if verb == "query":
        # `maxbrod.views` takes the options that its parent declares, and no others.
        scope = [each for each in declared(model.__bases__[0]) if each.option.python]
        known = {each.name for each in scope}
        rest = [each for each in classes["QueryKeywords"] if each.name not in known]
        classes = {"ScopeKeywords": scope, "QueryKeywords": rest}
    body = [line for name, options in classes.items() for line in _keywords_class(name, options, verb)]
    return "\n".join([*_keywords_head(verb, " ".join(body)), *body]).rstrip() + "\n"


def _keywords_head(verb: str, body: str) -> list[str]:
    abstract = ", ".join(name for name in ("Iterable", "Mapping") if name in body)
    imports = [f"    from collections.abc import {abstract}"]
    imports += [f"    {line}" if line[0] != "\n" else line for name, line in _IMPORTS.items() if name in body]
    return [
        f'"""The keywords of `maxbrod.{verb}`, for type checkers. Generated by `make reference`; do not edit."""',
        "",
        "from __future__ import annotations",
        "",
        "from typing import TYPE_CHECKING, TypedDict",
        "",
        "if TYPE_CHECKING:",
        *imports,
        "",
    ]


def _keywords_class(name: str, options: Iterable[Declared], verb: str) -> list[str]:
    base = "ScopeKeywords" if name == "QueryKeywords" else "TypedDict"
    lines = ["", f"class {name}({base}, total=False):"]
    shared = _SHARED_KEYWORDS if verb != "query" else {}
    lines += [f"    {keyword}: {kind}" for keyword, kind in shared.items()]
    lines += [f"    {option.name}: {_python_type(option)}" for option in options]
    return [*lines, ""]


def _python_type(each: Declared) -> str:
    if each.reads is not None:
        kind = each.reads.python
    else:
        kind = each.type.__name__ if isinstance(each.type, type) and not get_args(each.type) else str(each.type)
        kind = kind.replace("dict[", "Mapping[")
    return f"{kind} | None" if each.default is None and "None" not in kind else kind
