"""Egress into a tree: the original's limits and its group, and what a killed process leaves behind."""

from __future__ import annotations

import random
import signal
import subprocess
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest
from kafka import KafkaConsumer

from maxbrod.backup.foreign import ForeignBackup
from maxbrod.config import Config, KafkaConfig
from maxbrod.errors import EXIT_DONE, EXIT_INCOMPLETE, EXIT_REFUSED, RefusedError, UnavailableError, UsageError
from maxbrod.kafka.admin import delete_records
from maxbrod.kafka.fetch.ranges import read_range
from maxbrod.kafka.groups import commit_offsets
from maxbrod.kafka.state.cluster_state import CommittedOffset
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.layouts.foreign import WriteOptions
from maxbrod.layouts.parquet import survey as surveying
from maxbrod.layouts.parquet import writer
from maxbrod.layouts.parquet.format import parse_name
from maxbrod.layouts.parquet.survey import LAYOUT
from maxbrod.model import TopicPartition
from maxbrod.replicate.egress import limits_of
from maxbrod.replicate.metrics import TreeEgressCollector, serving
from maxbrod.replicate.options import EgressTreeOptions, ReplicateOptions
from maxbrod.replicate.seed.egress import EgressGroup, TreeEgress
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce, produce_transaction
from maxbrod.storage.stores import open_storage
from maxbrod.transfer import task
from support.parquet_trees import rows
from support.processes import environment, program
from support.seed_trees import KEPT, REGION, Link, committed, egress_config, interval, ranges, write_segments
from support.sparkless import run_here, without_spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maxbrod.sandbox.cluster import Cluster


class KilledError(BaseException):
    """Ends the work where it is raised; nothing of ours handles it."""


def test_either_tool_continues_where_the_other_one_ended(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """The original leaves segments, an offset without metadata, and no facts about what it wrote."""
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(25))
    config = egress_config(cluster, tmp_path, topic, roll_records=10)
    assert write_segments(config).exit_code == EXIT_DONE
    assert ranges(tmp_path, topic) == [(0, 9), (10, 19), (20, 24)]
    assert committed(config)[0].offset == 25  # the original would continue here
    produce(cluster, topic, numbered(10, first=25))
    storage = open_storage(str(tmp_path))
    link = Link(cluster, topic, tmp_path)
    options = WriteOptions(extra={"region": REGION})
    LAYOUT.write(storage, link.where(), [rows(5, start=25)], options, survey=LAYOUT.survey(storage))
    _commit(config, topic, 30)
    assert write_segments(config).exit_code == EXIT_DONE
    assert ranges(tmp_path, topic)[3:] == [(25, 29), (30, 34)]
    assert committed(config)[0].offset == 35


def test_an_offset_beyond_the_tree_is_where_the_original_ended(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """Its segments are elsewhere by now, moved or expired. And a tree beyond the offset has a lost commit."""
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(20))
    config = egress_config(cluster, tmp_path, topic)
    _commit(config, topic, 15)
    write_segments(config)
    assert ranges(tmp_path, topic) == [(15, 19)]
    _commit(config, topic, 3)
    produce(cluster, topic, numbered(5))
    write_segments(config)
    assert ranges(tmp_path, topic) == [(15, 19), (20, 24)]
    assert committed(config)[0].offset == 25


def test_records_wait_for_a_limit_of_their_topic(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    slow, fast = f"{topic}-slow", f"{topic}-fast"
    for each in (slow, fast):
        create_topic(cluster, each)
        produce(cluster, each, numbered(5))
    config = egress_config(cluster, tmp_path, slow, fast, roll_age=3600.0, topic_limits=(f"{fast}:records=5,age=2h",))
    with TreeEgress(config) as egress:
        waiting = egress.waiting()
        assert interval(egress, waiting).records == 5
        assert (ranges(tmp_path, slow), ranges(tmp_path, fast)) == ([], [(0, 4)])
        produce(cluster, fast, numbered(4))
        assert interval(egress, waiting).records == 0
        assert interval(egress).records == 9  # as a stop does
    assert (ranges(tmp_path, slow), ranges(tmp_path, fast)) == ([(0, 4)], [(0, 4), (5, 8)])


def test_limits_of_a_topic_replace_those_of_all() -> None:
    common, own = limits_of(EgressTreeOptions(topic_limits=("a:bytes=1MiB", "b:records=7,age=30s")))
    assert (common.records, common.bytes, common.age_ms) == (1_000_000, 100 << 20, 300_000)
    assert (own["a"].records, own["a"].bytes, own["a"].age_ms) == (1_000_000, 1 << 20, 300_000)
    assert (own["b"].records, own["b"].bytes, own["b"].age_ms) == (7, 100 << 20, 30_000)


def test_the_native_egress_and_that_of_trees_have_the_same_limits() -> None:
    words = ("a:bytes=1MiB", "b:records=7,age=0")
    assert limits_of(ReplicateOptions(topic_limits=words)) == limits_of(EgressTreeOptions(topic_limits=words))
    assert limits_of(ReplicateOptions(topic_limits=words))[1]["b"].age_ms == 0, "at every interval"


@pytest.mark.parametrize("words", [("a",), ("a:",), (":records=1",), ("a:size=1",), ("a:records=0",), ("a:age=x",)])
def test_wrong_limits_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="limit"):
        limits_of(EgressTreeOptions(topic_limits=words))
    with pytest.raises(UsageError, match="twice"):
        limits_of(EgressTreeOptions(topic_limits=("a:records=1", "a:bytes=1")))


def test_an_egress_that_was_replaced_writes_nothing_more(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(5))
    config = egress_config(cluster, tmp_path, topic)
    with TreeEgress(config) as first, TreeEgress(config) as second:
        interval(first)
        assert interval(second).records == 0
        produce(cluster, topic, numbered(5))
        with pytest.raises(RefusedError, match="another egress has committed"):
            interval(first)
        assert interval(second).records == 5
    assert ranges(tmp_path, topic) == [(0, 4), (5, 9)]


def test_an_egress_that_was_replaced_stops_at_its_next_interval_though_the_tree_is_empty(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """Its records wait for a limit, so that neither process has written anything yet."""
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(5))
    config = egress_config(cluster, tmp_path, topic, roll_age=3600.0)
    with TreeEgress(config) as first, TreeEgress(config) as second:
        assert interval(first, first.waiting()).records == 0
        assert committed(config)[0].offset == 0, "where the original would begin, too"
        assert interval(second, second.waiting()).records == 0
        with pytest.raises(RefusedError, match="another egress has committed") as caught:
            interval(first, first.waiting())
        assert caught.value.exit_code == EXIT_REFUSED
        assert interval(second).records == 5
    assert ranges(tmp_path, topic) == [(0, 4)]


def test_markers_at_the_end_of_a_log_are_no_lag_on_either_side(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(5))
    with TreeEgress(egress_config(cluster, tmp_path, topic)) as egress:
        interval(egress)
        for _ in range(2):
            # Each leaves records that nobody sees, and a marker.
            produce_transaction(cluster, topic, numbered(3), transactional_id=topic, commit=False)
            interval(egress)
            assert egress.lags == {topic: 0}, "right after they were read"
            report = interval(egress)
            assert (egress.lags, [each.waiting for each in report.topics]) == ({topic: 0}, [0])
            assert egress.recovery_point_ms == report.started_at_ms
        produce_transaction(cluster, topic, numbered(3), transactional_id=topic, commit=False)
        interval(egress, egress.waiting())
        assert egress.lags == {topic: 4}, "what was not read yet may have records"
        interval(egress)
    link = Link(cluster, topic, tmp_path).created()
    (partition,) = link.run().partitions
    assert (partition.state, partition.lag_offsets) == ("in step", 0)


def test_an_egress_is_refused_while_the_original_runs(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(5))
    config = egress_config(cluster, tmp_path, topic)
    write_segments(config)
    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap, group_id=config.egress_tree.group, enable_auto_commit=False
    )
    try:
        consumer.subscribe([topic])
        wait_for("the member", lambda: bool(consumer.poll(timeout_ms=200) or consumer.assignment()), timeout_s=60)
        with pytest.raises(RefusedError, match="the group has members"):
            write_segments(config)
    finally:
        consumer.close()


def test_following_opens_only_new_segments_and_reads_markers_once(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(30))
    opened, jobs = Counter[str](), Counter[str]()
    monkeypatch.setattr(surveying, "open_found", _counted(surveying.open_found, opened))
    with TreeEgress(egress_config(cluster, tmp_path, topic, roll_records=10)) as egress:
        interval(egress)
        assert opened.total() == 3
        produce_transaction(cluster, topic, numbered(5), transactional_id=topic, commit=False)
        with without_spark(_counted(run_here, jobs)):
            for _ in range(3):
                egress.run()
        assert (opened.total(), jobs.total()) == (3, 1)
        produce(cluster, topic, numbered(4))
        interval(egress)
        assert opened.total() == 4
    assert ranges(tmp_path, topic)[-1] == (36, 39)


def test_a_partition_that_cannot_be_written_holds_up_no_other(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All partitions of the original share a loop, which one of them can block."""
    create_topic(cluster, topic, partitions=2)
    for partition in (0, 1):
        produce(cluster, topic, numbered(5), partition=partition)
    real = writer._write_segment

    def fail_for_0(storage: Any, footer: Any, *given: Any) -> Any:
        if footer.name.where.partition == 0:
            raise UnavailableError("the store does not answer")
        return real(storage, footer, *given)

    config = egress_config(cluster, tmp_path, topic)
    with TreeEgress(config) as egress:
        with monkeypatch.context() as patch:
            patch.setattr(writer, "_write_segment", fail_for_0)
            assert interval(egress).records == 5
        assert (ranges(tmp_path, topic, 0), ranges(tmp_path, topic, 1)) == ([], [(0, 4)])
        assert {partition: each.offset for partition, each in committed(config).items()} == {0: 0, 1: 5}
        assert interval(egress).records == 5
        served = serving(TreeEgressCollector(egress), 0, "127.0.0.1")
        with served as port, urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
    assert ranges(tmp_path, topic, 0) == [(0, 4)]
    for name, partition, count in (
        ("messages_written_total", 1, 5.0),
        ("segments_written_total", 0, 1.0),
        ("segments_rewinded_total", 0, 1.0),
    ):
        labels = f'{{partition="{partition}",region="{REGION}",topic="{topic}"}}'
        assert f"maxbrod_egress_{name}{labels} {count}" in text
    assert f'maxbrod_egress_lag_offsets{{topic="{topic}"}} 0.0' in text


STEPS = [(writer, "_write_segment"), (ForeignBackup, "_publish"), (EgressGroup, "commit")]


def test_an_egress_killed_after_any_step_loses_and_doubles_nothing(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the segments there are holes, which cost no wait although the killed process recorded none of them."""
    create_topic(cluster, topic)
    link = Link(cluster, topic, tmp_path).created()
    config = egress_config(cluster, tmp_path, topic, roll_records=4)
    for number, (owner, step) in enumerate(STEPS * 2):
        produce_transaction(cluster, topic, numbered(6, first=100 * number), transactional_id=topic)
        produce_transaction(cluster, topic, numbered(3), transactional_id=topic, commit=False)
        with monkeypatch.context() as patch:
            patch.setattr(owner, step, _killed(getattr(owner, step)))
            with pytest.raises(KilledError):
                write_segments(config)
    assert write_segments(config).exit_code == EXIT_DONE
    found = ranges(tmp_path, topic)
    assert all(before[1] < after[0] for before, after in pairwise(found))
    report = link.run()
    assert (report.exit_code, report.records, report.partitions[0].lost) == (EXIT_DONE, 36, ())
    assert report.partitions[0].lag_offsets is not None
    assert link.arrived().to_pylist() == _source(link)
    survey = LAYOUT.survey(open_storage(str(tmp_path)))
    assert not survey.faults
    assert not survey.gaps


@pytest.mark.parametrize("killed", [False, True])
def test_offsets_that_retention_removed_before_they_were_read_are_named_as_lost(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """Also if egress is killed before it has published which offsets they are."""
    create_topic(cluster, topic)
    link = Link(cluster, topic, tmp_path, lost_segment_timeout=3600.0).created()
    config = egress_config(cluster, tmp_path, topic)
    produce(cluster, topic, numbered(10))
    write_segments(config)
    produce(cluster, topic, numbered(20, first=10))
    _delete_before(cluster, topic, 15)
    if killed:
        with monkeypatch.context() as patch:
            patch.setattr(ForeignBackup, "_publish", _killed_before)
            with pytest.raises(KilledError):
                write_segments(config)
    else:
        (notice,) = write_segments(config).notices
        assert (notice.kind, notice.first_offset, notice.end_offset) == ("retention", 10, 15)
    report = link.run()
    assert report.exit_code == EXIT_INCOMPLETE
    assert report.partitions[0].lost == report.partitions[0].deleted == ((10, 14),)
    assert _numbers(link) == [*range(10), *range(15, 30)]
    write_segments(config)
    (gap,) = LAYOUT.survey(open_storage(str(tmp_path))).gaps
    assert (gap.base_offset, gap.end_offset, gap.reason) == (10, 15, "retention")


def test_no_segment_spans_what_retention_removed_while_it_was_read(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(cluster, topic)
    link = Link(cluster, topic, tmp_path, lost_segment_timeout=3600.0).created()
    produce(cluster, topic, numbered(1000), batch_size=400)

    def overtaken(*words: Any, **more: Any) -> Iterator[Any]:
        for chunk in read_range(*words, **more, fetch_bytes=2000):
            yield chunk
            _delete_before(cluster, topic, 900)

    monkeypatch.setattr(task, "read_range", overtaken)
    write_segments(egress_config(cluster, tmp_path, topic))
    report = link.run()
    ((first, last),) = report.partitions[0].lost
    assert 0 < first < last == 899
    assert report.partitions[0].deleted == report.partitions[0].lost
    assert _numbers(link) == [*range(first), *range(900, 1000)]


def _numbers(link: Link) -> list[int]:
    return [int(value.removeprefix(b"value-")) for value in link.arrived().column("value").to_pylist()]


def _delete_before(cluster: Cluster, topic: str, offset: int) -> None:
    with KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap)) as client:
        assert not delete_records(client, {TopicPartition(topic=topic, partition=0): offset})[1]


def _killed_before(*_: object) -> None:
    raise KilledError


def test_a_tree_copied_in_any_order_arrives_record_by_record_though_both_sides_are_killed(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """Objects arrive late, twice, half, and an old list of them over a new one."""
    create_topic(cluster, topic)
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    link = Link(cluster, topic, there, batch_size=7, lost_segment_timeout=3600.0).created()
    config = egress_config(cluster, here, topic, roll_records=20)
    chance = random.Random(16)
    sides = {"egress": config.model_dump_json(), "ingress": link.config.model_dump_json()}
    for number, killed in enumerate(["egress", "ingress", None]):
        produce_transaction(cluster, topic, numbered(60, first=1000 * number), transactional_id=topic)
        produce_transaction(cluster, topic, numbered(5), transactional_id=topic, commit=False)
        if killed == "egress":
            _kill_itself(killed, sides[killed], after=2)
        write_segments(config)
        _copy(here, there, chance, some=True)
        if killed == "ingress":
            _kill_itself(killed, sides[killed], after=3)
        link.run()
    _copy(here, there, chance, some=False)
    report = link.run()
    assert (report.exit_code, report.partitions[0].lost) == (EXIT_DONE, ())
    expected = _source(link)
    assert len(expected) == 180
    assert link.arrived().to_pylist() == expected
    found = ranges(here, topic)
    assert all(before[1] < after[0] for before, after in pairwise(found))


def _copy(here: Path, there: Path, chance: random.Random, *, some: bool) -> None:
    """Copy a tree object by object in any order; only some of it, one of them half, or all."""
    paths = sorted(each.relative_to(here) for each in here.rglob("*") if each.is_file())
    chance.shuffle(paths)
    halves = 1
    for path in paths:
        if some and chance.random() < 0.4:
            continue
        target = there / path
        target.parent.mkdir(parents=True, exist_ok=True)
        data = (here / path).read_bytes()
        if some and halves and parse_name(str(path)) is not None and not target.exists():
            data, halves = data[: len(data) // 2], 0
        target.write_bytes(data)


def _kill_itself(side: str, config: str, *, after: int) -> None:
    """Run one side in a process of its own, which kills itself."""
    done = subprocess.run(
        program("dying_seed", side, config, after),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def _counted(real: Callable[..., Any], calls: Counter[str]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        calls["calls"] += 1
        return real(*arguments, **named)

    return call


def _killed(real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        real(*arguments, **named)
        raise KilledError

    return call


def _commit(config: Config, topic: str, offset: int) -> None:
    """As the original commits."""
    assert config.kafka is not None
    wanted = CommittedOffset(topic=topic, topic_id=None, partition=0, offset=offset, leader_epoch=-1, metadata="")
    with KafkaClient(config.kafka) as client:
        assert all(each.done for each in commit_offsets(client, config.egress_tree.group, [wanted]).values())


def _source(link: Link) -> list[dict[str, Any]]:
    """The committed records of the source."""
    found: list[dict[str, Any]] = link.arrived(topic=link.topic).select(list(KEPT)).to_pylist()
    return found
