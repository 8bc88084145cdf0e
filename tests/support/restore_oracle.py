"""Holds a restored topic against what producers got acknowledged in the first place, record by record.

Reads the logs on a broker's disk in plain Python, and asks Kafka through another client: nothing of the engine.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import offsets
from support.plain_log import Record, read_log

if TYPE_CHECKING:
    from maxbrod.sandbox.cluster import Cluster


def log_of(cluster: Cluster, topic: str, partition: int = 0, *, broker: int | None = None) -> dict[int, Record]:
    """What a broker has on its disk, in the order in which it stands there, without control records."""
    folder = cluster.log_dir(cluster.broker_ids[0] if broker is None else broker) / f"{topic}-{partition}"

    def segments() -> list[bytes] | None:
        # The cleaner and retention may replace a file at this moment.
        with suppress(FileNotFoundError):
            return [b"", *(path.read_bytes() for path in sorted(folder.glob("*.log")))]
        return None

    batches = read_log(b"".join(wait_for("a log that stays for a moment", segments, timeout_s=60)))
    found = {offset: each for batch in batches if not batch.control for offset, each in batch.records.items()}
    assert list(found) == sorted(found)
    return found


def assert_restored(
    cluster: Cluster,
    topic: str,
    wanted: dict[int, Record],
    *,
    partition: int = 0,
    base: int | None = None,
    broker: int | None = None,
) -> None:
    """Exactly these records, each once, in order: at their own offsets, or from `base` on one after another."""
    start = offsets(cluster, topic, partition)[0] if base is None else base
    found = {at: each for at, each in log_of(cluster, topic, partition, broker=broker).items() if at >= start}
    expected = wanted if base is None else dict(enumerate(wanted.values(), base))
    assert list(found) == list(expected), f"from {start}: {_differences(found, expected)}"
    assert found == expected


def _differences(found: dict[int, Record], expected: dict[int, Record]) -> str:
    missing, more = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    return f"{len(missing)} missing ({missing[:3]} …), {len(more)} too many ({more[:3]} …)"
