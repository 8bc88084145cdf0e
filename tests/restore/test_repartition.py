"""A topic restored with another number of partitions: every key where Kafka's Java client looks for it, in order."""

from __future__ import annotations

import json
import subprocess
import uuid
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from maxbrod.archive.renames import parse_rename
from maxbrod.batch import rewrite
from maxbrod.errors import RefusedError
from maxbrod.kafka.produce.appends import Batch, Feed
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.model import TopicPartition
from maxbrod.restore.plan.request import OffsetRange, OffsetsMode, RestoreRequest
from maxbrod.restore.repartition import split as repartition_split
from maxbrod.restore.repartition import task as repartition_task
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce, produce_transaction
from support.backups import back_up, config_of
from support.ledger import NOW_MS, Ledger, dated
from support.plain_log import Record
from support.processes import environment, program
from support.restore_faults import KEEP, CrashError, restore
from support.restore_oracle import assert_partition, assert_shared_out, java_partition, log_of
from support.restores import Command, put, stand
from support.sparkless import without_spark

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from maxbrod.config import Config
    from maxbrod.sandbox.cluster import Cluster

pytestmark = pytest.mark.full

SOURCES = 3


@dataclass(frozen=True)
class Archived:
    """What is in an archive: source partition to offset to record."""

    topic: str
    config: Config
    records: Mapping[int, Mapping[int, Record]]


@pytest.fixture(scope="module")
def archived(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Archived:
    """Every codec, null and empty keys, times out of order, committed and aborted transactions, several runs.

    Tests share it, and restore to topics of their own.
    """
    topic = f"archived-{uuid.uuid4().hex[:12]}"
    create_topic(cluster, topic, partitions=SOURCES, config=KEEP)
    config = config_of(cluster, tmp_path_factory.mktemp("archive"), topic)
    ledger = Ledger()
    for count in (120, 60):
        for partition in range(SOURCES):
            ledger.write(cluster, topic, count, partition=partition, batch=25)
        assert back_up(config).complete
    committed = dated(numbered(5))
    at = produce_transaction(cluster, topic, committed, transactional_id=f"good-{topic}", partition=1)
    records = [Record(each.timestamp_ms or 0, each.key, each.value) for each in committed]
    ledger.note(cluster, topic, at, records, partition=1)
    produce_transaction(cluster, topic, dated(numbered(7)), transactional_id=f"bad-{topic}", commit=False, partition=1)
    ledger.write(cluster, topic, 30, partition=1)
    assert back_up(config).complete
    return Archived(topic, config, {each: dict(ledger.of(cluster, topic, each)) for each in range(SOURCES)})


def request(archived: Archived, target: str, count: int | None, **more: Any) -> RestoreRequest:
    return RestoreRequest(rename=parse_rename([f"{archived.topic}={target}"]), partition_count=count, **more)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_key_goes_where_java_sends_it_and_keeps_its_order(
    cluster: Cluster, topic: str, archived: Archived, count: int
) -> None:
    report = restore(archived.config, request(archived, topic, count))
    assert (report.exit_code, report.records) == (0, sum(map(len, archived.records.values())))
    assert_shared_out(cluster, topic, archived.records, count)


def crash_after(answers: int) -> Any:
    """The worker dies after that many acknowledgements; requests in flight may or may not arrive."""

    def dying(*arguments: Any, **options: Any) -> Iterator[Any]:
        for number, acknowledged in enumerate(produce_all(*arguments, **options)):
            if number == answers:
                raise CrashError
            yield acknowledged

    return patch.object(repartition_task, "produce_all", dying)


@pytest.fixture
def small_rounds() -> Iterator[None]:
    """So that there are batches enough to die between."""
    with (
        patch.object(rewrite, "PORTION_BYTES", 1),
        patch.object(repartition_split, "ROUND_BYTES", 1000),
        patch.object(repartition_task, "WAITING_BYTES_MAX", 4000),
    ):
        yield


@pytest.mark.usefixtures("small_rounds")
def test_after_a_crash_anywhere_the_same_command_goes_on_without_loss_or_repetition(
    cluster: Cluster, topic: str, archived: Archived
) -> None:
    with crash_after(3), pytest.raises(CrashError):
        restore(archived.config, request(archived, topic, 4))
    report = None
    for answers in (0, 4, 1, 6):
        # What was under way at the crash may have come to its end, and little be left.
        with crash_after(answers), suppress(CrashError):
            report = report or restore(archived.config, request(archived, topic, 4))
    report = report or restore(archived.config, request(archived, topic, 4))
    assert (report.exit_code, report.resumed) == (0, True)
    assert_shared_out(cluster, topic, archived.records, 4)


def test_killed_between_produce_and_acknowledgement_it_goes_on_exactly_where_the_target_stands(
    cluster: Cluster, topic: str, archived: Archived
) -> None:
    settings = {
        "count": 4,
        "rename": f"{archived.topic}={topic}",
        "config": config_of(cluster, archived.config.archive).model_dump(mode="json"),
    }
    lines = [json.dumps(settings), *map(str, (2, 0, 5, 0, -1, -1))]
    told = subprocess.run(
        program("dying_repartition"),
        env=environment(),
        input="\n".join(lines),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    first, second, *others = map(json.loads, told.splitlines())
    assert first == second == {"killed": True}
    # The last one but one may have met what a broker took long for, and was refused then.
    (done,) = [each for each in others if each.get("exit_code") == 0]
    assert done["resumed"]
    assert_shared_out(cluster, topic, archived.records, 4)


@pytest.mark.usefixtures("small_rounds")
def test_a_foreign_write_into_any_partition_is_refused(cluster: Cluster, topic: str, archived: Archived) -> None:
    with crash_after(5), pytest.raises(CrashError):
        restore(archived.config, request(archived, topic, 4))
    produce(cluster, topic, numbered(1), partition=2)
    report = restore(archived.config, request(archived, topic, 4))
    assert report.exit_code == RefusedError.exit_code
    (failure,) = [each.failure for each in report.partitions if each.failure is not None]
    assert failure["object_name"] == f"{topic}-2"
    for each in (0, 1, 3):  # the first of them is the same task's
        assert_partition(cluster, topic, archived.records, each, 4)


@dataclass
class Delayed:
    """Requests of a worker that has died: brokers have not seen them yet."""

    feeds: list[Feed] = field(default_factory=list)

    def withheld(self) -> Any:
        def dying(_: KafkaClient, feeds: Iterable[Feed], **__: Any) -> Iterator[Any]:
            for feed in feeds:
                batch = next(iter(feed.appends))
                if isinstance(batch, Batch):
                    self.feeds.append(replace(feed, appends=[batch]))
            yield from ()
            raise CrashError

        return patch.object(repartition_task, "produce_all", dying)

    def arriving(self) -> Any:
        """When the next worker has looked at the logs, and before it sends anything."""

        def sending(client: KafkaClient, feeds: Iterable[Feed], **options: Any) -> Iterator[Any]:
            wanted = list(feeds)
            self.arrive(client, {each.where for each in wanted})
            yield from produce_all(client, wanted, **options)

        return patch.object(repartition_task, "produce_all", sending)

    def arrive(self, client: KafkaClient, partitions: set[TopicPartition]) -> None:
        for feed in self.feeds:
            if feed.where in partitions:
                list(produce_all(client, [feed]))


@pytest.mark.usefixtures("small_rounds")
def test_what_a_dead_worker_has_sent_is_not_there_twice_when_it_arrives_late(
    cluster: Cluster, topic: str, archived: Archived
) -> None:
    late = Delayed()
    with late.withheld(), pytest.raises(CrashError):
        restore(archived.config, request(archived, topic, 4))
    assert late.feeds
    with late.arriving():
        report = restore(archived.config, request(archived, topic, 4))
    assert (report.exit_code, report.resumed) == (0, True)
    assert archived.config.kafka is not None
    with KafkaClient(archived.config.kafka) as client, suppress(RefusedError):
        late.arrive(client, {each.where for each in late.feeds})
    assert_shared_out(cluster, topic, archived.records, 4)


def test_times_ranges_and_a_rate_hold_for_other_partitions_too(
    cluster: Cluster, topic: str, archived: Archived
) -> None:
    since, until = NOW_MS - 5 * 10**10, NOW_MS - 10**10
    ranges = tuple(
        OffsetRange(where=TopicPartition(topic=archived.topic, partition=number), first=first, end=150)
        for number, first in ((0, 20), (2, None))
    )
    report = restore(
        archived.config,
        request(archived, topic, 2, since_ms=since, until_ms=until, ranges=ranges, rate_bytes_per_s=10_000_000),
    )
    wanted = {
        number: {
            offset: each
            for offset, each in archived.records[number].items()
            if first <= offset < 150 and since <= each.timestamp_ms < until
        }
        for number, first in ((0, 20), (2, 0))
    }
    assert report.records == sum(map(len, wanted.values())) > 0
    assert_shared_out(cluster, topic, wanted, 2)


def test_records_go_behind_those_of_a_topic_that_has_other_partitions(
    cluster: Cluster, topic: str, archived: Archived
) -> None:
    create_topic(cluster, topic, partitions=2, config=KEEP)
    produce(cluster, topic, dated(numbered(9)), partition=1)
    with pytest.raises(RefusedError, match="2 partitions, the archived topic 3"):
        restore(archived.config, request(archived, topic, None, offsets=OffsetsMode.APPEND))
    with pytest.raises(RefusedError, match="not empty"):
        restore(archived.config, request(archived, topic, 2))
    with pytest.raises(RefusedError, match="offsets cannot be kept"):
        restore(archived.config, request(archived, topic, 2, offsets=OffsetsMode.EXACT))
    report = restore(archived.config, request(archived, topic, 2, offsets=OffsetsMode.APPEND))
    assert report.exit_code == 0
    found = log_of(cluster, topic, 1)
    assert [found[each].value for each in range(9)] == [each.value for each in dated(numbered(9))]
    wanted = sum(java_partition(each, n, 2) == 1 for n, mine in archived.records.items() for each in mine.values())
    assert len(found) == 9 + wanted


def test_a_topic_by_name_gets_its_own_number_of_partitions(
    cluster: Cluster, topic: str, archived: Archived, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command(cluster, archived.config.archive, capsys)
    words = (
        "restore",
        "--rename",
        f"{archived.topic}={topic}",
        "--partition-count",
        "9",
        "--partition-count",
        f"{archived.topic}=2",
    )
    with without_spark():
        assert "3 to 2" in command(*words, "--dry-run")
        planned = command.json(*words, "--dry-run")
        assert (planned["lines"][0]["target_partitions"], planned["lines"][0]["offsets"]) == (2, "append")
        assert command.json(*words)["complete"]
        command("restore", "--partition-count", "nonsense=2", exits=2)
        assert "no topic 'nonsense'" in command.said
    assert_shared_out(cluster, topic, archived.records, 2)


@pytest.mark.parametrize("count", [1, 4])
def test_groups_skip_nothing_and_the_report_counts_what_they_see_twice(
    cluster: Cluster, topic: str, archived: Archived, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    stood = {0: 30, 1: 190, 2: 100}
    put(cluster, topic, {(archived.topic, number): offset for number, offset in stood.items()})
    put(cluster, f"{topic}-partly", {(archived.topic, 1): 5})
    assert back_up(archived.config).complete
    command = Command(cluster, archived.config.archive, capsys)
    words = (
        "restore",
        "--rename",
        f"{archived.topic}={topic}",
        "--partition-count",
        str(count),
        "--groups",
        f"{topic}*",
    )
    with without_spark():
        report = command.json(*words)
        later = command.json("groups", "plan", "--restore", report["restore_id"])
    assert sorted(later["positions"], key=str) == sorted(report["groups"], key=str)
    came = {record: (n, offset) for n, mine in archived.records.items() for offset, record in mine.items()}
    total = 0
    for group_id, committed in ((topic, stood), (f"{topic}-partly", {1: 5})):
        told = {each["partition"]: each for each in report["groups"] if each["group"] == group_id}
        for target in range(count):
            log = log_of(cluster, topic, target)
            done = {at: came[record][1] < committed.get(came[record][0], 0) for at, record in log.items()}
            first = next((at for at, processed in done.items() if not processed), len(log))
            assert stand(cluster, group_id)[topic, target] == told[target]["offset"] == first
            assert told[target]["seen_twice_max"] == sum(processed for at, processed in done.items() if at > first)
            total += told[target]["seen_twice_max"]
    assert report["seen_twice_max"] == total > 0


@pytest.mark.usefixtures("spark")
def test_on_spark_several_tasks_share_the_partitions(
    cluster: Cluster, topic: str, archived: Archived, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command(cluster, archived.config.archive, capsys)
    assert command.json("restore", "--rename", f"{archived.topic}={topic}", "--partition-count", "2")["complete"]
    assert_shared_out(cluster, topic, archived.records, 2)
    words = ("compare", "--topic", archived.topic, "--rename", f"{archived.topic}={topic}")
    assert command.json(*words)["equal"], "as a set, whatever partitions there are"
