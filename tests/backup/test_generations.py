"""A compacted topic read afresh: at every moment the archive has one complete generation of it, and says which."""

from __future__ import annotations

import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.archive.snapshots import find_moment
from maxbrod.catalog import catalog as catalog_module
from maxbrod.catalog.generations import Generation, GenerationStage
from maxbrod.check.run import check_archive
from maxbrod.errors import EXIT_FAILED, MaxbrodError
from maxbrod.inspect.garbage import collect_garbage
from maxbrod.inspect.listing import list_topics
from maxbrod.inspect.topic import show_topic
from maxbrod.model import topic_id_text
from maxbrod.sandbox.surgery import compact
from maxbrod.sandbox.topics import create_topic, offsets, recreate_topic, set_topic_config, topic_id
from maxbrod.table.source import ArchiveSource
from support.archive_oracle import Holding, read_archive
from support.backups import back_up, config_of
from support.failing_stores import Store, full, gone
from support.histories import repaired
from support.streams import Stream
from support.table_archives import query
from support.topics import COMPACTED, write_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

OFTEN: dict[str, Any] = {"generation_every": "1ms"}
BOUNDED: dict[str, Any] = {**OFTEN, "follow": True, "every": "60s", "generation_bytes": 300}
POINTS_MAX = 100


def filled(cluster: Cluster, topic: str, archive: Path) -> None:
    """Archived, and compacted afterwards: the archive has records that the log has no more."""
    create_topic(cluster, topic, partitions=2, config=COMPACTED)
    write_keys(cluster, topic, 200, turn=1)
    write_keys(cluster, topic, 50, turn=1, partition=1)
    back_up(config_of(cluster, archive, topic))
    write_keys(cluster, topic, 100, turn=2)
    compact(cluster, topic)
    back_up(config_of(cluster, archive, topic))


def fresh(cluster: Cluster, topic: str, place: Path) -> Holding:
    """What a first backup reads now."""
    back_up(config_of(cluster, place, topic))
    return read_archive(str(place))


def stages(archive: Path) -> list[tuple[int, GenerationStage]]:
    (found,) = open_archive(str(archive)).catalog.generations().values()
    return [(each.number, each.stage) for each in found.generations]


def last(archive: Path) -> Generation:
    (found,) = open_archive(str(archive)).catalog.generations().values()
    return found.generations[-1]


def as_of(archive: Path, run: str) -> list[tuple[int, int, str]]:
    """The rows as of a run."""
    opened = open_archive(str(archive))
    moment = find_moment(opened.storage, opened.catalog.runs(), run)
    rows = opened.catalog.rows(as_of=moment.ends, revisions=moment.revisions)
    return sorted(zip(*(rows[name].to_pylist() for name in ("partition", "base_offset", "path")), strict=True))


def test_a_new_generation_has_what_the_log_has_and_the_old_one_is_there_as_of_older_runs(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    filled(cluster, topic, archive)
    before = read_archive(str(archive))
    run = open_archive(str(archive)).catalog.runs()[-1].run_id
    rows_then = as_of(archive, run)
    first = back_up(config_of(cluster, archive, topic, **OFTEN))
    assert first.exit_code == 0, first.notices
    assert stages(archive) == [(1, GenerationStage.RETIRED), (2, GenerationStage.ACTIVE)]
    held = read_archive(str(archive))
    assert held.records == fresh(cluster, topic, tmp_path / "other").records
    assert sum(map(len, held.records.values())) < sum(map(len, before.records.values()))
    active = last(archive)
    assert active.log_ends == {each: offsets(cluster, topic, each)[1] for each in (0, 1)}
    # As of the run before, the old generation: the same rows, and all of their objects.
    assert as_of(archive, run) == rows_then
    opened = open_archive(str(archive))
    assert check_archive(opened).exit_code == 0
    assert not collect_garbage(opened, grace_s=3600).objects
    (listed,) = list_topics(opened, [topic]).topics
    assert [(each.number, each.stage) for each in listed.generations] == stages(archive)
    (shown,) = show_topic(opened, topic).topics
    assert shown.generations == listed.generations


def test_without_the_catalog_the_new_generation_comes_back_and_deleted_keys_do_not(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    filled(cluster, topic, archive)
    run = open_archive(str(archive)).catalog.runs()[0].run_id
    back_up(config_of(cluster, archive, topic, **OFTEN))
    held, rows_then, known = read_archive(str(archive)).records, as_of(archive, run), stages(archive)
    shutil.rmtree(archive / "catalog")
    report = repaired(str(archive))
    # The last runs share a snapshot, so that only their records are known.
    assert {each.kind for each in report.notices} <= {"run"}, report.notices
    assert read_archive(str(archive)).records == held
    assert (as_of(archive, run), stages(archive)) == (rows_then, known)
    # And the next one takes its place.
    assert back_up(config_of(cluster, archive, topic, **OFTEN)).exit_code == 0
    assert last(archive).number == 3


def test_a_generation_is_read_over_many_runs_while_the_backup_goes_on_and_nobody_sees_it(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    filled(cluster, topic, archive)
    began = fresh(cluster, topic, tmp_path / "began").records
    back_up(config_of(cluster, archive, topic, **BOUNDED))
    assert stages(archive) == [(1, GenerationStage.ACTIVE), (2, GenerationStage.BUILDING)]
    before = read_archive(str(archive)).records
    read: list[int] = []
    for turn in range(POINTS_MAX):
        write_keys(cluster, topic, 1, turn=10 + turn)
        report = back_up(config_of(cluster, archive, topic, **BOUNDED))
        assert report.exit_code == 0, report.notices
        held = read_archive(str(archive))
        opened = open_archive(str(archive))
        assert {key: held.range_of(key)[1] for key in held.rows} == {
            (topic_id_text(topic_id(cluster, topic)), each): offsets(cluster, topic, each)[1] for each in (0, 1)
        }
        assert not collect_garbage(opened, grace_s=3600).objects
        assert check_archive(opened).exit_code == 0
        building = opened.catalog.building()
        read.append(building.num_rows)
        if stages(archive)[1] == (2, GenerationStage.ACTIVE):
            break
        # Still the old generation, as it grows.
        for key, old in before.items():
            assert old.items() <= held.records[key].items()
    assert len(read) > 2
    assert sorted(read[:-1]) == read[:-1]
    assert read[-1] == 0
    # All that the log has, which is compacted further meanwhile, and nothing that it had no more at the beginning.
    held = read_archive(str(archive))
    now = fresh(cluster, topic, tmp_path / "other").records
    for key, target in ((key, last(archive).targets[key[1]]) for key in began):
        assert now[key].items() <= held.records[key].items()
        assert {each for each in held.records[key] if each < target} <= began[key].keys()


class Killed(BaseException):
    """As sudden as SIGKILL: nothing handles it."""


@contextmanager
def dying(point: int) -> Iterator[list[str]]:
    """Dies before or after the n-th commit to the catalog; says how many such moments there were."""
    met: list[str] = []
    write_commit = catalog_module.write_commit  # type: ignore[attr-defined] # not its to export

    def meet(moment: str) -> None:
        met.append(moment)
        if len(met) == point + 1:
            raise Killed

    def commit(*arguments: Any, **options: Any) -> Any:
        meet("before")
        committed = write_commit(*arguments, **options)
        meet("after")
        return committed

    with patch.object(catalog_module, "write_commit", commit), suppress(Killed):
        yield met


def test_killed_around_any_commit_the_archive_has_the_old_generation_or_the_new_one_and_never_a_mixture(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    filled(cluster, topic, base)
    old, new = read_archive(str(base)).records, fresh(cluster, topic, tmp_path / "other").records
    assert old != new
    seen: list[list[int]] = []
    for point in range(POINTS_MAX):
        archive = tmp_path / f"archive-{point}"
        shutil.copytree(base, archive)
        with dying(point) as met:
            back_up(config_of(cluster, archive, topic, **OFTEN))
        known = open_archive(str(archive)).catalog.generations().values()
        seen.append(
            [each.number for topics in known for each in topics.generations if each.stage is GenerationStage.ACTIVE]
        )
        assert read_archive(str(archive)).records == (new if seen[-1] == [2] else old), point
        assert check_archive(open_archive(str(archive))).exit_code == 0, point
        if len(met) <= point:
            break
        report = back_up(config_of(cluster, archive, topic, **OFTEN))
        assert report.exit_code == 0, (point, report.notices)
        assert read_archive(str(archive)).records == new, point
        assert (2, GenerationStage.BUILDING) not in stages(archive)
        shutil.rmtree(archive)
    # It begins, has been read, is known to be complete, and is active.
    assert seen == [[], [1], [1], [1], [1], [1], [1], [2], [2]]


def test_a_store_that_fails_around_the_switch_leaves_the_old_generation_and_the_next_run_completes_the_new_one(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    filled(cluster, topic, base)
    old, new = read_archive(str(base)).records, fresh(cluster, topic, tmp_path / "other").records
    counted = Store(1 << 30, full, everything=True)
    shutil.copytree(base, tmp_path / "counted")
    with counted.failing():
        back_up(config_of(cluster, tmp_path / "counted", topic, **OFTEN))
    points = range(1, counted.changes, max(counted.changes // 6, 1))
    seen = []
    for point in points:
        archive = tmp_path / f"archive-{point}"
        shutil.copytree(base, archive)
        store = Store(point, full if point % 2 else gone, everything=not point % 2)
        with store.failing(), suppress(MaxbrodError):
            assert back_up(config_of(cluster, archive, topic, **OFTEN)).exit_code == EXIT_FAILED
        held = read_archive(str(archive)).records
        assert held in (old, new), point
        seen.append(held == new)
        assert back_up(config_of(cluster, archive, topic, **OFTEN)).exit_code == 0
        assert read_archive(str(archive)).records == new, point
        assert check_archive(open_archive(str(archive))).exit_code == 0
    assert not all(seen)


def test_beside_a_switch_a_query_reads_its_own_version_and_a_stream_each_offset_once(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """A stream goes on with the new generation where it stands, and never goes back."""
    archive = tmp_path / "archive"
    filled(cluster, topic, archive)
    old = _values(query(archive))
    planned = ArchiveSource({"path": str(archive)})
    reader = planned.reader(planned.schema())
    splits = list(reader.partitions())
    stream = Stream(archive, {"maxOffsetsPerTrigger": "100"})
    assert stream.plan()
    first = _values(stream.run())
    assert back_up(config_of(cluster, archive, topic, **OFTEN)).exit_code == 0
    assert stages(archive) == [(1, GenerationStage.RETIRED), (2, GenerationStage.ACTIVE)]
    new = _values(query(archive))
    assert _values(row for split in splits for part in reader.read(split) for row in part.to_pylist()) == old
    rest = [row for part in stream.drain() for row in part]
    assert len(rest) == len(_values(rest))
    ends = {each: max((offset + 1 for where, offset in first if where == each), default=0) for each in (0, 1)}
    assert first == {place: value for place, value in old.items() if place[1] < ends[place[0]]}
    assert _values(rest) == {place: value for place, value in new.items() if place[1] >= ends[place[0]]}
    assert old != new


def _values(rows: Iterable[dict[str, Any]]) -> dict[tuple[int, int], bytes | None]:
    return {(row["partition"], row["offset"]): row["value"] for row in rows}


@pytest.mark.parametrize("what", ["deleted", "not compacted"])
def test_a_generation_that_cannot_be_completed_is_dropped_by_name(
    cluster: Cluster, topic: str, tmp_path: Path, what: str
) -> None:
    archive = tmp_path / "archive"
    filled(cluster, topic, archive)
    back_up(config_of(cluster, archive, topic, **BOUNDED))
    assert last(archive).stage is GenerationStage.BUILDING
    if what == "deleted":
        recreate_topic(cluster, topic)
    else:
        set_topic_config(cluster, topic, {"cleanup.policy": "delete"})
    report = back_up(config_of(cluster, archive, topic, **BOUNDED))
    assert report.exit_code == 0, report.notices
    (notice,) = [each for each in report.notices if each.kind == "generation"]
    assert (notice.topic, "dropped" in notice.message) == (topic, True)
    opened = open_archive(str(archive))
    assert opened.catalog.building().num_rows == 0
    found = [each for each in opened.catalog.generations().values() if each.dropped is not None]
    assert [(each.active.number, each.building) for each in found if each.active] == [(1, None)]
