"""`maxbrod state`: the cluster as a run captured it, for people, machines and other tools."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from maxbrod.cli.main import run
from support.archives import Place, commit_run
from support.catalog_rows import TOPIC_ID, segment
from support.full_archive import cluster, fill, part


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    def run_and_read(*arguments: str, code: int = 0) -> str:
        assert run(list(arguments)) == code
        return capsys.readouterr().out

    return run_and_read


def test_the_state_of_the_newest_run_is_shown_with_what_is_unknown(local_place: Place, said: Any) -> None:
    fill(local_place)
    text = said("state", *local_place.arguments)
    assert "orders" in text
    assert "features: unknown" in text
    document = json.loads(said("state", *local_place.arguments, "--json"))
    assert {topic["name"] for topic in document["state"]["topics"]} == {topic.name for topic in cluster().topics}
    chosen = json.loads(said("state", *local_place.arguments, "orders", "--json"))
    assert [topic["name"] for topic in chosen["state"]["topics"]] == ["orders"]


def test_changes_since_another_run_are_shown(local_place: Place, said: Any) -> None:
    archive = fill(local_place)
    (topic, *others) = cluster().topics
    changed = replace(cluster(), topics=(replace(topic, configs={"retention.ms": "5"}), *others))
    commit_run(
        archive,
        "run-9",
        [segment(30, 31, run_id="run-9")],
        topics={TOPIC_ID: "orders"},
        ends={part(0): 31},
        recovery_points={part(0): 1_700_000_000_009},
        cluster=changed,
    )
    document = json.loads(said("state", *local_place.arguments, "--against", "run-1", "--json"))
    assert [(change["what"], change["name"], change["change"]) for change in document["changes"]] == [
        ("topic", topic.name, "changed")
    ]
    assert "1 change" in said("state", *local_place.arguments, "--against", "run-1")
    assert "0 changes" in said("state", *local_place.arguments, "--against", "run-9")


def test_resources_are_files_that_their_tools_can_read(local_place: Place, said: Any) -> None:
    fill(local_place)
    documents = list(yaml.safe_load_all(said("state", *local_place.arguments, "--as", "strimzi")))
    assert [document["kind"] for document in documents] == ["KafkaTopic"] * len(cluster().topics)
    found = json.loads(said("state", *local_place.arguments, "--as", "terraform"))
    assert set(found["resource"]["kafka_topic"]) == {topic.name for topic in cluster().topics}


def test_an_unknown_form_and_an_archive_without_a_captured_cluster_are_refused(local_place: Place, said: Any) -> None:
    fill(local_place)
    said("state", *local_place.arguments, "--as", "helm", code=2)
    said("state", *local_place.arguments, "--as", "strimzi", "--against", "run-1", code=2)
    said("state", *local_place.arguments, "ordres", code=2)
