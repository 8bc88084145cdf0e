"""Instances of egress share an archive in which nothing can be overwritten or deleted."""

from __future__ import annotations

import pytest

from maxbrod.archive.signs_of_life import HEARTBEATS, LEASE, MEMBERS, REPLICATION, passed
from maxbrod.config import StorageConfig
from maxbrod.model import PartitionId
from maxbrod.replicate.archive_lease import ArchiveLease, ArchiveMembers, read_lives
from maxbrod.replicate.heartbeat import Heartbeat, read_heartbeats, write_heartbeat
from maxbrod.storage.interface import Storage
from maxbrod.storage.stores import open_storage

PARTITION = PartitionId(topic_id="t", partition=0)


@pytest.fixture
def storage(memory_url: str) -> Storage:
    return open_storage(memory_url, StorageConfig(create_only=True))


def names(storage: Storage, folder: str) -> list[str]:
    return [info.path for info in storage.list(folder)]


def test_a_lease_is_renewed_and_taken_over_although_its_old_objects_stay(storage: Storage) -> None:
    now = [0.0]
    first, second = (ArchiveLease(storage, takeover_s=30, clock=lambda: now[0]) for _ in range(2))
    assert first.hold()
    assert not second.hold()
    for now[0] in (29.0, 50.0):
        assert first.hold()
        assert not second.hold()
    now[0] = 100.0
    assert second.hold()
    assert not first.renew()
    assert len(names(storage, LEASE)) > 3


def test_the_newest_sign_of_life_of_each_instance_counts(storage: Storage) -> None:
    members = [ArchiveMembers(storage, name, takeover_s=30) for name in ("one", "two")]
    for heard in range(3):
        for member in members:
            member.tell(heard)
    assert set(read_lives(storage)) == {"one", "two"}
    assert [member.heard for member in members[0]._read()] == [2, 2]


def test_heartbeats_stay_until_somebody_who_may_delete_collects_what_is_passed(
    storage: Storage, memory_url: str
) -> None:
    for number in range(40):
        beat = Heartbeat(
            at_ms=1_700_000_000_000 + 5000 * number, instance="i", cluster_id="c", ends={PARTITION: number}
        )
        write_heartbeat(storage, beat)
        write_heartbeat(storage, beat)
    assert len(names(storage, HEARTBEATS)) == 40
    assert read_heartbeats(storage)[0].ends == {PARTITION: 39}
    member = ArchiveMembers(storage, "one", takeover_s=30)
    member.tell(1)
    member.tell(2)
    keeper = open_storage(memory_url)
    keeper.delete([info.path for info in passed(keeper.list(REPLICATION))])
    assert 8 < len(names(storage, HEARTBEATS)) < 20
    assert read_heartbeats(storage)[0].ends == {PARTITION: 39}
    assert len(names(storage, MEMBERS)) == 1
