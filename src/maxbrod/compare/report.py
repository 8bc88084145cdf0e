"""The report of a comparison."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from maxbrod.compare.plan.pairs import WHOLE_TOPIC
from maxbrod.errors import EXIT_DONE, EXIT_INCOMPLETE, gravest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maxbrod.compare.plan.parts import Difference


def name_of(topic: str, partition: int) -> str:
    return topic if partition == WHOLE_TOPIC else f"{topic}-{partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionComparison:
    """Two partitions; or, with partition -1, two whole topics that were compared as sets."""

    source_topic: str
    target_topic: str
    partition: int
    match: str
    """exact, mapped, append, set or brought."""
    source_records: int
    target_records: int
    source_digest: str
    target_digest: str
    equal: bool
    source_log_start: int | None = None
    target_log_start: int | None = None
    """The offsets at which the logs begin, if both must begin at the same offset; otherwise None."""
    source_removed: int = 0
    target_removed: int = 0
    """Records that compaction removed on this side, and that are no difference: later records of their keys are there,
    or their tombstones had expired."""
    notes: tuple[str, ...] = ()
    failure: Mapping[str, Any] | None = None
    """The error, if they could not be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareReport:
    """`equal`: both sides hold the same records, and neither lacks any, but for what compaction removed.

    The type of timestamps does not count, their value does. Where offsets must be the same, the logs begin at the same
    offset too.
    """

    source: str
    target: str
    started_at_ms: int
    finished_at_ms: int
    ignored: tuple[str, ...]
    partitions: tuple[PartitionComparison, ...]
    differences: tuple[Difference, ...]
    """The first differences."""

    @property
    def equal(self) -> bool:
        return bool(self.partitions) and all(
            partition.equal and partition.failure is None for partition in self.partitions
        )

    def noted(self) -> list[str]:
        """The notes, each with its partition."""
        named = ((each.target_topic, each.partition, each.notes) for each in self.partitions)
        return [f"{name_of(topic, partition)}: {note}" for topic, partition, notes in named for note in notes]

    @property
    def source_records(self) -> int:
        return sum(partition.source_records for partition in self.partitions)

    @property
    def target_records(self) -> int:
        return sum(partition.target_records for partition in self.partitions)

    @property
    def exit_code(self) -> int:
        """0: equal. 3: different. If something could not be read: the code of that error, which 3 never hides."""
        codes = [int(partition.failure["exit_code"]) for partition in self.partitions if partition.failure is not None]
        return gravest(codes or [EXIT_DONE if self.equal else EXIT_INCOMPLETE])

    def as_dict(self) -> dict[str, Any]:
        verdict = {
            "equal": self.equal,
            "exit_code": self.exit_code,
            "source_records": self.source_records,
            "target_records": self.target_records,
        }
        return {**verdict, **asdict(self)}
