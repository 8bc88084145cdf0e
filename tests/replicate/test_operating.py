"""What an operator does with a link, by the command line: status, pause, resume, verify, promote."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from maxbrod.archive.archive import open_for_writing
from maxbrod.cli.main import run
from maxbrod.config import Config, KafkaConfig
from maxbrod.errors import CorruptDataError, MaxbrodError, NoArchiveError, UnavailableError, UsageError
from maxbrod.kafka.admin import delete_records
from maxbrod.kafka.state.cluster_state import TopicState
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.model import GapReason, PartitionId, TopicPartition
from maxbrod.prune.plan import SegmentPolicy
from maxbrod.prune.run import PruneRequest, prune_archive
from maxbrod.prune.runs import RunPolicy
from maxbrod.replicate import promote as promote_module
from maxbrod.replicate import status as status_module
from maxbrod.replicate.egress import _wait_for_share
from maxbrod.replicate.fail_back import fail_back
from maxbrod.replicate.heartbeat import Heartbeat
from maxbrod.replicate.ingress import run as follow_module
from maxbrod.replicate.ingress.plan import Extent, Mirror
from maxbrod.replicate.ingress.run import Ingress, IngressInterval, follow_archive
from maxbrod.replicate.link import Link, State
from maxbrod.replicate.options import ReplicateOptions
from maxbrod.replicate.promote import PromoteReport, promote
from maxbrod.replicate.report import (
    IngressReport,
    Lacking,
    PartitionStatus,
    exit_code_of,
    standing_by,
    status_of,
)
from maxbrod.replicate.shares import Posted
from maxbrod.replicate.status import LinkStatus
from maxbrod.replicate.summary import lag_words, print_promotion, print_ways_back
from maxbrod.replicate.verify import find_uncompared, mirrored_extent
from maxbrod.replicate.view import LinkView, MirroredPartition, _unreadable
from maxbrod.restore.plan.request import OffsetRange
from maxbrod.restore.plan.targets import LogExtent
from maxbrod.sandbox.surgery import compact
from maxbrod.sandbox.topics import create_topic, delete_topic, offsets, recreate_topic
from maxbrod.sandbox.traffic import numbered, produce, produce_transaction
from support.replications import SUFFIX, LinkCommand, archive, assert_mirrored, carry, link_config, only, take_in
from support.restore_oracle import log_of
from support.restores import configs_of, put, read_all, stand
from support.sparkless import run_here
from support.sparkless import without_spark as comparing_without_spark

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster


def test_status_tells_the_lag_without_the_source(
    cluster: Cluster, tmp_path: Path, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic)
    command = LinkCommand(cluster, tmp_path / "archive", capsys, topic)
    produce(cluster, topic, numbered(100))
    archive(config)
    (found,) = command.json("replicate", "status")["partitions"]
    assert (found["state"], found["lag_records"], found["lag_ms"]) == ("catching up", 100, None)
    assert found["lag_bytes"] > 0
    take_in(config)
    status = command.json("replicate", "status")
    (found,) = status["partitions"]
    assert (found["state"], found["lag_records"], found["lag_bytes"]) == ("in step", 0, 0)
    in_step_ms = found["lag_ms"]
    assert in_step_ms >= 0
    assert status["ingress_ms"] >= status["heartbeat_ms"]
    produce(cluster, topic, numbered(5, first=100))
    archive(config)
    (found,) = command.json("replicate", "status")["partitions"]
    assert (found["state"], found["lag_records"]) == ("catching up", 5)
    assert found["lag_ms"] >= in_step_ms, "counted from the heartbeat whose records it has"
    assert "in step" not in command("replicate", "status")


@pytest.fixture
def _no_heartbeat_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is."""
    monkeypatch.setattr(promote_module, "STALE_MS", 1 << 60)


@pytest.mark.usefixtures("_no_heartbeat_is_stale")
@pytest.mark.parametrize("how", ["exact", "append"])
def test_offsets_that_were_never_archived_are_named_in_every_report(
    cluster: Cluster, tmp_path: Path, topic: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, offsets=how)
    command = LinkCommand(cluster, tmp_path / "archive", capsys, topic)
    command.place += ["--offsets", how]
    produce(cluster, topic, numbered(10))
    assert only(carry(config)).lacking == ()
    produce(cluster, topic, numbered(10, first=10))
    with KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap)) as client:
        _, failed = delete_records(client, {TopicPartition(topic=topic, partition=0): 15})
    assert not failed
    archive(config)
    wanted = [{"first_offset": 10, "end_offset": 15, "reason": "retention"}]
    for number in range(2):
        (found,) = command.json("replicate", "ingress", "--once")["report"]["partitions"]
        assert (found["lacking"], found["state"], found["lag_records"]) == (wanted, "in step", 0), number
    assert command.json("replicate", "status")["partitions"][0]["lacking"] == wanted
    line = f"{topic}-0  offsets 10 to 14 never arrive: the source removed them before egress read them (retention)"
    command("replicate", "ingress", "--once")
    assert line in command.said
    assert line in command("replicate", "status")
    assert line in command("replicate", "promote")
    arrived = [value for _, value in read_all(cluster, topic + SUFFIX)]
    assert arrived[-5:] == [value for _, value in read_all(cluster, topic)]


def _mirrored(**more: Any) -> MirroredPartition:
    source = TopicState(name="a", topic_id="A", internal=False, replicas=((1,),), configs=None, effective=None)
    return MirroredPartition(
        id=PartitionId(topic_id="A", partition=0),
        where=TopicPartition(topic="a", partition=0),
        mirror=Mirror(source=source, name="a"),
        extent=Extent(first=0, end=20, start=0),
        **more,
    )


def test_a_range_that_a_later_run_may_mend_is_lacking_once_it_was_passed() -> None:
    gap = Lacking(first_offset=10, end_offset=15, reason=GapReason.CORRUPT)
    each = _mirrored(lacking=(gap,))
    assert status_of(each, 10, [], 0).lacking == ()
    assert status_of(each, 20, [], 0).lacking == (gap,)


def test_what_is_named_and_not_there_is_never_done(
    cluster: Cluster, tmp_path: Path, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another link's mirror, a topic that is not archived, offsets that no side has."""
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(10))
    carry(link_config(cluster, tmp_path / "archive", topic))
    command = LinkCommand(cluster, tmp_path / "archive", capsys, topic)
    command("replicate", "verify", "--range", f"{topic}:0:10..20", exits=3)
    assert "offsets 10 to 20 (exclusive) are not on both sides" in command.said
    assert command.json("replicate", "verify", "--range", f"{topic}:0:15..20", exits=3)["uncompared"] == [
        {"topic": topic, "partition": 0, "first": 15, "end": 20}
    ]
    command("replicate", "verify", "--range", f"{topic}:0:0..2", "--range", f"{topic}:0:5..7", exits=2)
    right = list(command.place)
    command.place += ["--topic", "nosuch"]
    assert command.json("replicate", "status", exits=3)["unmatched"] == ["nosuch"]
    assert command.json("replicate", "ingress", "--once", exits=3)["report"]["unmatched"] == ["nosuch"]
    command("replicate", "ingress", "--once", exits=3)
    assert "the archive has no topic nosuch yet" in command.said
    assert "the archive has no topic nosuch yet" in command("replicate", "status", exits=3)
    command.place = [*right, "--topic", topic[:-1]]
    command("replicate", "status", exits=3)
    assert f"did you mean {topic}?" in command.said
    command.place = [*right, "--link", "wrong"]
    (found,) = command.json("replicate", "status", exits=5)["partitions"]
    assert (found["state"], found["why"]) == (
        "faulted",
        "the destination topic has records that the link wrong has not written",
    )
    for order in ("pause", "resume", "promote"):
        command("replicate", order, exits=2)
        assert "the link wrong has no marks" in command.said
        assert f"link-{topic}" in command.said, "the links that are there"


def test_the_given_ranges_that_were_not_compared_are_named() -> None:
    where = TopicPartition(topic="a", partition=0)
    asked = [OffsetRange(where=where, first=5, end=30)]
    compared = [OffsetRange(where=where, first=10, end=20)]
    assert [(each.first, each.end) for each in find_uncompared(asked, compared)] == [(5, 10), (20, 30)]
    assert [(each.first, each.end) for each in find_uncompared(asked, [])] == [(5, 30)]
    assert not list(find_uncompared([OffsetRange(where=where)], compared)), "as far as both reach"


def test_what_producers_write_to_a_promoted_mirror_is_not_compared_with_the_source() -> None:
    source = TopicState(name="a", topic_id="A", internal=False, replicas=((1,),), configs=None, effective=None)
    each = MirroredPartition(
        id=PartitionId(topic_id="A", partition=0),
        where=TopicPartition(topic="b", partition=0),
        mirror=Mirror(source=source, name="b"),
        extent=Extent(first=0, end=120, start=0),
    )
    log = LogExtent(start=3, end=150)
    assert mirrored_extent(each, log) == log
    each.promoted_end = 100
    assert mirrored_extent(each, log) == LogExtent(start=3, end=100)


def _partition_status(**more: Any) -> PartitionStatus:
    known: dict[str, Any] = {
        "source": "a",
        "topic": "a",
        "partition": 0,
        "state": State.PROMOTED,
        "why": None,
        "end": 10,
        "archive_end": 10,
        "source_end": 10,
        "lag_records": 0,
        "lag_bytes": 0,
        "lag_ms": 0,
    }
    return PartitionStatus(**{**known, **more})


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, ""),
        ({"heartbeat_ms": 60_999}, "the source's last heartbeat is 39 s old: what it has written since"),
        ({"heartbeat_ms": 700_000}, "heartbeat is 600 s ahead of the clock here"),
        ({"heartbeat_ms": None}, "the source has left no heartbeat"),
        ({"unmatched": ("nosuch",)}, "the archive has no topic nosuch"),
        ({"why": "appended at offset 58 instead of 9"}, "a-0: faulted: appended at offset 58 instead of 9"),
        ({"lag_records": 3}, "3 records had not arrived"),
        ({"lag_records": None}, "it is unknown what had not arrived"),
    ],
)
def test_a_promotion_is_complete_only_if_everything_is_known_to_have_arrived(
    more: dict[str, Any], wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    of_link = {name: value for name, value in more.items() if name in {"heartbeat_ms", "unmatched"}}
    status = _partition_status(**{name: value for name, value in more.items() if name not in of_link})
    known: dict[str, Any] = {"link": "l", "at_ms": 100_000, "heartbeat_ms": 95_000, "fenced": True, "groups": 0}
    report = PromoteReport(**{**known, **of_link}, partitions=(status,))
    assert (report.exit_code, report.as_dict()["exit_code"]) == ((3, 3) if more else (0, 0))
    assert bool(report.doubts) == (bool(more) and "lag_records" not in more)
    print_promotion(report, groups=False)
    assert wanted in " ".join(capsys.readouterr().out.split())


def test_the_lag_of_a_faulted_mirror_is_unknown() -> None:
    """What it has may not be the source's, wherever it ends."""
    each = _mirrored()
    beats = [Heartbeat(at_ms=5, instance="i", cluster_id="c", ends={each.id: 20})]
    assert (status_of(each, 20, beats, 9).lag_records, status_of(each, 20, beats, 9).lag_ms) == (0, 4)
    assert status_of(each, None, beats, 9).lag_records is None
    for state in (State.FAULTED, State.PROMOTED):
        each.state, each.why = state, "somebody else has written to it"
        status = status_of(each, 20, beats, 9)
        assert (status.lag_records, status.lag_ms, status.end) == (None, None, 20)


def test_ingress_never_prints_a_lag_that_it_does_not_know() -> None:
    known, unknown = _partition_status(lag_records=5), _partition_status(lag_records=None, lag_ms=None)
    assert lag_words([unknown]) == "unknown"
    assert lag_words([known, unknown]) == "5 records, 0.0 s, unknown of 1 partition"
    assert lag_words([known]) == "5 records, 0.0 s"
    assert lag_words([]) == "0 records"


def test_promote_says_if_no_groups_were_carried(capsys: pytest.CaptureFixture[str]) -> None:
    report = PromoteReport(link="l", at_ms=0, heartbeat_ms=None, partitions=(), fenced=True, groups=0)
    print_promotion(report, groups=False)
    assert "no groups were carried" in capsys.readouterr().out
    print_promotion(replace(report, groups=1), groups=True)
    assert "1 offset was committed for groups" in capsys.readouterr().out


def test_an_ingress_waits_for_an_archive_that_has_not_arrived(tmp_path: Path) -> None:
    options = ReplicateOptions(every=0.01)
    config = Config(kafka=KafkaConfig(bootstrap="127.0.0.1:1"), archive=str(tmp_path / "none"), replicate=options)
    stop, errors = threading.Event(), list[MaxbrodError | None]()

    def note(interval: IngressInterval) -> None:
        errors.append(interval.error)
        if interval.number == 2:
            stop.set()

    assert follow_archive(config, stop=stop, on_interval=note).exit_code == 2
    assert [type(each) for each in errors] == [NoArchiveError, NoArchiveError]
    once = config.model_copy(update={"replicate": ReplicateOptions(once=True)})
    with pytest.raises(NoArchiveError):
        follow_archive(once, stop=threading.Event(), on_interval=note)


_FIRST, _RENEWED = Posted(instance="other", count=1), Posted(instance="other", count=2)


class _Standing:
    """An ingress that stands by while another instance leads, as it sees the lease; None: it has taken it."""

    def __init__(self, *seen: Posted | None) -> None:
        self._seen = iter(seen)
        self.leader_seen: Posted | None = None

    def __call__(self, *_: Any, **__: Any) -> AbstractContextManager[_Standing]:
        return nullcontext(self)

    def run(self) -> IngressReport:
        now = next(self._seen)
        self.leader_seen = now or self.leader_seen
        waits = standing_by("eu", "other", 1, 0, takeovers=0)
        return waits if now is not None else replace(waits, standby_for=None)


@pytest.mark.parametrize(
    ("seen", "exit_code"),
    [((_FIRST, _FIRST, None), 0), ((_FIRST, _RENEWED), 3), ((None,), 0)],
    ids=["it was killed", "it lives", "nobody leads"],
)
def test_an_ingress_that_runs_once_takes_over_from_one_that_was_killed(
    seen: tuple[Posted | None, ...], exit_code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_module, "Ingress", _Standing(*seen))
    config = Config(archive=str(tmp_path), replicate=ReplicateOptions(once=True, every=0.001))
    told = list[IngressInterval]()
    assert follow_archive(config, stop=threading.Event(), on_interval=told.append).exit_code == exit_code
    assert len(told) == 1


@pytest.mark.parametrize(("seen", "lives"), [((_FIRST, _FIRST, None), False), ((_FIRST, _RENEWED), True)])
def test_an_egress_that_runs_once_takes_over_from_one_that_was_killed(
    seen: tuple[Posted | None, ...], lives: bool
) -> None:
    answers, shares = iter(seen), SimpleNamespace(leads=False, seen=_FIRST, leader="other")

    def look() -> bool:
        now = next(answers)
        shares.leads, shares.seen = now is None, now or shares.seen
        return True

    sharing: Any = SimpleNamespace(look=look, shares=shares)
    with pytest.raises(UnavailableError, match="another instance") if lives else nullcontext():
        assert _wait_for_share(sharing, threading.Event(), ReplicateOptions(once=True, every=0.001))


def test_a_right_that_is_missing_to_read_marks_is_named() -> None:
    error = _unreadable("maxbrod.replicate.eu", "GROUP_AUTHORIZATION_FAILED")
    assert (error.exit_code, error.retryable) == (2, False)
    assert "Describe the groups that begin with maxbrod.replicate.eu" in (error.hint or "")
    assert _unreadable("maxbrod.replicate.eu", "COORDINATOR_NOT_AVAILABLE").retryable


def test_records_that_nobody_appends_are_not_well() -> None:
    behind = PartitionStatus(
        source="a",
        topic="a",
        partition=0,
        state=State.CATCHING_UP,
        why=None,
        end=5,
        archive_end=10,
        source_end=10,
        lag_records=5,
        lag_bytes=100,
        lag_ms=400_000,
    )
    now = 10_000_000
    status = LinkStatus(
        link="eu", archive="a", version=1, at_ms=now, heartbeat_ms=now, ingress_ms=now - 400_000, partitions=(behind,)
    )
    assert (status.silent_ms, status.exit_code) == (400_000, 3)
    assert replace(status, ingress_ms=now - 60_000).exit_code == 0
    assert replace(status, ingress_ms=None).exit_code == 0, "it has not begun"
    assert replace(status, partitions=(replace(behind, state=State.IN_STEP),)).exit_code == 0


def test_a_partition_without_a_leader_is_unknown_and_the_others_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it loses its leader while it is asked."""
    led, lost = (replace(_mirrored().where, partition=number) for number in range(2))
    looks = iter([{led: 1, lost: 2}, {led: 1, lost: None}])
    asked = list[list[TopicPartition]]()

    def extents(_: object, partitions: list[TopicPartition], __: float) -> dict[TopicPartition, LogExtent]:
        asked.append(partitions)
        if lost in partitions:
            raise UnavailableError("no leader", object_name=str(lost))
        return {where: LogExtent(start=0, end=20) for where in partitions}

    monkeypatch.setattr(status_module, "existing", lambda *_: next(looks))
    monkeypatch.setattr(status_module, "log_extents", extents)
    client: Any = None
    ends = status_module.destination_ends(client, [], patience_s=60)
    assert (ends, asked) == ({led: 20, lost: None}, [[led, lost], [led]])
    each = _mirrored()
    each.where = lost
    status_module.tell_unknown([each], ends)
    status = status_of(each, None, [Heartbeat(at_ms=5, instance="i", cluster_id="c", ends={each.id: 20})], 9)
    assert (status.state, status.end, status.lag_records) == (State.UNKNOWN, None, None)
    assert exit_code_of([status]) == 3


def test_watching_goes_on_while_the_cluster_or_the_archive_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([UnavailableError("the cluster restarts"), CorruptDataError("half-copied"), UsageError("the end")])

    def failing(_: Config) -> LinkStatus:
        raise next(answers)

    monkeypatch.setattr(status_module, "link_status", failing)
    words = ["replicate", "status", "--bootstrap", "127.0.0.1:1", "--archive", str(tmp_path), "--watch", "10ms"]
    assert run(words) == 2
    said = capsys.readouterr().err
    assert [word for word in ("the cluster restarts", "half-copied", "the end") if word in said] == [
        "the cluster restarts",
        "half-copied",
        "the end",
    ]


def test_a_paused_topic_stands_still_until_it_is_resumed(
    cluster: Cluster, tmp_path: Path, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic)
    command = LinkCommand(cluster, tmp_path / "archive", capsys, topic)
    produce(cluster, topic, numbered(10))
    archive(config)
    with Ingress(config) as ingress:
        ingress.run()
        assert command.json("replicate", "pause")["topics"] == [topic + SUFFIX]
        produce(cluster, topic, numbered(10, first=10))
        archive(config)
        report = ingress.run()
        assert (only(report).state, only(report).end, only(report).lag_records) == (State.PAUSED, 10, 10)
        assert command.json("replicate", "status")["states"] == {"paused": 1}
        command("replicate", "resume")
        assert only(ingress.run()).end == 20


def test_a_recreated_source_with_as_many_records_is_never_in_step(
    cluster: Cluster, tmp_path: Path, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under an ingress that runs, in every report, and when the mirror is promoted."""
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic)
    command = LinkCommand(cluster, tmp_path / "archive", capsys, topic)
    produce(cluster, topic, numbered(10))
    archive(config)
    wanted = "the source topic was deleted and created again"
    with Ingress(config) as ingress:
        assert only(ingress.run()).state is State.IN_STEP
        recreate_topic(cluster, topic)
        produce(cluster, topic, numbered(10, first=100))
        archive(config)
        for _ in range(2):
            found = only(ingress.run())
            assert (found.state, found.lag_records) == (State.FAULTED, None)
            assert wanted in (found.why or "")
            (shown,) = command.json("replicate", "status", exits=5)["partitions"]
            assert (shown["state"], shown["lag_records"]) == ("faulted", None)
            assert wanted in shown["why"]
        for number in range(2):
            report = command.json("replicate", "promote", exits=3)
            assert report["missing"] is None
            assert wanted in report["doubts"][0], number
            assert wanted in (only(ingress.run()).why or ""), "and an ingress does not make it better"
        assert wanted in command("replicate", "promote", exits=3)
    (shown,) = command.json("replicate", "status")["partitions"]
    assert (shown["state"], shown["lag_records"]) == ("promoted", None)


def test_a_mirror_without_records_follows_a_recreated_source(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    """And so does one whose topic was deleted, as its fault advises; also after a restart of ingress."""
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic)
    archive(config)
    with Ingress(config) as ingress:
        assert only(ingress.run()).state is State.IN_STEP
        for number in range(2):
            recreate_topic(cluster, topic)
            produce(cluster, topic, numbered(10, first=100 * number))
            archive(config)
            if number:
                assert only(ingress.run()).state is State.FAULTED
                delete_topic(cluster, topic + SUFFIX)
            assert only(ingress.run()).state is State.IN_STEP
            assert only(ingress.run()).state is State.IN_STEP
            assert_mirrored(cluster, topic)
    produce(cluster, topic, numbered(5))
    assert only(carry(config)).state is State.IN_STEP


def test_promote_names_what_ingress_has_not_begun_with(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    late = f"{topic}-late"
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(10))
    carry(link_config(cluster, tmp_path / "archive", topic))
    create_topic(cluster, late)
    produce(cluster, late, numbered(7))
    both = link_config(cluster, tmp_path / "archive", topic, late)
    archive(both)
    report = promote(both)
    assert (report.missing, report.exit_code) == (7, 3)
    assert [(each.source, each.lag_records) for each in report.partitions] == [(topic, 0), (late, 7)]
    assert "ingress has not begun with it" in report.doubts[0]


def test_verify_finds_what_is_not_as_in_the_archive(
    cluster: Cluster, tmp_path: Path, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic)
    command = LinkCommand(cluster, tmp_path / "archive", capsys, topic)
    produce(cluster, topic, numbered(100))
    archive(config)
    take_in(config)
    produce(cluster, topic, numbered(10, first=100))
    archive(config)
    with comparing_without_spark():
        (found,) = command.json("replicate", "verify")["partitions"]
        assert (found["equal"], found["source_records"]) == (True, 100), "the ten that have not arrived do not count"
        unknown = command.json("replicate", "verify", "--topic", f"{topic}s", exits=3)
        assert unknown["unmatched"] == [f"{topic}s"], "a named topic that was not compared is never proven"
        produce(cluster, topic + SUFFIX, numbered(10, first=500))
        command.json("replicate", "verify", exits=3)
        command.json("replicate", "verify", "--range", f"{topic}:0:20..90")
        command.json("replicate", "verify", "--range", f"{topic}:7:20..90", exits=2)


def test_verify_does_not_miss_what_was_pruned_since_it_was_mirrored(
    cluster: Cluster, tmp_path: Path, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic)
    for number in range(2):
        produce(cluster, topic, numbered(50, first=50 * number))
        carry(config)
    policy = SegmentPolicy(topic_bytes_max=1)
    pruned = prune_archive(
        open_for_writing(str(tmp_path / "archive")), PruneRequest(segments=policy, runs=RunPolicy()), apply=True
    )
    assert pruned.going.records == 50
    command = LinkCommand(cluster, tmp_path / "archive", capsys, topic)
    with comparing_without_spark():
        (found,) = command.json("replicate", "verify")["partitions"]
    assert (found["equal"], found["source_records"]) == (True, 50)


def test_verify_is_right_while_both_sides_go_on(
    cluster: Cluster, tmp_path: Path, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic)
    command = LinkCommand(cluster, tmp_path / "archive", capsys, topic)
    produce(cluster, topic, numbered(100))
    carry(config)
    grown = []

    def growing(*arguments: Any, **more: Any) -> Any:
        # Between the moment at which `verify` has looked where both sides end, and its reading.
        produce(cluster, topic, numbered(10, first=offsets(cluster, topic)[1]))
        with comparing_without_spark():  # the tasks of `carry` do not grow anything
            carry(config)
        grown.append(offsets(cluster, topic + SUFFIX)[1])
        return run_here(*arguments, **more)

    with comparing_without_spark(growing):
        (found,) = command.json("replicate", "verify")["partitions"]
    assert (found["equal"], found["source_records"]) == (True, 100)
    assert grown[0] == 110
    assert_mirrored(cluster, topic)


def test_one_archive_feeds_any_number_of_destinations(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    create_topic(cluster, topic, partitions=2)
    links = [
        link_config(cluster, tmp_path / "archive", topic, link=f"{name}-{topic}", rename=(f"{topic}={topic}.{name}",))
        for name in ("west", "east")
    ]
    for turn in range(2):
        for partition in range(2):
            produce(cluster, topic, numbered(10, first=10 * turn), partition=partition)
        archive(links[0])
        for link in links[: 2 - turn]:  # in the second turn one of them is left behind
            assert {each.state for each in take_in(link).partitions} == {State.IN_STEP}
    take_in(links[1])
    for name in ("west", "east"):
        for partition in range(2):
            assert log_of(cluster, f"{topic}.{name}", partition) == log_of(cluster, topic, partition)


@pytest.mark.usefixtures("_no_heartbeat_is_stale")
def test_promoting_ends_the_link_sets_groups_and_makes_the_topic_an_ordinary_one(
    cluster: Cluster, tmp_path: Path, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    group = f"group-{topic}"
    create_topic(cluster, topic, config={"retention.ms": "86400000"})
    config = link_config(cluster, tmp_path / "archive", topic)
    command = LinkCommand(cluster, tmp_path / "archive", capsys, topic)
    produce(cluster, topic, numbered(100))
    put(cluster, group, {(topic, 0): 40})
    archive(config)
    take_in(config)
    report = command.json("replicate", "promote", "--groups", group)
    assert (report["missing"], report["fenced"], report["groups"]) == (0, True, 1)
    assert report["partitions"][0]["end"] == 100
    assert stand(cluster, group)[topic + SUFFIX, 0] == 40
    assert configs_of(cluster, topic + SUFFIX) == {"retention.ms": "86400000"}
    assert offsets(cluster, topic + SUFFIX) == (0, 101), "one marker, which no consumer sees"
    assert produce(cluster, topic + SUFFIX, numbered(1)) == [101]
    produce(cluster, topic, numbered(10, first=100))
    archive(config)
    wanted = ("promoted", 100, 10)
    assert _state_end_and_lag(command.json("replicate", "ingress", "--once")["report"]) == wanted
    assert offsets(cluster, topic + SUFFIX) == (0, 102)
    produce(cluster, topic + SUFFIX, numbered(20))
    assert _state_end_and_lag(command.json("replicate", "status")) == wanted, "what others write arrives from nowhere"
    command("replicate", "resume", exits=5)
    # Brokers forget committed offsets after some days.
    with cluster.admin() as admin:
        admin.delete_groups([Link(name=f"link-{topic}").control_id])
    assert _state_end_and_lag(command.json("replicate", "status")) == wanted
    assert _state_end_and_lag(command.json("replicate", "ingress", "--once")["report"]) == wanted
    assert configs_of(cluster, topic + SUFFIX) == {"retention.ms": "86400000"}


def _state_end_and_lag(report: dict[str, Any]) -> tuple[str, int, int]:
    (found,) = report["partitions"]
    return found["state"], found["end"], found["lag_records"]


def test_records_are_never_mirrored_back_to_where_they_come_from(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    """The second link mirrors the mirror: into the cluster that the records came from in the first place."""
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "there", topic)
    produce(cluster, topic, numbered(10))
    archive(config)
    take_in(config)
    back = link_config(cluster, tmp_path / "back", topic + SUFFIX)
    archive(back)
    report = take_in(back)
    assert only(report).state is State.OWN
    assert report.appended == 0
    assert report.exit_code == 0


def test_a_chain_of_exact_links_has_every_record_once_at_the_first_sources_offsets(
    cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    """Three clusters in one: only their ids, which tell where records have been, are those of three."""
    create_topic(cluster, topic)
    first, second = (topic, f"{topic}{SUFFIX}")
    one, two = link_config(cluster, tmp_path / "one", first), link_config(cluster, tmp_path / "two", second)
    back = link_config(cluster, tmp_path / "back", second + SUFFIX)
    for number in range(3):
        produce(cluster, topic, numbered(30, first=100 * number), batch_size=200)
        produce_transaction(cluster, topic, numbered(5), transactional_id=topic, commit=number == 1)
        carry(one)
        with patch.object(LinkView, "here", lambda _: "cluster C"):
            assert only(carry(two)).state is State.IN_STEP
            # The last link brings nothing twice, whoever repeats it.
            assert take_in(two).appended == 0
    assert offsets(cluster, second + SUFFIX) == offsets(cluster, topic) == (0, 108)
    aborted = {*range(30, 35), *range(102, 107)}
    wanted = {at: each for at, each in log_of(cluster, topic).items() if at not in aborted}
    assert log_of(cluster, second + SUFFIX) == wanted
    archive(back)
    assert only(take_in(back)).state is State.OWN, "the circle ends at the cluster that it began with"


def test_failing_back_continues_the_old_source_at_the_same_offsets(
    cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    create_topic(cluster, topic)
    there = link_config(cluster, tmp_path / "there", topic)
    produce(cluster, topic, numbered(20), batch_size=200)
    archive(there)
    take_in(there)
    promote(there)
    produce(cluster, topic + SUFFIX, numbered(15, first=100), batch_size=200)
    rename = (f"{topic}{SUFFIX}={topic}",)
    back = link_config(cluster, tmp_path / "back", topic + SUFFIX, rename=rename)
    archive(back)
    assert only(take_in(back)).state is State.FAULTED, "not without an order"
    with comparing_without_spark():
        report = fail_back(back)
    assert report.ready
    assert [(each.promoted_at, each.new, each.diverged) for each in report.partitions] == [(20, 16, None)]
    assert only(take_in(back)).state is State.IN_STEP
    assert only(take_in(back)).state is State.IN_STEP
    assert log_of(cluster, topic) == log_of(cluster, topic + SUFFIX)
    assert offsets(cluster, topic) == offsets(cluster, topic + SUFFIX) == (0, 36)


def test_failing_back_does_not_mind_compaction_and_times_of_append(
    cluster: Cluster, tmp_path: Path, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The old source was compacted after its records had arrived, and gave them their times, which mirrors keep."""
    create_topic(cluster, topic, config={"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"})
    there = link_config(cluster, tmp_path / "there", topic, configs={"cleanup.policy": "delete"})
    produce(cluster, topic, numbered(20, keys=6))
    carry(there)
    compact(cluster, topic)
    carry(there)
    with comparing_without_spark():
        assert LinkCommand(cluster, tmp_path / "there", capsys, topic).json("replicate", "verify")["equal"]
    promote(there)
    produce(cluster, topic + SUFFIX, numbered(5, first=100, keys=6))
    back = link_config(cluster, tmp_path / "back", topic + SUFFIX, rename=(f"{topic}{SUFFIX}={topic}",))
    archive(back)
    with comparing_without_spark():
        report = fail_back(back)
    assert (report.ready, report.differences) == (True, ())
    told = " ".join(report.notes)
    assert "14 records of the target: the last record of each key counts" in told
    assert "the type of timestamps is not compared" in told
    assert only(take_in(back)).state is State.IN_STEP


def test_failing_back_names_the_records_that_differ(
    cluster: Cluster, tmp_path: Path, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic)
    there = link_config(cluster, tmp_path / "there", topic)
    produce(cluster, topic, numbered(20))
    carry(there)
    promote(there)
    recreate_topic(cluster, topic)
    produce(cluster, topic, [*numbered(19), *numbered(1, first=500)])
    back = link_config(cluster, tmp_path / "back", topic + SUFFIX, rename=(f"{topic}{SUFFIX}={topic}",))
    archive(back)
    with comparing_without_spark():
        report = fail_back(back)
    assert (report.ready, report.equal) == (False, False)
    assert {(each.target_offset, each.field) for each in report.differences} >= {(0, "timestamp")}
    print_ways_back(report)
    assert f"{topic}-0 offset 0: timestamp" in capsys.readouterr().out


def test_failing_back_names_what_diverged_and_changes_nothing(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    create_topic(cluster, topic)
    there = link_config(cluster, tmp_path / "there", topic)
    produce(cluster, topic, numbered(20))
    archive(there)
    take_in(there)
    produce(cluster, topic, numbered(5, first=20))  # these never arrive
    promote(there)
    back = link_config(cluster, tmp_path / "back", topic + SUFFIX, rename=(f"{topic}{SUFFIX}={topic}",))
    archive(back)
    report = fail_back(back)
    assert (report.ready, report.exit_code) == (False, 5)
    assert report.partitions[0].diverged == (20, 25)
    assert "the offsets 20 to 24 never arrived" in (report.partitions[0].why or "")
    assert only(take_in(back)).state is State.FAULTED
    assert offsets(cluster, topic) == (0, 25)
