"""A restore from a copy brings back what a restore from the source would."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.restore.plan.request import RestoreRequest
from maxbrod.sandbox.topics import create_topic, delete_topic
from support.backups import back_up, config_of
from support.copies import copy
from support.ledger import Ledger
from support.restore_faults import renamed, restore
from support.restore_oracle import log_of
from support.topics import KEEP, transact

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster


def test_records_stand_at_their_offsets_again(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic, config=KEEP)
    ledger = Ledger()
    ledger.write(cluster, topic, 80)
    transact(Ledger(), cluster, topic, 10, commit=False)
    ledger.write(cluster, topic, 40)
    assert back_up(config_of(cluster, tmp_path / "a", topic)).complete
    expected = dict(ledger.of(cluster, topic))
    assert copy(tmp_path / "a", tmp_path / "b").exit_code == 0
    assert copy(tmp_path / "a", tmp_path / "c", topics=[topic]).exit_code == 0
    delete_topic(cluster, topic)
    assert restore(config_of(cluster, tmp_path / "b", topic), RestoreRequest()).complete
    assert log_of(cluster, topic) == expected
    assert restore(config_of(cluster, tmp_path / "c", topic), RestoreRequest(rename=renamed().rename)).complete
    assert log_of(cluster, f"new-{topic}") == expected
