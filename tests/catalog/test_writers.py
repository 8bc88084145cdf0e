"""Two writers of one archive: exactly one wins, and nothing of the other is visible, whatever the store does."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from maxbrod.catalog.rows import decode_rows
from maxbrod.catalog.tiling import find_tiling_faults
from maxbrod.errors import FencedError, RefusedError
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.proxy.faults import AnswerError, HttpMatch, Latency, LoseAnswer
from maxbrod.sandbox.proxy.server import FaultProxy
from support.catalog_places import Archive, cloud_archive, hear, s3_archive, start_writer
from support.catalog_rows import run, segment
from support.clouds import KINDS, Cloud, cloud_of
from support.gcs import gcs_double
from support.programs.catalog_writers import ROWS_PER_COMMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from maxbrod.sandbox.s3 import LyingS3Server, S3Server

pytestmark = pytest.mark.full

COMMIT = HttpMatch(method="PUT", path=r"_delta_log/\d+\.json")


def say(writers: list[subprocess.Popen[str]], text: str) -> list[str]:
    """Tell all, then hear all."""
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(f"{text}\n")
        writer.stdin.flush()
    return [hear(writer) for writer in writers]


@pytest.fixture(params=["folder", *KINDS])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Archive]:
    """A place for an archive in a folder and in every kind of object store, each with its own words for a lost race."""
    if request.param == "folder":
        yield Archive(str(tmp_path / "archive"))
    elif request.param == "gcs":
        with gcs_double(tmp_path) as double:
            # Google's limit, a tenth of it: whoever loses a race is told that there are too many requests.
            double.mutation_interval_s = 0.1
            yield cloud_archive(Cloud("gcs", double, double.url))
    else:
        yield cloud_archive(cloud_of(request, request.param))


def test_of_writers_at_the_same_moment_exactly_one_wins_each_time(anywhere: Archive) -> None:
    archive = anywhere
    archive.create()
    rounds, winners = 8 if "s3" in archive.options or not archive.options else 4, list[str]()
    with ExitStack() as stack:
        writers = [stack.enter_context(start_writer("append", archive, name)) for name in ("a", "b", "c")]
        for writer in writers:
            stack.callback(writer.kill)
        assert [hear(writer) for writer in writers] == ["ready"] * 3
        for number in range(rounds):
            assert say(writers, str(number)) == ["go"] * 3
            outcomes = say(writers, "now")
            assert sorted(outcomes) == ["committed", "refused", "refused"]
            winners.append(f"{'abc'[outcomes.index('committed')]}-{number}")
    catalog = archive.open()
    assert {each.run_id for each in catalog.runs()} == set(winners)
    rows = catalog.rows()
    assert set(rows["run_id"].to_pylist()) == set(winners)
    assert rows.num_rows == rounds * ROWS_PER_COMMIT
    assert find_tiling_faults(rows).complete
    assert catalog.version == rounds


def test_a_writer_who_read_an_older_version_is_refused_and_may_go_on_after_reading_again(archive: Archive) -> None:
    first = archive.create()
    second = archive.open()
    first.commit([segment(0, 10), run("first")])
    with pytest.raises(RefusedError, match="another writer has committed version 1"):
        second.commit([segment(0, 12), run("second")])
    assert [each.run_id for each in archive.open().runs()] == ["first"]
    second.refresh()
    second.commit([segment(10, 12), run("second")])
    with pytest.raises(RefusedError):
        second.commit([segment(12, 13)], expected_version=1)
    assert decode_rows(archive.open().rows()) == [segment(0, 10), segment(10, 12)]


def test_a_writer_below_the_fence_is_refused_whatever_version_it_has_read(archive: Archive) -> None:
    lost, other = archive.create(), archive.open()
    lost.claim, other.claim = 1, 2
    lost.commit([segment(0, 10), run("before")])
    archive.open().raise_fence(2)
    with pytest.raises(RefusedError, match="another writer has committed"):
        lost.commit([segment(10, 12), run("late")])
    lost.refresh()
    with pytest.raises(FencedError, match="taken for lost"):
        lost.commit([segment(10, 12), run("late")])
    other.refresh()
    other.commit([segment(10, 12), run("after")])
    other.raise_fence(1)
    assert archive.open().fence == 2, "a fence is never lowered"
    assert [each.run_id for each in archive.open().runs()] == ["before", "after"]


def test_a_fence_outlives_checkpoints_and_the_cleaning_of_the_log(archive: Archive) -> None:
    catalog = archive.create()
    catalog.raise_fence(7)
    for number in range(40):
        catalog.commit([segment(number, number + 1), run(f"run-{number}")])
    found = archive.open()
    assert found.fence == 7
    found.claim = 6
    with pytest.raises(FencedError):
        found.commit([segment(40, 41), run("late")])


@contextmanager
def one_writer(archive: Archive) -> Iterator[Callable[[str], str]]:
    """A process that commits when told."""
    with start_writer("append", archive, "slow") as writer:
        try:
            assert hear(writer) == "ready"
            yield lambda text: say([writer], text)[0]
        finally:
            writer.kill()


def test_a_commit_whose_answer_was_lost_is_recognised_as_our_own(cloud: Cloud, cloud_proxy: FaultProxy) -> None:
    cloud_archive(cloud).create()
    lost = cloud_proxy.add(LoseAnswer(on=COMMIT, times=1))
    with one_writer(cloud_archive(cloud, endpoint=cloud_proxy.endpoint)) as tell:
        for number in ("1", "2"):
            assert tell(number) == "go"
            assert tell("now") == "committed"
    assert cloud_proxy.fired[lost] == 1
    assert {each.run_id for each in cloud_archive(cloud).open().runs()} == {"slow-1", "slow-2"}


def test_a_commit_that_the_store_rejects_leaves_the_old_state(s3: S3Server, s3_proxy: FaultProxy) -> None:
    s3_archive(s3).create()
    denied = s3_proxy.add(AnswerError(on=COMMIT, status=403, code="AccessDenied", message="no"))
    with one_writer(s3_archive(s3, s3={"endpoint": s3_proxy.endpoint})) as tell:
        assert tell("1") == "go"
        assert tell("now").startswith("ForbiddenError")
        assert s3_proxy.fired[denied] >= 1
        assert (s3_archive(s3).open().version, s3_archive(s3).open().runs()) == (0, [])
        s3_proxy.remove(denied)
        assert tell("2") == "go"
        assert tell("now") == "committed"
    assert [each.run_id for each in s3_archive(s3).open().runs()] == ["slow-2"]


def overtake(archive: Archive, slow: Archive, proxy: FaultProxy) -> str:
    """Commit while the put of another writer's commit is held up on the way; what that writer was told."""
    late = proxy.add(Latency(on=COMMIT, request_s=2.0, times=1))
    with one_writer(slow) as tell, ThreadPoolExecutor() as pool:
        assert tell("1") == "go"
        outcome = pool.submit(tell, "now")
        wait_for("the commit to be under way", lambda: proxy.fired[late] == 1, timeout_s=60)
        assert archive.open().commit([segment(0, 10), run("fast")]) == 1
        return outcome.result()


def test_a_store_that_keeps_its_promise_refuses_the_later_put(cloud: Cloud, cloud_proxy: FaultProxy) -> None:
    archive = cloud_archive(cloud)
    archive.create()
    assert overtake(archive, cloud_archive(cloud, endpoint=cloud_proxy.endpoint), cloud_proxy) == "refused"
    assert [each.run_id for each in archive.open().runs()] == ["fast"]


def test_any_program_that_knows_delta_reads_the_catalog(cloud: Cloud) -> None:
    archive = cloud_archive(cloud)
    archive.create().commit([segment(0, 10), run("first")])
    assert archive.table().version() == 1
    assert archive.table().to_pyarrow_table().num_rows == 2


def test_a_store_that_ignores_conditional_puts_loses_a_commit(lying_s3: LyingS3Server) -> None:
    """What no catalog can prevent, and why such a store must be refused to more than one writer.

    Both writers are told that they committed; the later put has silently replaced the earlier one.
    """
    archive = s3_archive(lying_s3)
    archive.create()
    with FaultProxy(lying_s3.address, protocol="http") as proxy:
        outcome = overtake(archive, s3_archive(lying_s3, s3={"endpoint": proxy.endpoint}), proxy)
    assert outcome == "committed"
    adds = [line for line in log_entry(lying_s3, 1).splitlines() if '"add"' in line]
    assert len(adds) == 1
    assert json.loads(json.loads(adds[0])["add"]["stats"])["maxValues"]["run_id"].startswith("slow")
    assert archive.open().version == 1


def log_entry(server: LyingS3Server, version: int) -> str:
    return server.object_path(f"archive/catalog/segments/_delta_log/{version:020}.json").read_text()
