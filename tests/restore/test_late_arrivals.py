"""What a killed restore had sent may arrive when the next one is under way: it is there once, all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.sandbox.surgery import delete_records
from maxbrod.sandbox.topics import create_topic, offsets
from support.backups import back_up, config_of
from support.ledger import Ledger
from support.restore_faults import KEEP, CrashError, Wire, archive, renamed, restore
from support.restore_oracle import assert_restored

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster


# The seventh batch stands behind the hole, and what the log ends with is then a marker.
@pytest.mark.parametrize("batch", [1, 4, 7])
@pytest.mark.parametrize("mode", ["exact", "append"])
def test_a_batch_of_a_killed_restore_that_arrives_late_is_never_there_twice(
    cluster: Cluster, topic: str, tmp_path: Path, mode: str, batch: int
) -> None:
    config, (wanted,) = archive(cluster, topic, tmp_path)
    first = Wire("Produce", crash_at=batch)
    with first.watched(), pytest.raises(CrashError):
        restore(config, renamed(mode))
    # The next attempt has read the log end, and is about to continue there.
    with Wire("Produce", before_first=first.arrive).watched():
        report = restore(config, renamed(mode))
    assert (report.exit_code, report.resumed) == (0, True), report.partitions
    assert_restored(cluster, f"new-{topic}", wanted, base=None if mode == "exact" else 0)


def test_fillers_of_a_killed_restore_that_arrive_late_are_never_there_twice(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    create_topic(cluster, topic, config=KEEP)
    ledger = Ledger()
    ledger.write(cluster, topic, 100, batch=10, in_a_row=2)
    delete_records(cluster, topic, before_offset=50)
    ledger.forget(next(iter(ledger.records)), range(50))
    config = config_of(cluster, tmp_path, topic)
    assert back_up(config).complete
    first = Wire("Produce", crash_at=1)
    with first.watched(), pytest.raises(CrashError):
        restore(config, renamed())
    with Wire("Produce", before_first=first.arrive).watched():
        assert restore(config, renamed()).exit_code == 0
    assert offsets(cluster, f"new-{topic}") == (50, 100)
    assert_restored(cluster, f"new-{topic}", dict(ledger.of(cluster, topic)))
