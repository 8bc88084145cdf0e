"""Others write to the target, delete it, slow it down; two restores meet: records never mix, refusals are reported."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from maxbrod.config import Config, KafkaConfig
from maxbrod.errors import EXIT_REFUSED, RefusedError, TopicGoneError
from maxbrod.kafka.admin import set_quotas
from maxbrod.kafka.state.cluster_state import Quota, QuotaEntity
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.connection import Connection
from maxbrod.restore import run as engine
from maxbrod.restore.state import store_plan
from maxbrod.sandbox.topics import create_topic, delete_topic, offsets
from maxbrod.sandbox.traffic import numbered, produce, produce_transaction
from maxbrod.storage.stores import open_storage
from maxbrod.work.work import Work
from support.restore_faults import CrashError, Wire, archive, failure_of, renamed, restore, when_acknowledged
from support.restore_oracle import assert_restored, log_of
from support.sparkless import without_spark

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.restore.plan.plan import RestorePlan
    from maxbrod.sandbox.cluster import Cluster
    from support.plain_log import Record

MODES = pytest.mark.parametrize("mode", ["exact", "append"])


def crash(config: Config, mode: str, *, batch: int) -> None:
    """Before this batch is sent."""
    with Wire("Produce", crash_at=batch).watched(), pytest.raises(CrashError):
        restore(config, renamed(mode))


def assert_refused(config: Config, mode: str, cluster: Cluster, target: str) -> str:
    """The partition reports it, and nothing more is written. Returns the message."""
    before = log_of(cluster, target)
    report = restore(config, renamed(mode))
    assert report.exit_code == EXIT_REFUSED
    failure = failure_of(report.partitions[0])
    assert failure["object_name"] == f"{target}-0"
    assert "offset" in failure
    assert log_of(cluster, target) == before
    assert report.partitions[0].end == offsets(cluster, target)[1], "the report tells where it stands"
    return str(failure["message"])


def assert_whole(cluster: Cluster, topic: str, wanted: dict[int, Record], mode: str) -> None:
    assert_restored(cluster, f"new-{topic}", wanted, base=None if mode == "exact" else 0)


@MODES
def test_what_others_write_between_plan_and_restore_is_never_taken_for_ours(
    cluster: Cluster, topic: str, tmp_path: Path, mode: str
) -> None:
    config, _ = archive(cluster, topic, tmp_path)
    create_topic(cluster, f"new-{topic}")
    look_again = engine.Restore._agree

    def too_late(work: engine.Restore, plan: RestorePlan) -> RestorePlan:
        agreed = look_again(work, plan)
        produce(cluster, f"new-{topic}", numbered(20))
        return agreed

    with patch.object(engine.Restore, "_agree", too_late):
        assert restore(config, renamed(mode)).exit_code == EXIT_REFUSED
    assert offsets(cluster, f"new-{topic}") == (0, 20)
    assert_refused(config, mode, cluster, f"new-{topic}")


@MODES
def test_a_target_that_has_changed_since_it_was_shown_is_not_written_to(
    cluster: Cluster, topic: str, tmp_path: Path, mode: str
) -> None:
    config, _ = archive(cluster, topic, tmp_path)
    create_topic(cluster, f"new-{topic}")
    with without_spark(), engine.Restore(Work(config), renamed(mode)) as work:
        plan = work.plan()
        produce(cluster, f"new-{topic}", numbered(20))
        with pytest.raises(RefusedError):
            work.run(plan)
    assert offsets(cluster, f"new-{topic}") == (0, 20)
    assert not list((tmp_path / "restores").glob("*")), "nothing was begun"


@MODES
def test_what_others_write_while_we_restore_is_noticed(cluster: Cluster, topic: str, tmp_path: Path, mode: str) -> None:
    config, wanted = archive(cluster, topic, tmp_path, partitions=1)
    with when_acknowledged(3, lambda: produce(cluster, f"new-{topic}", numbered(1))):
        report = restore(config, renamed(mode))
    assert report.exit_code == EXIT_REFUSED
    assert failure_of(report.partitions[0])["object_name"] == f"new-{topic}-0"
    (told,) = report.partitions
    assert told.records < len(wanted[0])
    assert told.records == sum(at < told.end for at in (wanted[0] if mode == "exact" else range(200))), "what is there"
    # What was under way may yet arrive; it stays refused.
    assert restore(config, renamed(mode)).exit_code == EXIT_REFUSED


@MODES
def test_a_transaction_of_others_is_never_taken_for_a_batch_of_ours(
    cluster: Cluster, topic: str, tmp_path: Path, mode: str
) -> None:
    config, _ = archive(cluster, topic, tmp_path)
    crash(config, mode, batch=5)
    # With its marker it is as long as the batch that is due.
    produce_transaction(cluster, f"new-{topic}", numbered(19), transactional_id=f"foreign-{topic}")
    assert offsets(cluster, f"new-{topic}")[1] % 20 == 0
    assert_refused(config, mode, cluster, f"new-{topic}")


def test_records_of_others_in_a_hole_are_never_taken_for_the_hole(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    config, (wanted,) = archive(cluster, topic, tmp_path)
    with Wire("WriteTxnMarkers", crash_at=1).watched(), pytest.raises(CrashError):
        restore(config, renamed())
    hole = min(offset for offset in wanted if offset > 99) - 100
    produce(cluster, f"new-{topic}", numbered(hole))
    assert "somebody else" in assert_refused(config, "exact", cluster, f"new-{topic}")


@MODES
def test_what_others_write_behind_a_restore_that_was_killed_is_noticed(
    cluster: Cluster, topic: str, tmp_path: Path, mode: str
) -> None:
    config, _ = archive(cluster, topic, tmp_path)
    with Wire("IncrementalAlterConfigs", crash_at=1).watched(), pytest.raises(CrashError):
        restore(config, renamed(mode))
    produce(cluster, f"new-{topic}", numbered(7))
    assert "somebody else" in assert_refused(config, mode, cluster, f"new-{topic}")
    produce_transaction(cluster, f"new-{topic}", numbered(7), transactional_id=f"foreign-{topic}")
    assert "somebody else" in assert_refused(config, mode, cluster, f"new-{topic}")


@MODES
def test_a_target_that_is_deleted_is_told_and_the_next_time_restored_from_the_start(
    cluster: Cluster, topic: str, tmp_path: Path, mode: str
) -> None:
    config, (wanted,) = archive(cluster, topic, tmp_path)
    with when_acknowledged(2, lambda: delete_topic(cluster, f"new-{topic}")):
        report = restore(config, renamed(mode))
    assert failure_of(report.partitions[0])["error"] == "TopicGoneError"
    assert report.exit_code == EXIT_REFUSED
    assert restore(config, renamed(mode)).exit_code == 0
    assert_whole(cluster, topic, wanted, mode)


@MODES
def test_a_target_that_is_deleted_and_made_by_others_is_never_written_to(
    cluster: Cluster, topic: str, tmp_path: Path, mode: str
) -> None:
    config, (wanted,) = archive(cluster, topic, tmp_path)

    def replace() -> None:
        delete_topic(cluster, f"new-{topic}")
        create_topic(cluster, f"new-{topic}")

    with when_acknowledged(2, replace):
        report = restore(config, renamed(mode))
    assert failure_of(report.partitions[0])["error"] == "TopicGoneError"
    with pytest.raises(TopicGoneError) as caught:
        restore(config, renamed(mode))
    assert "delete the topic" in str(caught.value.hint)
    assert offsets(cluster, f"new-{topic}") == (0, 0)
    delete_topic(cluster, f"new-{topic}")
    assert restore(config, renamed(mode)).exit_code == 0, "as the hint has promised"
    assert_whole(cluster, topic, wanted, mode)


def test_a_quota_slows_a_restore_down_and_costs_nothing_else(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    config, (wanted,) = archive(cluster, topic, tmp_path, records=400)
    asked: list[int] = []
    throttle = Connection.throttle

    def throttled(connection: Connection, milliseconds: int) -> None:
        asked.append(milliseconds)
        throttle(connection, milliseconds)

    who = (QuotaEntity(type="client-id", name="maxbrod"),)
    slow, fast = (Quota(entities=who, values={"producer_byte_rate": rate}) for rate in (2000.0, 1e12))
    with KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap), client_id="quotas") as client:
        assert all(each.done for each in set_quotas(client, [slow]).values())
        try:
            with patch.object(Connection, "throttle", throttled):
                report = restore(config, renamed())
        finally:
            set_quotas(client, [fast])
    assert max(asked) > 0, "the broker asked for it"
    assert report.exit_code == 0
    assert_whole(cluster, topic, wanted, "exact")


def test_the_same_restore_under_way_in_another_process_is_refused_and_the_first_one_completes(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    config, (wanted,) = archive(cluster, topic, tmp_path)

    def second() -> None:
        with pytest.raises(RefusedError, match="carrying out the same restore"):
            restore(config, renamed())

    with when_acknowledged(3, second):
        assert restore(config, renamed()).exit_code == 0
    assert_whole(cluster, topic, wanted, "exact")


def test_two_that_cannot_know_of_each_other_write_every_record_once(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """On two machines, say. Both append the same batches with the same sequence numbers."""
    config, (wanted,) = archive(cluster, topic, tmp_path, records=400)
    reports: list[Any] = []
    with (
        patch.object(engine, "alone", lambda _: nullcontext()),
        when_acknowledged(3, lambda: reports.append(restore(config, renamed("append")))),
    ):
        reports.append(restore(config, renamed("append")))
    assert reports[0].exit_code == 0
    assert reports[1].exit_code in {0, EXIT_REFUSED}, "whoever is far behind may be told that somebody else is at it"
    assert_whole(cluster, topic, wanted, "append")


def test_of_two_that_begin_at_the_same_moment_one_is_refused(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    config, _ = archive(cluster, topic, tmp_path / "archive")
    with engine.Restore(Work(config), renamed()) as work:
        plan = work.plan()
    storage = open_storage(str(tmp_path / "archive"))
    store_plan(storage, plan)
    with pytest.raises(RefusedError, match="another process"):
        store_plan(storage, plan)
