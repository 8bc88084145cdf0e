"""Topics of a cluster: what they keep, transactions and keys in them, and their logs on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.model import topic_id_text
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import offsets, topic_id
from maxbrod.sandbox.traffic import Message, produce, produce_transaction
from support.archive_oracle import Key
from support.ledger import NOW_MS, Ledger, as_record

if TYPE_CHECKING:
    from maxbrod.sandbox.cluster import Cluster

KEEP = {"retention.ms": "-1"}
COMPACTED = {"cleanup.policy": "compact", **KEEP}


def key_of(cluster: Cluster, topic: str, partition: int = 0) -> Key:
    return topic_id_text(topic_id(cluster, topic)), partition


def dated_messages(count: int, value: bytes = b"value") -> list[Message]:
    return [Message(key=b"%d" % turn, value=value, timestamp_ms=NOW_MS + turn) for turn in range(count)]


def transact(ledger: Ledger, cluster: Cluster, topic: str, count: int, *, commit: bool, partition: int = 0) -> None:
    """Records of a transaction stand in the log whichever way it ends."""
    messages = dated_messages(count)
    acknowledged = produce_transaction(
        cluster, topic, messages, transactional_id=f"{topic}-{partition}", commit=commit, partition=partition
    )
    ledger.note(cluster, topic, acknowledged, map(as_record, messages), partition=partition)
    wait_for_marker(cluster, topic, acknowledged, partition)


def wait_for_marker(cluster: Cluster, topic: str, acknowledged: list[int], partition: int = 0) -> None:
    """Kafka writes it after the transaction has ended for its producer, and it takes the next offset."""
    end = acknowledged[-1] + 2
    wait_for("the marker", lambda: offsets(cluster, topic, partition)[1] == end, timeout_s=60)


def log_on_disk(cluster: Cluster, topic: str, partition: int = 0) -> bytes:
    folder = cluster.log_dir(cluster.broker_ids[0]) / f"{topic}-{partition}"
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def write_keys(cluster: Cluster, topic: str, count: int, *, turn: int, partition: int = 0, keys: int = 20) -> None:
    messages = [Message(key=b"k%d" % (each % keys), value=b"%d-%d" % (turn, each) * 20) for each in range(count)]
    for first in range(0, count, 25):
        produce(cluster, topic, messages[first : first + 25], partition=partition)
