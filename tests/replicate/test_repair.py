"""Ways out of a fault: a mirror that is proven goes on, another one is mirrored anew, and nothing is lost by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.compare.report import RECORD, CompareReport, Difference, PartitionComparison
from maxbrod.kafka.produce.appends import misplaced
from maxbrod.kafka.state.cluster_state import TopicState
from maxbrod.model import PartitionId, TopicPartition
from maxbrod.replicate.ingress.mode import Mode
from maxbrod.replicate.ingress.plan import Extent, Mirror
from maxbrod.replicate.ingress.run import Ingress
from maxbrod.replicate.link import State
from maxbrod.replicate.repair import MirrorRepairReport, Repair, RepairedPartition, plan_repairs
from maxbrod.replicate.view import MirroredPartition
from maxbrod.restore.items import Restored, RestoreItem
from maxbrod.restore.plan.targets import LogExtent
from maxbrod.sandbox.topics import create_topic, offsets
from maxbrod.sandbox.traffic import numbered, produce
from support.catalog_rows import TOPIC_ID
from support.replications import SUFFIX, archive, assert_mirrored, link_config, only
from support.restores import Command, put
from support.sparkless import without_spark as comparing_without_spark

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

FIRST, SECOND = (TopicPartition(topic="orders", partition=number) for number in range(2))
LOG = LogExtent(start=0, end=10)


def test_a_faulted_mirror_that_is_equal_goes_on_at_its_end() -> None:
    (found,) = _plan(equal=True)
    assert (found.repair, found.proven, found.why) == (Repair.GO_ON, 10, None)
    assert MirrorRepairReport(link="x", partitions=(found,)).exit_code == 0


def test_a_mirror_with_other_records_is_deleted_only_if_that_was_agreed_to() -> None:
    (found,) = _plan(differs_at=7)
    assert (found.repair, found.proven) == (Repair.ANEW, 7)
    report = MirrorRepairReport(link="x", partitions=(found,))
    assert (report.to_delete, report.exit_code) == (("orders",), 5)
    done = MirrorRepairReport(link="x", partitions=(found,), deleted=("orders",))
    assert (done.to_delete, done.exit_code) == ((), 0)


def test_a_mirror_that_is_longer_than_the_archive_never_goes_on() -> None:
    (found,) = _plan(equal=True, log=LogExtent(start=0, end=25))
    assert (found.repair, found.proven) == (Repair.ANEW, 20)


@pytest.mark.parametrize(
    ("obstacle", "why"),
    [
        ({"failure": {"message": "an object is missing"}}, "could not be compared: an object is missing"),
        ({"differs_at": 7, "foreign": {"orders"}}, "the link has not written"),
        ({"differs_at": 7, "other": "differs"}, "orders-1 is not faulted, and has other records"),
        ({"differs_at": 7, "other": "fails"}, "orders-1 could not be compared"),
        ({"differs_at": 7, "first": 5}, "the archive begins at 5"),
        ({"log": None}, "does not exist"),
    ],
)
def test_nothing_is_deleted_that_the_archive_does_not_give_back(obstacle: dict[str, Any], why: str) -> None:
    (found,) = _plan(**obstacle)
    assert found.repair is Repair.BY_HAND
    assert why in (found.why or "")
    report = MirrorRepairReport(link="x", partitions=(found,))
    assert (report.to_delete, report.exit_code) == ((), 5)


@pytest.mark.parametrize(
    ("log", "kind", "proven"), [(LOG, Repair.BY_HAND, None), (LogExtent(start=10, end=10), Repair.GO_ON, 10)]
)
def test_nothing_is_called_proven_that_was_not_compared(log: LogExtent, kind: Repair, proven: int | None) -> None:
    """The archive begins behind the end of the mirror, so that the two have no offset in common."""
    (found,) = plan_repairs([_mirrored(FIRST, first=15)], {FIRST: "why"}, {FIRST: log}, None, foreign=())
    assert (found.repair, found.proven) == (kind, proven)


def test_a_good_mirror_that_was_called_faulted_goes_on_after_it_is_proven(
    cluster: Cluster,
    tmp_path: Path,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic)
    command = _command(cluster, tmp_path, capsys, topic)
    produce(cluster, topic, numbered(10))
    archive(config)
    fault = misplaced(TopicPartition(topic=topic + SUFFIX, partition=0), 9, landed=58, expected=9)

    def fail(_: Mode, items: list[tuple[int, RestoreItem]], *more: object, **_o: object) -> list[Restored]:
        return [Restored(where=item.where, end=0, records=0, map={}, failure=fault) for _, item in items]

    with Ingress(config) as ingress:
        ingress.run()
        produce(cluster, topic, numbered(10, first=10))
        archive(config)
        with monkeypatch.context() as failing:
            failing.setattr(Mode, "do", fail)
            assert only(ingress.run()).state is State.FAULTED
        assert only(ingress.run()).state is State.FAULTED, "as long as the process lives"
        with comparing_without_spark():
            (found,) = command.json("replicate", "repair")["partitions"]
        assert (found["repair"], found["proven"], found["archive_end"]) == ("go on", 10, 20)
        assert command.json("replicate", "status", exits=0)["states"] == {"catching up": 1}
        assert only(ingress.run()).state is State.IN_STEP
        produce(cluster, topic, numbered(5, first=20))
        archive(config)
        assert only(ingress.run()).state is State.IN_STEP
    assert_mirrored(cluster, topic)
    assert "no selected mirror is faulted" in command("replicate", "repair")


def test_a_mirror_that_others_have_written_to_is_mirrored_anew_at_the_same_offsets(
    cluster: Cluster, tmp_path: Path, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic, partitions=2)
    config = link_config(cluster, tmp_path / "archive", topic)
    command = _command(cluster, tmp_path, capsys, topic)
    for number in range(2):
        produce(cluster, topic, numbered(10), partition=number)
    archive(config)
    with Ingress(config) as ingress, comparing_without_spark():
        ingress.run()
        put(cluster, f"group-{topic}", {(topic + SUFFIX, 0): 5})
        produce(cluster, topic + SUFFIX, numbered(1, first=500))
        produce(cluster, topic, numbered(10, first=10))
        archive(config)
        assert only(ingress.run()).state is State.FAULTED
        report = command.json("replicate", "repair", exits=5)
        (found,) = report["partitions"]
        assert (found["partition"], found["repair"], found["proven"], found["end"]) == (0, "mirror anew", 10, 11)
        assert (report["to_delete"], report["deleted"]) == ([topic + SUFFIX], [])
        assert report["groups"] == [f"group-{topic}"]
        assert offsets(cluster, topic + SUFFIX) == (0, 11), "nothing was changed"
        command("replicate", "repair", "--yes")
        assert {each.state for each in ingress.run().partitions} == {State.IN_STEP}
    for number in range(2):
        assert_mirrored(cluster, topic, number)


def _command(cluster: Cluster, folder: Path, capsys: pytest.CaptureFixture[str], topic: str) -> Command:
    command = Command(cluster, folder / "archive", capsys)
    command.place += ["--topic", topic, "--link", f"link-{topic}", "--rename", f"{topic}={topic}{SUFFIX}"]
    return command


def _plan(
    *,
    equal: bool = False,
    differs_at: int = 0,
    failure: dict[str, Any] | None = None,
    log: LogExtent | None = LOG,
    first: int = 0,
    foreign: Collection[str] = (),
    other: str = "equal",
) -> list[RepairedPartition]:
    """The repair of the first of two partitions, which is faulted."""
    pairs = [
        _pair(0, equal=equal, failure=failure),
        _pair(1, equal=other == "equal", failure={"message": "it cannot be read"} if other == "fails" else None),
    ]
    difference = Difference(
        source_topic="orders",
        target_topic="orders",
        partition=0,
        source_offset=differs_at,
        target_offset=None,
        field=RECORD,
        source="",
        target="",
    )
    compared = CompareReport(
        source="",
        target="",
        started_at_ms=0,
        finished_at_ms=0,
        ignored=(),
        partitions=tuple(pairs),
        differences=() if equal else (difference,),
    )
    logs = {SECOND: LOG, **({} if log is None else {FIRST: log})}
    partitions = [_mirrored(where, first=first) for where in (FIRST, SECOND)]
    return plan_repairs(partitions, {FIRST: "why"}, logs, compared, foreign=foreign)


def _pair(partition: int, *, equal: bool, failure: dict[str, Any] | None) -> PartitionComparison:
    return PartitionComparison(
        source_topic="orders",
        target_topic="orders",
        partition=partition,
        match="exact",
        source_records=10,
        target_records=10,
        source_digest="",
        target_digest="",
        equal=equal,
        failure=failure,
    )


def _mirrored(where: TopicPartition, *, first: int) -> MirroredPartition:
    source = TopicState(name="orders", topic_id=TOPIC_ID, internal=False, replicas=((1,),), configs={}, effective={})
    return MirroredPartition(
        id=PartitionId(topic_id=TOPIC_ID, partition=where.partition),
        where=where,
        mirror=Mirror(source=source, name="orders"),
        extent=Extent(first=first, end=20, start=first),
    )
