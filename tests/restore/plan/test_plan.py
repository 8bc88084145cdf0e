"""A plan is one value: the same inputs give the same, it comes back from its bytes as it was, and damage is named."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import cramjam
import pytest

from maxbrod.archive.renames import parse_rename
from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.model import GapReason, TopicPartition
from maxbrod.restore.plan.plan import PartitionRestore, RestorePlan, TopicPlan, describe
from maxbrod.restore.plan.request import Chosen, OffsetRange, OffsetsMode, RestoreRequest
from maxbrod.restore.state import decode_plan, encode_plan
from support.catalog_rows import TOPIC_ID, gap, segment
from support.restore_plans import NOW, plan, target, topic

if TYPE_CHECKING:
    from maxbrod.catalog.rows import Gap, Segment

ROWS: list[Segment | Gap] = [
    segment(0, 10),
    segment(10, 20, records=7, reason=GapReason.COMPACTED),
    segment(1000, 1100, partition=1),
    gap(20, 30, reason=GapReason.CORRUPT),
]
REQUESTS = [
    RestoreRequest(),
    RestoreRequest(
        until_ms=NOW, since_ms=-5, strict=True, rate_bytes_per_s=9, groups=("g*",), with_acls=True, with_quotas=True
    ),
    RestoreRequest(partition_count=5, rename=parse_rename(prefix="x-"), offsets=OffsetsMode.APPEND, configs={"a": "b"}),
    RestoreRequest(ranges=(OffsetRange(where=TopicPartition(topic="orders", partition=0), first=3, end=50),)),
]
STATES: list[dict[str, Any]] = [
    {},
    {"into": target(topic(partitions=2), ends={"orders": [(0, 4), (0, 0)]})},
    {"into": target(brokers=1), "archived": topic(factor=3, configs={"cleanup.policy": "compact"})},
    {"into": target(topic(configs=None, effective=None), rights={}), "snapshot": None},
]


@pytest.mark.parametrize("asked", REQUESTS)
@pytest.mark.parametrize("state", STATES)
def test_a_plan_comes_back_as_it_was(asked: RestoreRequest, state: dict[str, Any]) -> None:
    made = plan(ROWS, asked, **state)
    assert decode_plan(encode_plan(made)) == made


def test_the_same_inputs_give_the_same_plan_in_any_order_of_rows() -> None:
    made, turned = plan(ROWS), plan(ROWS[::-1])
    assert made == turned
    assert encode_plan(made) == encode_plan(turned)
    assert encode_plan(made) != encode_plan(plan(ROWS[:-1]))


def test_a_plan_that_is_made_again_is_found_by_its_command_though_the_archive_has_grown() -> None:
    later = plan([*ROWS, segment(1100, 1200, partition=1)], now_ms=NOW + 5, restore_id="restore-2")
    assert later.command == plan(ROWS).command
    assert plan(ROWS, RestoreRequest(until_ms=5)).command != later.command


def test_no_damaged_byte_of_a_plan_goes_unnoticed() -> None:
    made = plan(ROWS)
    data = encode_plan(made)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        with suppress(CorruptDataError, UnsupportedFormatError):
            assert decode_plan(bytes(damaged)) == made
    for length in range(0, len(data), 7):
        with pytest.raises(CorruptDataError) as caught:
            decode_plan(data[:length], object_name="restores/1")
        assert caught.value.object_name == "restores/1"


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ([], CorruptDataError),
        ({}, UnsupportedFormatError),
        ({"maxbrod.restore": 2}, UnsupportedFormatError),
        ({"maxbrod.restore": True}, UnsupportedFormatError),
        ({"maxbrod.restore": 1}, CorruptDataError),
        ({"maxbrod.restore": 1, "plan": {}, "sha256": "0"}, CorruptDataError),
    ],
)
def test_what_is_no_plan_is_refused(document: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        decode_plan(bytes(cramjam.zstd.compress(json.dumps(document).encode())))


def test_a_topic_is_one_line_and_one_more_where_offsets_differ() -> None:
    rows = [segment(0, 10), segment(10**10, 10**10 + 50, partition=1)]
    exact, append = describe(plan(rows, archived=topic(partitions=2)))
    assert (exact.offsets, exact.records, exact.partitions, exact.target_partitions) == ("exact", 10, 1, 2)
    assert (append.offsets, append.records, append.fill_offsets, append.created) == ("append", 50, 0, True)
    assert "takes about" in append.why


def test_totals_are_those_of_all_partitions() -> None:
    made = plan(ROWS)
    assert (made.records, made.bytes) == (117, 12_000)
    assert sum(line.records for line in describe(made)) == 117


def test_a_plan_of_many_partitions_stays_small() -> None:
    made = plan(ROWS[:1])
    (one,) = made.topics
    (first,) = one.partitions
    count = 2000
    partitions = tuple(
        PartitionRestore(source=replace(first.source, partition=number, records=number * 7919), offsets=first.offsets)
        for number in range(count)
    )
    large = replace(made, topics=(TopicPlan(target=one.target, partitions=partitions),))
    assert len(encode_plan(large)) < 50 * count
    assert decode_plan(encode_plan(large)) == large


def test_topics_of_one_name_are_planned_apart() -> None:
    chosen = Chosen(topics={TOPIC_ID: "orders", "older": "orders"}, missing=())
    made: RestorePlan = plan([*ROWS, segment(0, 5, topic_id="older")], chosen=chosen)
    assert [(each.target.topic_id, len(each.partitions)) for each in made.topics] == [(TOPIC_ID, 2), ("older", 1)]
