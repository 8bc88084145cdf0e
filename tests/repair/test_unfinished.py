"""A generation under construction that has lost an object never becomes active, and a repair drops it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from maxbrod.backup.generations import KnownGenerations, plan_switch
from maxbrod.backup.plan.generations import PartitionView, TopicView
from maxbrod.backup.plan.ranges import PartitionState
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.generations import (
    Generation,
    GenerationChanges,
    GenerationStage,
    TopicGenerations,
    as_building,
    encode_generations,
)
from maxbrod.catalog.queries import ArchivedRange
from maxbrod.catalog.rows import SLICE_FIELDS, Segment
from maxbrod.check.run import check_archive
from maxbrod.errors import RefusedError
from maxbrod.repair.report import Action
from support.histories import IDS, History, records, repaired

if TYPE_CHECKING:
    from maxbrod.archive.archive import Archive

ID = IDS["state"]


@pytest.fixture
def history(tmp_path: Path) -> History:
    """Ten records of a compacted topic, and a second generation that has read all of them and is not active yet."""
    history = History(str(tmp_path / "archive"))
    history.run({("state", 0): [records(0, 10)]})
    ((_, slices),) = history.write({("state", 0): [records(0, 10)]}).values()
    (values,) = ({name: getattr(each, name) for name in SLICE_FIELDS} for each in slices)
    row = Segment(topic="state", topic_id=ID, partition=0, run_id=history.run_id, written_at=1, reason=None, **values)
    topic = TopicGenerations(
        topic="state",
        topic_id=ID,
        generations=(
            Generation(number=1, stage=GenerationStage.ACTIVE, began_at=1, activated_at=2),
            Generation(number=2, stage=GenerationStage.BUILDING, began_at=3, targets={0: 10}, caught_up_at=4),
        ),
    )
    state = encode_generations([topic], run_id=history.run_id, written_at=1)
    added = pa.concat_tables([as_building([row], 2), state])
    history.open().catalog.commit((), generations=GenerationChanges(added=added))
    return history


def new_object(history: History) -> Path:
    (path,) = history.open().catalog.building()["path"].to_pylist()
    return Path(history.url, str(path))


def stages(archive: Archive) -> list[GenerationStage]:
    return [each.stage for each in archive.catalog.generations()[ID].generations]


def switched(history: History) -> tuple[bool, str]:
    """Whether a backup would make the generation active, and what it says."""
    archive = history.open()
    held = ArchivedRange(topic="state", first_offset=0, end_offset=10, last_leader_epoch=0)
    state = PartitionState(
        topic="state",
        topic_id=ID,
        partition=0,
        held=held,
        log_start=0,
        end=10,
        high_watermark=10,
        bytes_per_offset=1.0,
        compacted=True,
    )
    partition = PartitionView(state=state, held=held, read_to=10)
    view = TopicView(
        topic="state", topic_id=ID, compacted=True, tombstones_ms=1, partitions=(partition,), complete=True
    )
    known, (notice,) = plan_switch(KnownGenerations(topics=archive.catalog.generations()), {ID: view}, archive)
    return known.switch is not None, notice.message


def test_a_generation_that_lacks_an_object_never_becomes_active(history: History) -> None:
    assert switched(history) == (True, "generation 2 is complete and active; generation 1 is retired")
    path = new_object(history)
    path.write_bytes(path.read_bytes()[:-1])
    done, message = switched(history)
    assert not done
    assert "was cut off" in message
    path.unlink()
    done, message = switched(history)
    assert not done
    assert message.endswith(f"its object {path.relative_to(history.url)} is lost")


@pytest.mark.parametrize("damage", ["lost", "cut", "changed"])
def test_a_repair_drops_a_generation_that_lacks_an_object_and_the_active_one_stays(
    history: History, damage: str
) -> None:
    path, before = new_object(history), history.holding()
    data = bytearray(path.read_bytes())
    match damage:
        case "lost":
            path.unlink()
        case "cut":
            path.write_bytes(data[:-1])
        case _:
            data[-1] ^= 1
            path.write_bytes(data)
    deep = damage == "changed"
    looked = repaired(history.url, apply=False, deep=deep)
    assert (looked.action, looked.generations, looked.rows, looked.exit_code) == (Action.TAKEN_OUT, 1, 0, 4)
    assert stages(history.open()) == [GenerationStage.ACTIVE, GenerationStage.BUILDING]
    done = repaired(history.url, deep=deep)
    (notice,) = done.notices
    assert (done.applied, done.generations, done.gaps, done.exit_code) == (True, 1, {}, 4)
    assert notice.message.endswith("(needed only by a generation under construction)")
    archive = history.open()
    assert stages(archive) == [GenerationStage.ACTIVE, GenerationStage.DROPPED]
    assert archive.catalog.building().num_rows == 0
    assert history.holding() == before
    assert check_archive(archive).exit_code == 0
    assert repaired(history.url, deep=True).action is Action.NONE


def test_a_generation_that_is_gone_when_the_repair_commits_refuses_it(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_object(history).unlink()
    found = Catalog.generations
    monkeypatch.setattr(
        Catalog,
        "generations",
        lambda self: {each: topic.without_building(9, "elsewhere") for each, topic in found(self).items()},
    )
    with pytest.raises(RefusedError, match="meanwhile"):
        repaired(history.url)
