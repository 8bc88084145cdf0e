"""Generations in the catalog: one that is under construction is in nobody's way, and a switch is one commit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from maxbrod.catalog.generations import (
    Generation,
    GenerationChanges,
    GenerationStage,
    TopicGenerations,
    as_active,
    as_building,
    decode_generations,
    encode_generations,
)
from maxbrod.catalog.rows import Gap, Segment, decode_rows
from maxbrod.catalog.schema import Kind
from maxbrod.errors import UnsupportedFormatError
from maxbrod.model import GapReason, PartitionId
from support.catalog_rows import TOPIC_ID, gap, run, segment

if TYPE_CHECKING:
    from support.catalog_places import Archive

PLACE = PartitionId(topic_id=TOPIC_ID, partition=0)
OLD = [segment(0, 10, path="old-1"), segment(10, 20, path="old-2"), segment(20, 30, path="tail")]
NEW: list[Segment | Gap] = [gap(0, 8, reason=GapReason.COMPACTED), segment(8, 20, path="new", records=3)]
TOPIC = TopicGenerations(
    topic="orders",
    topic_id=TOPIC_ID,
    generations=(
        Generation(number=1, stage=GenerationStage.ACTIVE, began_at=1, activated_at=2, log_ends={0: 30, 7: 2**62}),
        Generation(number=2, stage=GenerationStage.BUILDING, began_at=3, targets={0: 20}, caught_up_at=4),
    ),
)


def states(*topics: TopicGenerations) -> pa.Table:
    return encode_generations(topics, run_id="run-2", written_at=5)


def test_a_generation_under_construction_is_in_no_answer_but_its_objects_are_named(folder: Archive) -> None:
    catalog = folder.create()
    catalog.commit([*OLD, run("run-1")])
    answers = catalog.rows(), catalog.positions(), catalog.gaps(set(GapReason)), catalog.revisions(), catalog.runs()
    catalog.commit((), generations=GenerationChanges(added=pa.concat_tables([as_building(NEW, 2), states(TOPIC)])))
    for each in (catalog, folder.open()):
        now = each.rows(), each.positions(), each.gaps(set(GapReason)), each.revisions(), each.runs()
        assert now == answers
        assert each.rows(as_of={PLACE: 99}, revisions={}) == answers[0]
        assert decode_rows(each.building()) == NEW
        assert each.building_positions()[PLACE].end_offset == 20
        assert each.generations() == {TOPIC_ID: TOPIC}
        assert {"old-1", "old-2", "tail", "new"} <= each.paths()


def test_the_switch_is_one_commit_and_as_of_older_runs_the_old_generation_stays(folder: Archive) -> None:
    catalog = folder.create()
    catalog.commit([*OLD, run("run-1")])
    catalog.commit((), generations=GenerationChanges(added=pa.concat_tables([as_building(NEW, 2), states(TOPIC)])))
    before = catalog.version
    building = catalog.generation_rows()
    active = TOPIC.activated(6, {0: 30})
    catalog.commit(
        [run("run-2")],
        retired=OLD[:2],
        generations=GenerationChanges(
            added=pa.concat_tables([as_active(building), states(active)]),
            removed=pa.concat_tables([building, catalog.generation_rows(kind=Kind.GENERATIONS)]),
        ),
    )
    assert catalog.version == before + 1
    for each in (catalog, folder.open()):
        assert decode_rows(each.rows()) == [*NEW, OLD[2]]
        assert decode_rows(each.rows(as_of={PLACE: 30}, revisions={})) == OLD
        assert each.building().num_rows == 0
        assert [(one.number, one.stage) for one in each.generations()[TOPIC_ID].generations] == [
            (1, GenerationStage.RETIRED),
            (2, GenerationStage.ACTIVE),
        ]
        assert each.generations()[TOPIC_ID].active == replace(
            TOPIC.generations[1], stage=GenerationStage.ACTIVE, activated_at=6, log_ends={0: 30}
        )


@pytest.mark.parametrize(
    "text",
    ["", "{}", '{"generations": [{}]}', '{"generations": [{"number": 0}]}', '{"generations": {"a": 1}}'],
)
def test_generations_that_say_nothing_are_refused(text: str) -> None:
    rows = states(TOPIC)
    odd = rows.set_column(rows.schema.get_field_index("details"), "details", pa.array([text]))
    with pytest.raises(UnsupportedFormatError, match="orders"):
        decode_generations(odd)


@pytest.mark.parametrize("text", ["", "{}", '{"kind": "run", "generation": 1}', '{"kind": "gap", "generation": 0}'])
def test_rows_under_construction_that_do_not_say_what_they_are_are_refused(text: str) -> None:
    rows = as_building(NEW[:1], 2)
    odd = rows.set_column(rows.schema.get_field_index("details"), "details", pa.array([text]))
    with pytest.raises(UnsupportedFormatError, match="under construction"):
        as_active(odd)
