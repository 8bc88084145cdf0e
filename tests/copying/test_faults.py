"""Damage at the source, a full or failing target, two copies at once, a stop, and a source that moves on."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.check.problems import ProblemKind
from maxbrod.check.run import check_archive
from maxbrod.copy import task as task_module
from maxbrod.copy.verb import follow_source
from maxbrod.errors import EXIT_CORRUPT, EXIT_INCOMPLETE, StorageFullError
from maxbrod.storage.local import LocalStorage
from maxbrod.work.executor import LocalExecutor
from maxbrod.work.work import Work
from support.archives import damage
from support.copies import config_of, copy, run_of_topics, three_topics
from support.failing_stores import Store, full
from support.native_archives import compact, look

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from maxbrod.copy.verb import CopyInterval


def cut(path: Path) -> None:
    data = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(data[:-30])


def lose(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("options", [{}, {"topics": ["orders", "a"]}], ids=["whole", "chosen"])
@pytest.mark.parametrize(("harm", "said"), [(damage, "digest"), (cut, "bytes"), (lose, "missing")])
def test_a_damaged_object_is_named_and_not_copied_and_the_rest_is(
    tmp_path: Path, harm: Callable[[Path], None], said: str, options: dict[str, Any]
) -> None:
    three_topics(tmp_path / "a")
    victim = min((tmp_path / "a" / "segments").rglob("*.log"))
    sound = victim.read_bytes()
    harm(victim)
    report = copy(tmp_path / "a", tmp_path / "b", **options)
    assert report.exit_code == EXIT_CORRUPT
    (notice,) = report.notices
    assert notice.kind == "corrupt"
    assert said in notice.message
    assert victim.name in notice.message
    # The copy does not look better than it is, and has all else.
    problems = check_archive(open_archive(str(tmp_path / "b"))).problem_counts
    assert problems == {ProblemKind.MISSING: 1}
    # Once the source is sound again, so is the copy.
    victim.write_bytes(sound)
    assert copy(tmp_path / "a", tmp_path / "b", **options).exit_code == 0
    assert check_archive(open_archive(str(tmp_path / "b"))).exit_code == 0


def test_a_damaged_slice_of_a_pack_is_no_harm_to_topics_that_were_chosen(tmp_path: Path) -> None:
    three_topics(tmp_path / "a")
    first = next(info for info in LocalStorage(tmp_path / "a").list("packs"))
    damage(tmp_path / "a" / first.path)
    assert copy(tmp_path / "a", tmp_path / "b", topics=["a"]).exit_code == EXIT_CORRUPT
    assert copy(tmp_path / "a", tmp_path / "c", topics=["b"]).exit_code == 0


def test_damage_on_the_way_is_gone_when_the_object_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_topics(tmp_path / "a")
    read = LocalStorage.get_ranges
    damaged: list[str] = []

    def once(self: LocalStorage, path: str, ranges: Any) -> Any:
        data = read(self, path, ranges)
        if path.startswith("segments/") and not damaged:
            damaged.append(path)
            return [memoryview(bytes(len(part))) for part in data]
        return data

    monkeypatch.setattr(LocalStorage, "get_ranges", once)
    assert copy(tmp_path / "a", tmp_path / "b").exit_code == 0
    assert damaged
    assert look(tmp_path / "b") == look(tmp_path / "a")


def test_a_store_that_returns_other_bytes_than_it_was_given_is_noticed_by_reading_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from maxbrod.errors import MaxbrodError  # noqa: PLC0415
    from maxbrod.storage.local import _LocalWriter  # noqa: PLC0415

    three_topics(tmp_path / "a")
    write = _LocalWriter.write
    monkeypatch.setattr(_LocalWriter, "write", lambda self, data: write(self, bytes(len(memoryview(data)))))
    with pytest.raises(MaxbrodError, match="other bytes"):
        copy(tmp_path / "a", tmp_path / "b", read_back=True)


@pytest.mark.parametrize("point", [0, 3, 9])
def test_a_full_disk_ends_the_copy_which_stays_what_it_was_and_goes_on_later(tmp_path: Path, point: int) -> None:
    making = three_topics(tmp_path / "a")
    copy(tmp_path / "a", tmp_path / "b")
    before = look(tmp_path / "b")
    run_of_topics(making, {"a": 6, "c": 3})
    compact(tmp_path / "a", topics=["b"])
    with Store(point, full, everything=True).failing(), pytest.raises(StorageFullError):
        copy(tmp_path / "a", tmp_path / "b")
    assert look(tmp_path / "b") == before
    assert copy(tmp_path / "a", tmp_path / "b").exit_code == 0
    assert look(tmp_path / "b") == look(tmp_path / "a")


@pytest.mark.parametrize("options", [{}, {"topics": ["orders", "a"]}], ids=["whole", "chosen"])
def test_two_copies_at_once_into_one_place_both_end_well(tmp_path: Path, options: dict[str, Any]) -> None:
    three_topics(tmp_path / "a")
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: copy(tmp_path / "a", tmp_path / "b", **options), range(2)))
    assert [report.exit_code for report in both] == [0, 0]
    copied = open_archive(str(tmp_path / "b"))
    assert check_archive(copied).exit_code == 0
    assert {where[0] for where in look(tmp_path / "b").logs} == set(options.get("topics", ["orders", "a", "b", "c"]))


def test_objects_that_the_source_no_longer_needs_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_topics(tmp_path / "a")
    send = task_module.copy_objects
    moved: list[int] = []

    def while_the_source_moves_on(context: Any, items: Any) -> Any:
        if not moved:
            moved.append(1)
            compact(tmp_path / "a")
            # As `gc` does after its grace time.
            for folder in ("segments", "packs"):
                for info in list(LocalStorage(tmp_path / "a").list(folder)):
                    if info.path not in open_archive(str(tmp_path / "a")).catalog.path_set():
                        (tmp_path / "a" / info.path).unlink()
        return send(context, items)

    monkeypatch.setattr("maxbrod.copy.sender.copy_objects", while_the_source_moves_on)
    report = copy(tmp_path / "a", tmp_path / "b", executor=_Pickleless())
    assert report.exit_code == 0
    assert look(tmp_path / "b") == look(tmp_path / "a")


class _Pickleless:
    parallelism = 1
    is_here = True
    in_process = True

    def run(self, task: Any, context: Any, tasks: Any, **_: Any) -> list[Any]:
        return [outcome for items in tasks for outcome in task(context, items)]


def test_a_stop_leaves_the_copy_as_it_was_and_the_same_command_goes_on(tmp_path: Path) -> None:
    making = three_topics(tmp_path / "a")
    copy(tmp_path / "a", tmp_path / "b")
    before = look(tmp_path / "b")
    run_of_topics(making, {"a": 6, "c": 3})
    stop = threading.Event()

    class Stopping(_Pickleless):
        def run(self, task: Any, context: Any, tasks: Any, **options: Any) -> list[Any]:
            stop.set()
            return super().run(task, context, tasks, **options)

    report = copy(tmp_path / "a", tmp_path / "b", executor=Stopping(), stop=stop)
    assert report.exit_code == EXIT_INCOMPLETE
    assert [notice.kind for notice in report.notices] == ["stopped"]
    assert look(tmp_path / "b") == before
    assert copy(tmp_path / "a", tmp_path / "b").exit_code == 0


def test_a_copy_that_follows_goes_on_until_it_is_stopped(tmp_path: Path) -> None:
    making = three_topics(tmp_path / "a")
    stop = threading.Event()
    seen: list[CopyInterval] = []

    def after(interval: CopyInterval) -> None:
        seen.append(interval)
        if interval.number == 1:
            run_of_topics(making, {"a": 6})
        if interval.number == 3:
            stop.set()

    config = config_of(tmp_path / "a", tmp_path / "b", follow=True, every=1)
    with Work(config, executor=LocalExecutor(2), stop=stop) as work:
        last = follow_source(work, after)
    assert [interval.report and interval.report.objects for interval in seen] == [8, 1, 0]
    assert last.exit_code == 0
    assert look(tmp_path / "b") == look(tmp_path / "a")
