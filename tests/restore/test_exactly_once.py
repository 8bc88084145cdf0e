"""What a restore puts into a cluster: every committed record, once, in order, where it should stand."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from maxbrod.errors import RefusedError
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.state.capture import capture
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.model import TopicPartition
from maxbrod.restore import task as restore_task
from maxbrod.restore.plan.obstacles import ObstacleKind
from maxbrod.restore.run import Restore
from maxbrod.sandbox.surgery import compact, delete_records
from maxbrod.sandbox.topics import create_topic, offsets
from maxbrod.sandbox.traffic import numbered, produce
from maxbrod.work.work import Work
from support.backups import back_up, config_of
from support.ledger import NOW_MS, Ledger, dated
from support.restore_faults import KEEP, CrashError, renamed, restore
from support.restore_oracle import log_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.config import Config
    from maxbrod.sandbox.cluster import Cluster
    from support.plain_log import Record


@pytest.fixture
def busy(cluster: Cluster, topic: str) -> dict[int, Record]:
    """A topic with every codec, odd records, committed and aborted transactions; what a consumer would see of it."""
    create_topic(cluster, topic, config=KEEP)
    ledger = Ledger()
    ledger.write(cluster, topic, 300, batch=25, in_a_row=2)
    ledger.transact(cluster, topic, numbered(5), commit=True)
    ledger.transact(cluster, topic, numbered(7), commit=False)
    ledger.write(cluster, topic, 200, batch=25, in_a_row=2)
    return dict(ledger.of(cluster, topic))


@pytest.fixture
def config(cluster: Cluster, topic: str, busy: dict[int, Record], tmp_path: Path) -> Config:
    config = config_of(cluster, tmp_path / "archive", topic)
    assert back_up(config).complete
    return config


def test_with_exact_offsets_every_record_stands_where_it_stood(
    cluster: Cluster, topic: str, config: Config, busy: dict[int, Record]
) -> None:
    report = restore(config, renamed())
    assert (report.exit_code, report.records) == (0, len(busy))
    assert log_of(cluster, f"new-{topic}") == busy
    assert offsets(cluster, f"new-{topic}", 0) == offsets(cluster, topic, 0), "holes at the end, too"


def test_appended_records_close_up_and_keep_their_order(
    cluster: Cluster, topic: str, config: Config, busy: dict[int, Record]
) -> None:
    report = restore(config, renamed("append"))
    assert (report.exit_code, report.records) == (0, len(busy))
    assert list(log_of(cluster, f"new-{topic}").items()) == list(enumerate(busy.values()))


def test_a_log_that_begins_late_begins_there_again(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic, config=KEEP)
    for _ in range(4):
        produce(cluster, topic, dated(numbered(300)))
    delete_records(cluster, topic, before_offset=700)
    config = config_of(cluster, tmp_path / "archive", topic)
    assert back_up(config).complete
    assert restore(config, renamed()).exit_code == 0
    assert offsets(cluster, f"new-{topic}", 0) == offsets(cluster, topic, 0) == (700, 1200)
    new, old = (
        {each: record for each, record in log_of(cluster, name).items() if each >= 700}
        for name in (f"new-{topic}", topic)
    )
    assert new == old


def test_a_log_without_records_begins_and_ends_where_it_did(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic, config=KEEP)
    produce(cluster, topic, dated(numbered(300)))
    delete_records(cluster, topic, before_offset=300)
    config = config_of(cluster, tmp_path / "archive", topic)
    assert back_up(config).complete
    assert restore(config, renamed()).exit_code == 0
    assert offsets(cluster, f"new-{topic}", 0) == offsets(cluster, topic, 0) == (300, 300)


def test_what_compaction_has_left_stands_at_its_own_offsets(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic, config={"cleanup.policy": "compact"})
    for turn in range(5):
        produce(
            cluster, topic, [each._replace(key=b"k%d" % (n % 7)) for n, each in enumerate(dated(numbered(20 + turn)))]
        )
    compact(cluster, topic)
    wanted = log_of(cluster, topic)
    assert len(wanted) < 100
    config = config_of(cluster, tmp_path / "archive", topic)
    assert back_up(config).complete
    report = restore(config, renamed())
    assert report.exit_code == 0, report.partitions[0].failure
    assert {each: log_of(cluster, f"new-{topic}")[each] for each in wanted} == wanted
    assert offsets(cluster, f"new-{topic}", 0)[1] == offsets(cluster, topic, 0)[1]


def crash_after(answers: int) -> Any:
    """The worker dies after that many acknowledgements; requests in flight may or may not arrive."""

    def dying(*arguments: Any, **options: Any) -> Iterator[Any]:
        for number, acknowledged in enumerate(produce_all(*arguments, **options)):
            if number == answers:
                raise CrashError
            yield acknowledged

    return patch.object(restore_task, "produce_all", dying)


@pytest.mark.parametrize("mode", ["exact", "append"])
def test_after_a_crash_anywhere_the_same_command_goes_on_without_loss_or_repetition(
    cluster: Cluster, topic: str, config: Config, busy: dict[int, Record], mode: str
) -> None:
    with crash_after(0), pytest.raises(CrashError):
        restore(config, renamed(mode))
    report = None
    for answers in (0, 1, 0):
        # What was under way at the crash may have come to its end, and little be left.
        with crash_after(answers), suppress(CrashError):
            report = report or restore(config, renamed(mode))
    report = report or restore(config, renamed(mode))
    assert report.exit_code == 0
    found = log_of(cluster, f"new-{topic}")
    assert found == (busy if mode == "exact" else dict(enumerate(busy.values())))


def test_another_command_does_not_take_over_a_topic_that_an_interrupted_restore_holds(
    cluster: Cluster, topic: str, config: Config, busy: dict[int, Record]
) -> None:
    with crash_after(0), pytest.raises(CrashError):
        restore(config, renamed())
    with pytest.raises(RefusedError, match="by another command, has not finished"):
        restore(config, renamed("append"))
    assert restore(config, renamed()).exit_code == 0, "the same command goes on"
    assert log_of(cluster, f"new-{topic}") == busy
    with Restore(Work(config), renamed("append")) as work:
        assert not [each for each in work.plan().obstacles if each.kind is ObstacleKind.HELD], "it is free again"


def test_whoever_goes_on_says_how_fast(config: Config) -> None:
    with crash_after(0), pytest.raises(CrashError):
        restore(config, renamed(rate_bytes_per_s=10**9))
    for rate in (None, 5):
        with Restore(Work(config), renamed(rate_bytes_per_s=rate)) as work:
            assert work.plan().rate_bytes_per_s == rate
    assert restore(config, renamed()).resumed


@pytest.mark.parametrize("mode", ["exact", "append"])
def test_records_that_say_where_they_came_from_are_recognised_after_a_crash(
    cluster: Cluster, topic: str, config: Config, busy: dict[int, Record], mode: str
) -> None:
    request = renamed(mode, provenance=True)
    with crash_after(1), pytest.raises(CrashError):
        restore(config, request)
    report = restore(config, request)
    assert (report.exit_code, report.resumed) == (0, True)
    found = log_of(cluster, f"new-{topic}")
    assert list(found) == (list(busy) if mode == "exact" else list(range(len(busy))))
    for record, (offset, source) in zip(found.values(), busy.items(), strict=True):
        own, told = record.headers[:-6], dict(record.headers[-6:])
        assert record._replace(headers=own) == source
        assert told[b"maxbrod.source.topic"] == topic.encode()
        assert told[b"maxbrod.source.partition"] == b"0"
        assert told[b"maxbrod.source.offset"] == b"%d" % offset
        assert told[b"maxbrod.source.timestamp_ms"] == b"%d" % source.timestamp_ms
        assert told[b"maxbrod.source.cluster_id"] == report.cluster_id.encode(), "it goes back to where it came from"
        assert told[b"maxbrod.restore_id"] == report.restore_id.encode()


@pytest.mark.parametrize("mode", ["exact", "append"])
def test_a_foreign_write_into_the_target_is_refused(cluster: Cluster, topic: str, config: Config, mode: str) -> None:
    with crash_after(3), pytest.raises(CrashError):
        restore(config, renamed(mode))
    produce(cluster, f"new-{topic}", numbered(1))
    report = restore(config, renamed(mode))
    assert report.exit_code == RefusedError.exit_code
    failure = report.partitions[0].failure
    assert failure is not None
    assert failure["object_name"] == str(TopicPartition(topic=f"new-{topic}", partition=0))


def test_a_target_that_is_not_empty_is_refused_before_anything_is_changed(
    cluster: Cluster, topic: str, config: Config
) -> None:
    create_topic(cluster, f"new-{topic}")
    produce(cluster, f"new-{topic}", numbered(1))
    with pytest.raises(RefusedError):
        restore(config, renamed("auto"))
    assert offsets(cluster, f"new-{topic}", 0) == (0, 1)


def test_times_are_cut_by_record_and_right_where_they_are_out_of_order(
    cluster: Cluster, topic: str, config: Config, busy: dict[int, Record]
) -> None:
    since, until = NOW_MS - 5 * 10**10, NOW_MS - 10**10
    wanted = [each for each in busy.values() if since <= each.timestamp_ms < until]
    assert 0 < len(wanted) < len(busy)
    report = restore(config, renamed("append", since_ms=since, until_ms=until))
    assert report.exit_code == 0
    assert list(log_of(cluster, f"new-{topic}").values()) == wanted


def test_a_topic_comes_back_with_its_own_configuration_once_all_is_there(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    own = {"retention.ms": "123456789000", "max.message.bytes": "2000000", "cleanup.policy": "compact"}
    create_topic(cluster, topic, partitions=2, config=own)
    produce(cluster, topic, dated(numbered(20)), partition=1)
    config = config_of(cluster, tmp_path / "archive", topic)
    assert back_up(config).complete
    assert restore(config, renamed()).exit_code == 0
    assert config.kafka is not None
    with KafkaClient(config.kafka) as client:
        state = capture(client).topic(f"new-{topic}")
    assert state is not None
    assert state.configs == own
    assert state.partition_count == 2
