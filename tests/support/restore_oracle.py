"""Holds a restored topic against what producers got acknowledged in the first place, record by record.

Reads the logs on a broker's disk in plain Python, and asks Kafka through another client: nothing of the engine.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from kafka.partitioner.default import murmur2

from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import offsets
from support.plain_log import Record, read_log

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def java_partition(record: Record, source: int, count: int) -> int:
    return source % count if record.key is None else (murmur2(record.key) & 0x7FFFFFFF) % count


def assert_shared_out(cluster: Cluster, topic: str, records: Mapping[int, Mapping[int, Record]], count: int) -> None:
    """Each record once, in its partition, and those of a source partition in their order."""
    for target in range(count):
        assert_partition(cluster, topic, records, target, count)


def assert_partition(
    cluster: Cluster, topic: str, records: Mapping[int, Mapping[int, Record]], target: int, count: int
) -> None:
    found = list(log_of(cluster, topic, target).values())
    wanted = {
        source: [each for each in mine.values() if java_partition(each, source, count) == target]
        for source, mine in records.items()
    }
    assert len(found) == sum(map(len, wanted.values()))
    for mine in wanted.values():
        members = set(mine)
        assert [each for each in found if each in members] == mine
