"""What the tool itself has written, against its own account of it."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from maxbrod.layouts.avro.survey import LAYOUT
from maxbrod.model import TopicPartition
from maxbrod.storage.stores import open_storage
from support.given_records import Given, bytes_of, given_of
from support.samples import samples_of

NAMES = [
    "all-cases",
    "blocks",
    "codec-bzip2",
    "codec-deflate",
    "codec-snappy",
    "codec-xz",
    "compact",
]


@cache
def manifest() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((samples_of("trivadis") / "manifest.json").read_text())
    return document


def given(record: dict[str, Any]) -> Given:
    """As the tool kept it: null is empty, of two headers of one name the last stays."""
    headers = {}
    for header in record["headers"]:
        text = bytes_of(header["value_b64"]) if "value_b64" in header else header["value"].encode()
        headers[header["key"].encode()] = text
    return Given(
        offset=record["offset"],
        timestamp=record["timestamp"],
        key=bytes_of(record["key_b64"] or ""),
        value=bytes_of(record["value_b64"] or ""),
        headers=tuple(sorted(headers.items())),
    )


def in_order(record: Given) -> Given:
    """A map has no order, and the tool's is Java's."""
    return Given(
        offset=record.offset,
        timestamp=record.timestamp,
        timestamp_type=record.timestamp_type,
        key=record.key,
        value=record.value,
        headers=tuple(sorted(record.headers)),
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_sample_gives_exactly_what_the_tool_was_given(name: str) -> None:
    storage = open_storage(str(samples_of("trivadis") / "bucket"))
    told = manifest()["datasets"][name]["records"]
    where = TopicPartition(topic=told[0]["topic"], partition=told[0]["partition"])
    survey = LAYOUT.survey(storage)
    (segment,) = [each for each in survey.segments if each.where == where]
    found = given_of(LAYOUT.read(storage, segment))
    assert [in_order(record) for record in found] == [given(record) for record in told]
    assert (segment.base_offset, segment.records) == (found[0].offset, len(found))
    assert survey.positions[where] == found[-1].offset + 1


def test_the_samples_bucket_is_recognised_and_without_fault() -> None:
    storage = open_storage(str(samples_of("trivadis") / "bucket"))
    assert LAYOUT.detect(storage)
    assert list(LAYOUT.check(storage, LAYOUT.survey(storage), deep=True)) == []


def test_large_files_are_surveyed_by_their_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_storage(str(samples_of("trivadis") / "bucket"))
    whole = LAYOUT.survey(storage)
    monkeypatch.setattr("maxbrod.layouts.avro.survey.WHOLE_BYTES", 300)
    ends = LAYOUT.survey(storage)
    assert [(each.path, each.base_offset, each.end_offset) for each in ends.segments] == [
        (each.path, each.base_offset, each.end_offset) for each in whole.segments
    ]
    assert all(each.records is None for each in ends.segments)
