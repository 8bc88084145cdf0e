"""Target topics: temporary settings are removed completely, and settings that a target cannot have are not set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.archive.renames import parse_rename
from maxbrod.errors import CorruptDataError
from maxbrod.restore.plan.request import RestoreRequest
from maxbrod.restore.plan.targets import ConfigChange, PlannedConfigs, plan_existing_configs, plan_new_configs
from support.catalog_rows import segment
from support.restore_plans import EFFECTIVE, plan, target, topic

if TYPE_CHECKING:
    from maxbrod.restore.plan.targets import TargetTopic

HELD = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.type": "CreateTime",
    "retention.bytes": "-1",
    "retention.ms": "-1",
}
LARGE = 5 << 20

values = {
    "cleanup.policy": st.sampled_from(["compact", "delete", "compact,delete"]),
    "compression.type": st.sampled_from(["zstd", "producer"]),
    "max.message.bytes": st.sampled_from(["1000", "1048588", "90000000"]),
    "message.timestamp.type": st.sampled_from(["CreateTime", "LogAppendTime"]),
    "min.insync.replicas": st.sampled_from(["1", "2", "3"]),
    "retention.bytes": st.sampled_from(["-1", "100"]),
    "retention.ms": st.sampled_from(["-1", "60000"]),
    "segment.bytes": st.sampled_from(["1048576", "1073741824"]),
    "flush.ms": st.just("7"),
}
configs = st.fixed_dictionaries({}, optional=values)


def apply(own: dict[str, str], change: ConfigChange) -> dict[str, str]:
    assert not change.set.keys() & set(change.delete)
    return {name: value for name, value in {**own, **change.set}.items() if name not in change.delete}


def new(own: dict[str, Any], **changes: Any) -> PlannedConfigs:
    options: dict[str, Any] = {"replication_factor": 3, "batch_bytes_max": LARGE, "known": None, **changes}
    overrides = options.pop("overrides", {})
    return plan_new_configs(topic(configs=own, effective={**EFFECTIVE, **own}, factor=3), overrides, **options)


@given(configs, st.integers(0, 200 << 20))
def test_a_new_topic_always_ends_with_its_archived_configuration(own: dict[str, str], batch_bytes: int) -> None:
    made = new(own, batch_bytes_max=batch_bytes)
    assert made.create.items() >= HELD.items()
    assert apply(dict(made.create), made.release) == own == made.final
    again = apply(apply(dict(made.create), made.release), made.release)
    assert again == own, "a release that is repeated after a crash must change nothing"


@given(configs, st.integers(0, 200 << 20))
def test_an_existing_topic_always_ends_as_it_began(own: dict[str, str], batch_bytes: int) -> None:
    state = topic(configs=own, effective={**EFFECTIVE, **own}, factor=3)
    made = plan_existing_configs(state, batch_bytes_max=batch_bytes, known=None)
    assert made is not None
    held = apply(dict(own), made.hold)
    assert held.items() >= HELD.items()
    assert apply(held, made.release) == own


@given(configs, st.integers(0, 200 << 20))
def test_while_it_is_restored_a_topic_takes_every_batch_that_a_broker_can_take(
    own: dict[str, str], batch_bytes: int
) -> None:
    held = {**EFFECTIVE, **new(own, batch_bytes_max=batch_bytes).create}
    least = min(max(batch_bytes, 1_048_588), 100 << 20)
    assert int(held["max.message.bytes"]) >= least
    assert int(held["segment.bytes"]) >= least


def test_min_insync_replicas_never_exceeds_what_there_is() -> None:
    made = new({"min.insync.replicas": "3"}, replication_factor=1)
    assert made.create["min.insync.replicas"] == made.final["min.insync.replicas"] == "1"
    by_default = plan_new_configs(
        topic(effective={**EFFECTIVE, "min.insync.replicas": "2"}),
        {},
        replication_factor=1,
        batch_bytes_max=0,
        known=None,
    )
    assert by_default.create["min.insync.replicas"] == "1"
    unmet = topic(factor=1, configs={"min.insync.replicas": "2"}, effective={**EFFECTIVE, "min.insync.replicas": "2"})
    existing = plan_existing_configs(unmet, batch_bytes_max=0, known=None)
    assert existing is not None
    assert (existing.hold.set["min.insync.replicas"], existing.release.set["min.insync.replicas"]) == ("1", "2")


def test_what_the_brokers_do_not_know_is_never_sent() -> None:
    known = {"retention.ms", "cleanup.policy", "message.timestamp.difference.max.ms"}
    made = new({"retention.ms": "5", "message.format.version": "2.8"}, known=known, batch_bytes_max=0)
    assert set(made.create) == known
    assert made.dropped == ("message.format.version",)
    assert apply(dict(made.create), made.release) == {"retention.ms": "5"}


def test_throttles_that_name_brokers_and_values_that_kafka_hides_are_left_behind() -> None:
    made = new({"leader.replication.throttled.replicas": "0:1", "secret": None, "retention.ms": "5"})
    assert made.final == {"retention.ms": "5"}
    assert made.dropped == ()


def test_what_the_request_sets_wins() -> None:
    made = new({"retention.ms": "5"}, overrides={"retention.ms": "-1", "segment.ms": "9"})
    assert made.final == {"retention.ms": "-1", "segment.ms": "9"}
    assert "retention.ms" not in made.release.set
    assert "retention.ms" not in made.release.delete


def test_a_configuration_that_cannot_be_read_is_not_touched() -> None:
    assert plan_existing_configs(topic(configs=None, effective=None), batch_bytes_max=0, known=None) is None


def only_target(**arguments: Any) -> TargetTopic:
    (found,) = plan([segment(0, 10, partition=2)], **arguments).topics
    return found.target


@pytest.mark.parametrize(("brokers", "factor"), [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_there_are_never_more_replicas_than_brokers(brokers: int, factor: int) -> None:
    made = only_target(archived=topic(factor=3, partitions=4), into=target(brokers=brokers))
    assert (made.replication_factor, made.wanted_replication_factor, made.partition_count) == (factor, 3, 4)


def test_a_topic_that_the_snapshot_does_not_know_gets_the_brokers_replicas_and_the_partitions_that_are_archived() -> (
    None
):
    made = only_target(archived=topic(factor=3, partitions=9, topic_id="another"))
    assert (made.replication_factor, made.partition_count) == (-1, 3)


def test_no_topic_is_planned_for_partitions_that_nobody_saw() -> None:
    (found,) = plan([segment(0, 10, partition=999_998)]).topics
    assert found.target.partition_count == 999_999
    with pytest.raises(CorruptDataError, match=r"2,147,483,648 partitions, of which the archive shows"):
        plan([segment(0, 10, partition=2**31 - 1)])


def test_a_target_is_named_and_counted_as_the_request_says() -> None:
    made = only_target(
        request=RestoreRequest(rename=parse_rename(suffix="-back"), partition_count=12), archived=topic(partitions=3)
    )
    assert (made.name, made.partition_count, made.repartitioned, made.bases) == ("orders-back", 12, True, (0,) * 12)


def test_an_existing_target_tells_where_its_logs_end() -> None:
    state = target(topic(partitions=3), ends={"orders": [(0, 5), (2, 9), (0, 0)]})
    made = only_target(archived=topic(partitions=3), into=state)
    assert (made.exists, made.bases, made.repartitioned) == (True, (5, 9, 0), False)
