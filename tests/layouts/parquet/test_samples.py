"""What the real tool wrote is read as its own reader reads it, record by record."""

from __future__ import annotations

import json
from base64 import b64decode
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.layouts.foreign import ForeignSegment
from maxbrod.layouts.parquet.format import NO_TIMESTAMP, parse_name
from maxbrod.layouts.parquet.survey import LAYOUT
from maxbrod.layouts.registry import layout_of
from support.parquet_trees import local, read
from support.samples import samples_of

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage

ROW = dict[str, Any]


def manifest() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((samples_of("crowdstrike") / "manifest.json").read_text())
    return found


@pytest.fixture
def bucket() -> Storage:
    return local(samples_of("crowdstrike") / "s3" / "bucket")


def whole(storage: Storage, path: str) -> ForeignSegment:
    """A segment by its name alone, also where a survey would prefer another."""
    name = parse_name(path)
    assert name is not None
    return ForeignSegment(
        where=name.where,
        path=path,
        base_offset=name.start,
        end_offset=name.end + 1,
        records=None,
        bytes=storage.head(path).size,
    )


def told(message: ROW) -> ROW:
    """A message as the manifest has it, in our words. Nanoseconds are cut to Kafka's milliseconds."""
    time = message["timestamp_unix_nanos"]
    nothing = time == NO_TIMESTAMP
    return {
        "offset": message["offset"],
        "timestamp_ms": -1 if nothing else time // 1_000_000,
        "timestamp_type": -1 if nothing else 0,
        "key": b64decode(message["key_b64"]),
        "value": b64decode(message["value_b64"]),
        "headers": [
            {"key": header["key"].encode(), "value": b64decode(header["value_b64"])} for header in message["headers"]
        ],
    }


def test_every_sample_decodes_to_exactly_what_its_manifest_says(bucket: Storage) -> None:
    listed = 0
    for sample in manifest()["segments"]:
        segment = whole(bucket, sample["s3_key"])
        assert sha256(bucket.get(segment.path)).hexdigest() == sample["sha256"]
        found = read(bucket, [segment]).select(["offset", "timestamp_ms", "timestamp_type", "key", "value", "headers"])
        assert found.num_rows == sample["metadata"]["messageCount"]
        if sample["messages_read_back"] is not None:
            assert found.to_pylist() == [told(message) for message in sample["messages_read_back"]]
            listed += found.num_rows
    assert listed > 200


def test_a_segment_of_many_small_pages_is_whole(bucket: Storage) -> None:
    (segment,) = [each for each in LAYOUT.survey(bucket).segments if each.where.topic == "pages"]
    found = read(bucket, [segment], ["offset"])
    assert found.column("offset").to_pylist() == list(range(1_000_000, 1_020_000))


def test_higher_levels_stand_for_what_they_were_merged_from(bucket: Storage) -> None:
    survey = LAYOUT.survey(bucket)
    chosen = {str(each.where): (each.details["level"], each.records) for each in survey.segments}
    assert chosen["sensor.events-107"] == (1, 100)
    assert chosen["overlap-0"] == (1, 20)
    assert chosen["single-0"] == (2, 1)
    assert not survey.faults
    assert LAYOUT.detect(bucket)
    assert layout_of("parquet") is LAYOUT


def test_overlapping_segments_are_resolved_as_the_tool_resolves_them(bucket: Storage, tmp_path: Any) -> None:
    """Its own compaction of the pair is the answer, which a survey of the pair alone must give, too."""
    merged = "data/us-east-1/overlap/0/1/00000000000000000000-00000000000000000019"
    pair = local(tmp_path)
    for info in bucket.list("data/us-east-1/overlap/0/0"):
        pair.put(info.path, bucket.get(info.path))
    survey = LAYOUT.survey(pair)
    assert [(each.base_offset, each.end_offset, each.records) for each in survey.segments] == [
        (0, 10, 10),
        (10, 20, None),
    ]
    assert read(pair, survey.segments).equals(read(bucket, [whole(bucket, merged)]))


def test_a_hole_and_times_finer_than_kafkas_are_told_by_a_check(bucket: Storage) -> None:
    survey = LAYOUT.survey(bucket)
    (fault,) = LAYOUT.check(bucket, survey, deep=True)
    assert (fault.path.split("/")[2], fault.offset, fault.fatal) == ("all-cases", 0, False)
    assert "finer than a millisecond" in fault.message
    # The tool says of it: "missing message range: [10, 11]".
    (gap,) = survey.gaps
    assert (gap.where.topic, gap.base_offset, gap.end_offset, gap.reason) == ("gap", 10, 12, "unexplained")
    assert ["nothing lists the segments" in doubt.what for doubt in survey.doubts] == [True]
