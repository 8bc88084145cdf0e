"""Settings, ACLs and quotas come out of the controllers' log as the cluster had them, and secrets never do."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.archive.snapshots import find_moment
from maxbrod.errors import RefusedError
from maxbrod.kafka.state.cluster_state import Acl, ClusterState, Quota, QuotaEntity, ScramUser
from maxbrod.model import topic_id_text
from support.log_directories import fatal, offsets, put_log, run, survey
from support.metadata_logs import (
    GONE,
    GONE_ID,
    ORDERS,
    ORDERS_ID,
    abort,
    acl,
    acl_removal,
    batch,
    begin,
    broker,
    config,
    control,
    end,
    frame,
    partition,
    put_checkpoint_of,
    put_metadata,
    quota,
    reassignment,
    removal,
    topic,
    user,
    user_removal,
)

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.layouts.foreign import Survey

BASE = [topic("orders", ORDERS), partition(ORDERS, 0, 1, 2), config("retention.ms", "5")]


def put_orders(root: Path, topic_id: str = ORDERS_ID, name: str = "orders-0") -> None:
    put_log(root, run(0, 1), name=name)
    (root / name / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")


def state(root: Path) -> ClusterState:
    archive = open_archive(str(root))
    found = find_moment(archive.storage, archive.catalog.runs(), None).cluster
    assert found is not None
    return found


def messages(found: Survey) -> list[str]:
    return [fault.message for fault in found.faults]


def test_what_the_controllers_decided_is_in_the_snapshot(tmp_path: Path) -> None:
    put_orders(tmp_path)
    records = [
        *BASE,
        broker(1),
        acl(7, "User:alice"),
        quota("bob", "producer_byte_rate", 1e6),
        user("alice", b"s3cret"),
    ]
    put_metadata(
        tmp_path, [control(0, 2), batch(1, *records), batch(8, config("log.retention.ms", "9", topic_name="", kind=4))]
    )
    found = state(tmp_path)
    (orders,) = found.topics
    assert (orders.topic_id, orders.replicas, orders.configs) == (ORDERS_ID, ((1, 2),), {"retention.ms": "5"})
    assert orders.effective == {"retention.ms": "5"}
    assert found.acls == (
        Acl(
            resource_type="TOPIC",
            resource_name="orders",
            pattern_type="LITERAL",
            principal="User:alice",
            host="*",
            operation="READ",
            permission="ALLOW",
        ),
    )
    who = (QuotaEntity(type="user", name="bob"),)
    assert found.quotas == (Quota(entities=who, values={"producer_byte_rate": 1e6}),)
    assert found.users == (ScramUser(name="alice", mechanism="SCRAM-SHA-256", iterations=4096),)
    assert [(each.node_id, each.host, each.port, each.rack) for each in found.brokers] == [(1, "here", 9092, "rack")]
    assert not found.gaps


def test_a_secret_never_leaves_the_metadata(tmp_path: Path) -> None:
    put_orders(tmp_path)
    secrets = [user("alice", b"s3cret"), config("ssl.key.password", "s3cret", topic_name="1", kind=4)]
    secrets.append(config("ssl.key.password", "s3cret", topic_name="", kind=4))
    put_metadata(tmp_path, [batch(0, *BASE, *secrets)])
    assert "s3cret" not in repr(survey(tmp_path))
    archive = open_archive(str(tmp_path))
    assert b"s3cret" not in bytes(archive.storage.get(archive.catalog.runs()[0].snapshot or ""))
    assert "s3cret" not in str(state(tmp_path))


def test_what_was_taken_back_is_gone(tmp_path: Path) -> None:
    put_orders(tmp_path)
    added = [*BASE, config("cleanup.policy", "compact"), acl(7, "User:a"), acl(8, "User:b"), quota(None, "x", 1.0)]
    back = [config("retention.ms", None), acl_removal(7), quota(None, "x", 0.0, removed=True), user_removal("alice")]
    put_metadata(tmp_path, [batch(0, *added, user("alice", b"s")), batch(8, *back)])
    found = state(tmp_path)
    assert found.topics[0].configs == {"cleanup.policy": "compact"}
    assert found.topics[0].compacted
    assert [each.principal for each in found.acls or ()] == ["User:b"]
    assert found.quotas == ()
    assert found.users == ()


def test_the_newest_checkpoint_and_the_log_behind_it_count(tmp_path: Path) -> None:
    put_orders(tmp_path)
    put_checkpoint_of(tmp_path, 50, [topic("orders", ORDERS), partition(ORDERS, 0, 9), config("a", "old")])
    put_checkpoint_of(tmp_path, 100, [*BASE, config("a", "new")])
    # What stands below the end of the checkpoint is in it already, as far as it still holds.
    log = [batch(60, config("b", "before"), config("b", None)), batch(62, *[config("c", "1")] * 38)]
    put_metadata(
        tmp_path, [*log, batch(100, config("d", "after"), reassignment(ORDERS, 0), reassignment(ORDERS, 0, 3))], base=60
    )
    (orders,) = state(tmp_path).topics
    assert orders.configs == {"retention.ms": "5", "a": "new", "d": "after"}
    assert orders.replicas == ((3,),)


def test_a_checkpoint_alone_is_enough(tmp_path: Path) -> None:
    put_orders(tmp_path)
    put_checkpoint_of(tmp_path, 100, BASE)
    (tmp_path / "__cluster_metadata-0" / f"{100:020}.log").touch()
    assert state(tmp_path).topics[0].configs == {"retention.ms": "5"}


@pytest.mark.parametrize("damage", ["torn", "changed"])
def test_a_damaged_checkpoint_is_told_and_the_one_before_is_taken(tmp_path: Path, damage: str) -> None:
    put_orders(tmp_path)
    put_checkpoint_of(tmp_path, 50, BASE)
    newer = put_checkpoint_of(tmp_path, 60, [*BASE, config("a", "x")], whole=damage != "torn")
    if damage == "changed":
        newer.write_bytes(newer.read_bytes()[:200] + b"\xff" + newer.read_bytes()[201:])
    put_metadata(tmp_path, [batch(50, *[config("c", "1")] * 15)], base=50)
    found = survey(tmp_path)
    assert found.topics["orders"].configs == {"retention.ms": "5", "c": "1"}
    assert any("checkpoint is damaged" in each for each in messages(found))
    assert not fatal(found)


def test_metadata_without_its_beginning_is_told_as_a_loss(tmp_path: Path) -> None:
    put_orders(tmp_path)
    put_metadata(tmp_path, [batch(60, *BASE)], base=60)
    found = survey(tmp_path)
    assert found.cluster is None
    assert "settings, ACLs and quotas are lost" in fatal(found)[0]
    assert offsets(tmp_path, found) == list(range(10))


def test_a_torn_tail_ends_the_metadata_and_loses_nothing_else(tmp_path: Path) -> None:
    put_orders(tmp_path)
    put_metadata(tmp_path, [batch(0, *BASE), batch(3, config("a", "x"))[:-1]])
    found = survey(tmp_path)
    assert found.topics["orders"].configs == {"retention.ms": "5"}
    assert not fatal(found)


def test_damage_within_the_metadata_is_told_as_a_loss(tmp_path: Path) -> None:
    put_orders(tmp_path)
    put_metadata(tmp_path, [batch(0, *BASE), batch(3, config("a", "x"))[:-1]])
    put_metadata(tmp_path, [batch(4, config("b", "x"))], base=4)
    found = survey(tmp_path)
    assert found.topics["orders"].configs == {"retention.ms": "5"}
    assert "up to offset 3 of 5" in fatal(found)[0]


def test_unknown_types_are_passed_over_and_told_once(tmp_path: Path) -> None:
    put_orders(tmp_path)
    put_metadata(tmp_path, [batch(0, *BASE, frame(99, b"abc"), frame(99, b"abc"), frame(20, b"\0"))])
    found = survey(tmp_path)
    assert messages(found) == ["records of types that this release does not know (99) are skipped"]
    assert not fatal(found)


@pytest.mark.parametrize("odd", [frame(4, b"abc", version=1), frame(2, b"", frame_version=2), frame(4, b"\x02")])
def test_a_record_that_cannot_be_read_is_told_as_a_loss(tmp_path: Path, odd: bytes) -> None:
    put_orders(tmp_path)
    put_metadata(tmp_path, [batch(0, *BASE, odd, odd, config("a", "x"))])
    found = survey(tmp_path)
    assert len(fatal(found)) == 1
    assert found.topics["orders"].configs == {"retention.ms": "5", "a": "x"}


def test_what_a_controller_began_counts_when_it_has_ended(tmp_path: Path) -> None:
    put_orders(tmp_path)
    records = [begin(), config("a", "1"), end(), begin(), config("b", "1"), abort(), begin(), config("c", "1")]
    put_metadata(tmp_path, [batch(0, *BASE, *records)])
    assert survey(tmp_path).topics["orders"].configs == {"retention.ms": "5", "a": "1"}


def test_of_several_copies_the_furthest_is_taken(tmp_path: Path) -> None:
    put_orders(tmp_path / "broker")
    put_metadata(tmp_path / "broker", [batch(0, *BASE)])
    put_metadata(
        tmp_path / "one", [batch(0, *BASE), batch(3, config("a", "1"), epoch=2), batch(4, frame(20, b"\0"), epoch=2)]
    )
    put_metadata(tmp_path / "two", [batch(0, *BASE), batch(3, config("a", "1"), epoch=2)])
    put_metadata(tmp_path / "old", [batch(0, *BASE), batch(3, config("z", "1"), config("z", "2"), epoch=1)])
    (tmp_path / "two" / "__cluster_metadata-0" / "quorum-state").write_text("{}")
    found = survey(tmp_path)
    assert found.topics["orders"].configs == {"retention.ms": "5", "a": "1"}
    # Two of four have it, which is no majority.
    assert any("from offset 3 on exists in a minority of the 4 copies" in each for each in messages(found))
    put_metadata(tmp_path / "old", [batch(0, *BASE), batch(3, config("a", "1"), epoch=2)])
    assert not survey(tmp_path).faults


def test_folders_of_topics_that_the_metadata_does_not_know_are_read_and_told(tmp_path: Path) -> None:
    put_orders(tmp_path)
    put_orders(tmp_path, GONE_ID, "gone-0")
    put_orders(tmp_path, topic_id_text(UUID(int=77)), "stray-0")
    put_metadata(tmp_path, [batch(0, *BASE, topic("gone", GONE), config("x", "1", topic_name="gone"), removal(GONE))])
    found = survey(tmp_path)
    assert not fatal(found)
    assert {fault.path: fault.message.split(" (")[0] for fault in found.faults} == {
        "gone-0": "the topic was deleted",
        "stray-0": "the cluster's metadata does not know it",
    }
    assert not found.topics["gone"].configs
    assert offsets(tmp_path, found) == list(range(10)) * 3


def test_a_topic_that_was_created_again_never_has_the_settings_of_the_old_one(tmp_path: Path) -> None:
    put_orders(tmp_path)
    old = [topic("orders", GONE), config("cleanup.policy", "compact"), removal(GONE)]
    put_metadata(tmp_path, [batch(0, *old, *BASE)])
    assert survey(tmp_path).topics["orders"].configs == {"retention.ms": "5"}


def test_of_two_topics_of_a_name_the_metadata_tells_which_one_is_meant(tmp_path: Path) -> None:
    put_orders(tmp_path / "a")
    put_orders(tmp_path / "b", GONE_ID)
    put_orders(tmp_path / "b", GONE_ID, "orders-1")
    put_metadata(tmp_path / "a", [batch(0, *BASE)])
    found = survey(tmp_path)
    assert found.topics["orders"].topic_id == ORDERS_ID
    assert offsets(tmp_path, found) == list(range(10))
    assert all("another topic of this name" in each for each in messages(found))


def test_a_partition_that_no_directory_has_is_told_as_a_loss_unless_it_was_never_written(tmp_path: Path) -> None:
    put_orders(tmp_path)
    here, other = UUID(int=5), UUID(int=6)
    (tmp_path / "meta.properties").write_text(f"node.id=1\ndirectory.id={topic_id_text(here)}\n")
    more = [partition(ORDERS, 1, 1), topic("empty", GONE), partition(GONE, 0, 1)]
    put_metadata(tmp_path, [batch(0, *BASE, *more, broker(1, here))])
    found = survey(tmp_path)
    assert not fatal(found)
    assert [each.split(",")[0] for each in messages(found)] == [
        "no directory has partition 0 of empty",
        "no directory has partition 1 of orders",
    ]
    assert (found.topics["orders"].partition_count, found.topics["empty"].topic_id) == (2, GONE_ID)
    # The broker has a second disk, which is not here.
    put_metadata(tmp_path, [batch(0, *BASE, *more, broker(1, here, other))])
    assert len(fatal(survey(tmp_path))) == 2
    many = [partition(ORDERS, number, 2) for number in range(2, 15)]
    put_metadata(tmp_path, [batch(0, *BASE, *more, *many)])
    wanted = "partitions 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 4 more of orders, which brokers 1, 2 held"
    assert wanted in fatal(survey(tmp_path))[1]


def test_directories_of_a_controller_are_of_the_same_cluster(tmp_path: Path) -> None:
    put_orders(tmp_path / "broker")
    put_metadata(tmp_path / "controller", [batch(0, *BASE)])
    for name in ("broker", "controller"):
        (tmp_path / name / "meta.properties").write_text(f"cluster.id={name}\n")
    with pytest.raises(RefusedError, match="several clusters"):
        survey(tmp_path)


def test_without_metadata_nothing_is_said_of_access(tmp_path: Path) -> None:
    put_orders(tmp_path)
    found = state(tmp_path)
    assert (found.acls, found.quotas, found.users) == (None, None, None)
    assert found.topics[0].configs is None
    assert [each.what for each in found.gaps] == ["ACLs, quotas and users"]
