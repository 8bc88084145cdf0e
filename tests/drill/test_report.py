"""Reports of a drill: what they show, and what of them is verified."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from maxbrod.cli.main import run
from maxbrod.drill.html import render
from maxbrod.drill.plan import Sample, draw, drill_request, parse_sample, scratch_name
from maxbrod.drill.report import VERSION, VERSION_FIELD, read_report
from maxbrod.errors import EXIT_CORRUPT, CorruptDataError, UsageError
from maxbrod.model import TopicPartition
from maxbrod.signature import signed
from support.signing_keys import SECRET

if TYPE_CHECKING:
    from pathlib import Path


def test_a_page_shows_every_name_as_text_and_never_as_markup() -> None:
    evil = "<script>alert(1)</script>\"'&\x1b[31m"
    partition = {
        "source_topic": evil,
        "target_topic": evil,
        "partition": 0,
        "match": "exact",
        "source_records": 1,
        "target_records": 1,
        "source_digest": "00",
        "equal": False,
        "failure": None,
        "notes": [evil],
    }
    difference = {
        "source_topic": evil,
        "partition": 0,
        "source_offset": 1,
        "target_offset": None,
        "field": "key",
        "source": evil,
        "target": evil,
    }
    covered = {"topic": evil, "partition": 0, "first_offset": 0, "end_offset": 1, "gaps": {evil: 1}, "lacking": 1}
    report = {
        "drill_id": evil,
        "verdict": "differs",
        "exit_code": 3,
        "lacking": 1,
        "archive": evil,
        "run_id": evil,
        "cluster": evil,
        "cluster_id": evil,
        "started_at_ms": 0,
        "finished_at_ms": 1,
        "sample": "all",
        "seed": 7,
        "partitions_known": 1,
        "covered": [{**covered, "outcome": evil}],
        "durations_s": {evil: 1.0},
        "versions": {evil: evil},
        "records": 1,
        "restore": {"warnings": [evil]},
        "comparison": {"equal": False, "partitions": [partition], "differences": [difference]},
        "schemas": {
            "url": evil,
            "captured_run": evil,
            "taken_at_ms": 1,
            "subjects": 1,
            "versions": 1,
            "unresolved": [evil],
            "records": 1,
            "partitions": 1,
            "found": 1,
            "unknown": [{"topic": evil, "partition": 0, "offset": 7, "part": "key", "schema": evil}],
            "unsure": 1,
            "untested": [evil],
            "imported_into": evil,
            "imported": 1,
        },
        "error": {"message": evil, "hint": evil},
        "failures": [{"where": evil, "offset": 7, "error": evil, "message": evil, "object_name": evil}],
        "leftovers": [evil],
        "remains": [evil],
    }
    page = render(signed({"report": report}, SECRET))
    assert "<script" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;" in page
    assert page.index("Not proven") < page.index("Archive"), "the verdict stands on top"
    assert '<td class="no">differs</td>' in page, "what is wrong stands out"


def test_samples_are_read_and_drawn() -> None:
    where = [TopicPartition(topic="t", partition=number) for number in range(40)]
    assert parse_sample("all") == Sample()
    assert draw(where, Sample(), 1) == where
    assert len(draw(where, parse_sample("5%"), 1)) == 2
    assert len(draw(where, parse_sample("0.1%"), 1)) == 1
    assert len(draw(where, parse_sample("100"), 1)) == 40
    assert draw(where, Sample(count=9), 3) == draw(list(reversed(where)), Sample(count=9), 3)
    assert draw(where, Sample(count=9), 3) != draw(where, Sample(count=9), 4)
    assert str(parse_sample("12.5%")) == "12.5%"
    for word in ("0", "0%", "101%", "-1", "half", ""):
        with pytest.raises(UsageError):
            parse_sample(word)


def test_scratch_names_are_always_allowed_and_never_meet() -> None:
    names = [f"{'x' * 245}{letter}" for letter in "ab"]
    made = [scratch_name("0" * 16, name) for name in names]
    assert all(len(each) <= 249 and each.startswith(f"maxbrod-drill-{'0' * 16}-") for each in made)
    assert made[0] != made[1]
    request = drill_request("0" * 16, [TopicPartition(topic="t", partition=2)], {"id"}, accept_gaps=False, as_of=None)
    assert request.rename.apply("t") == f"maxbrod-drill-{'0' * 16}-t"
    assert request.configs["retention.ms"] == "-1"


def test_a_report_that_says_a_thing_twice_is_refused(tmp_path: Path) -> None:
    """Which of both was signed, and which one a reader shows, would be up to the reader."""
    path = tmp_path / "report.json"
    path.write_text('{"report": {"verdict": "failed"}, "report": {"verdict": "passed"}}')
    with pytest.raises(CorruptDataError, match="'report' is repeated"):
        read_report(path)


def test_only_what_is_signed_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"0123456789abcdef\n")
    key.chmod(0o600)
    document = signed({VERSION_FIELD: VERSION, "report": {"verdict": "proven"}}, SECRET)
    path = tmp_path / "report.json"
    path.write_text(json.dumps(document))
    assert run(["drill", "verify", str(path), "--key-file", str(key)]) == 0
    assert f"key {SECRET.name}) and unchanged. It says: proven" in capsys.readouterr().out
    path.write_text(json.dumps({**document, "signature": {**document["signature"], "key": "of the auditor"}}))
    assert run(["drill", "verify", str(path), "--key-file", str(key)]) == EXIT_CORRUPT
    told = capsys.readouterr()
    assert "auditor" not in told.out + told.err
