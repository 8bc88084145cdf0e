"""Every command with `--json` has a published schema, and a document that differs from it is noticed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator
from typer.main import get_command

from maxbrod.cli.main import command_line, run
from maxbrod.model import PartitionId
from maxbrod_reference.documents import DOCUMENTS, error_schema, schema_of
from support.archives import Place, commit_run
from support.catalog_rows import TOPIC_ID, segment
from support.documents import faults

if TYPE_CHECKING:
    from collections.abc import Iterator


NOT_PROMISED = ("bench", "demo")


def with_json(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    if any("--json" in each.opts for each in command.params):
        yield " ".join(path)
    for name, child in getattr(command, "commands", {}).items():
        yield from with_json(child, (*path, name))


def test_every_command_with_json_has_a_schema() -> None:
    known = {command for each in DOCUMENTS for command in each.commands}
    found = [command for command in with_json(get_command(command_line())) if not command.startswith(NOT_PROMISED)]
    assert len(found) > 20
    assert [command for command in found if command not in known] == []


@pytest.mark.parametrize("schema", [error_schema(), *map(schema_of, DOCUMENTS)], ids=lambda each: each["title"])
def test_a_schema_is_one(schema: dict[str, Any]) -> None:
    Draft202012Validator.check_schema(schema)
    described = schema if schema["type"] == "object" else schema["items"]
    assert described["properties"].keys() >= set(described["required"])
    assert described["required"]


@pytest.fixture
def archive(local_place: Place) -> Place:
    ends = {PartitionId(topic_id=TOPIC_ID, partition=0): 5}
    commit_run(local_place.create(), "run-1", [segment(0, 5)], topics={TOPIC_ID: "orders"}, ends=ends)
    return local_place


@pytest.mark.parametrize(
    "words", [("ls",), ("ls", "--runs"), ("show", "orders"), ("check",), ("gc",), ("status",)], ids=" ".join
)
def test_a_document_of_a_looking_verb_is_as_published_and_no_other(
    archive: Place, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    run([*words, *archive.arguments, "--json"])
    text = capsys.readouterr().out
    assert "error" not in text[:20]
    assert faults(words, text) == []
    document = json.loads(text)
    one = document[0] if isinstance(document, list) else document
    for name in list(one):
        value = one.pop(name)
        assert faults(words, json.dumps(document)) != [], f"{name} is not required"
        one[name] = value


def test_a_field_of_another_type_is_noticed() -> None:
    error = {"error": "UsageError", "message": "no", "exit_code": 2, "retryable": False}
    assert faults(["backup"], json.dumps(error)) == []
    assert faults(["backup"], json.dumps({**error, "exit_code": "2"})) != []
    assert faults(["bench"], json.dumps({"anything": 1})) == []
