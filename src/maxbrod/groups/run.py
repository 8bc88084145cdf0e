"""The groups of a finished restore: plan their offsets, commit them, or roll them back."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from maxbrod.archive.archive import open_archive
from maxbrod.errors import RefusedError, UsageError
from maxbrod.groups.movement import Movement
from maxbrod.groups.moves import GroupPosition, MissingGroup, plan_moves
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.restore.report import PartitionReport
from maxbrod.restore.state import finished_restores, read_restore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from maxbrod.config import Config
    from maxbrod.groups.plan import GroupOffset

_OPERATION = "move groups"


class RestoredGroups:
    """One finished restore and its target. Use it in a `with`."""

    def __init__(self, config: Config, restore: str | None = None, *, force: bool = False) -> None:
        """`force`: also move groups that have members, if Kafka allows to remove them."""
        if config.kafka is None:
            raise UsageError("no cluster is named", hint="give --bootstrap, or kafka.bootstrap in the configuration")
        if config.archive is None:
            raise UsageError("no archive is named", hint="give --archive, or archive in the configuration")
        patience_s = config.patience
        self._undo = ExitStack()
        self._archive = open_archive(config.archive, config.storage, layout=config.layout)
        storage = self._archive.storage
        self.restore_id = find_restore(finished_restores(storage), restore)
        self._plan, self._report = read_restore(storage, self.restore_id)
        client = self._undo.enter_context(KafkaClient(config.kafka))
        self._refuse_other_cluster(client, patience_s)
        self._movement = Movement(client, storage, self._plan, patience_s=patience_s, force=force)
        self.missing: tuple[MissingGroup, ...] = ()
        """Requested groups without an offset to commit, in the last `plan` or `apply`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    @property
    def run_id(self) -> str | None:
        """The run that the restore was planned from."""
        return self._plan.archive.run_id

    def plan(self, patterns: Sequence[str]) -> tuple[GroupPosition, ...]:
        """The offsets that `apply` would commit, and the groups that it would refuse. Changes nothing."""
        return self._movement.look(self._moves(patterns))

    def apply(self, patterns: Sequence[str]) -> tuple[GroupPosition, ...]:
        return self._movement.apply(self._moves(patterns))

    def roll_back(self) -> tuple[GroupPosition, ...]:
        """Restore the offsets from before the restore."""
        return self._movement.roll_back()

    def _moves(self, patterns: Sequence[str]) -> tuple[GroupOffset, ...]:
        partitions = [PartitionReport(**each) for each in self._report["partitions"]]
        moves = plan_moves(self._archive, self._plan, partitions, patterns or self._plan.groups or ("*",))
        self.missing = moves.missing
        return moves.offsets

    def _refuse_other_cluster(self, client: KafkaClient, patience_s: float) -> None:
        found = client.metadata([], deadline=Deadline.after(patience_s)).cluster_id
        if found != self._plan.cluster_id:
            raise RefusedError(
                f"the restore went into cluster {self._plan.cluster_id}, and this is cluster {found}",
                operation=_OPERATION,
                object_name=self.restore_id,
                hint="give the cluster that was restored into",
            )


def find_restore(known: Sequence[str], given: str | None) -> str:
    """The restore with this id or prefix of an id; without one, the only restore."""
    matching = [each for each in known if each == given] or [each for each in known if each.startswith(given or "")]
    if len(matching) == 1:
        return matching[0]
    named = "restores were made from this archive" if given is None else f"restores have the id {given!r}"
    hint = f"give --restore with one of {', '.join(sorted(matching)[:10])}" if matching else "run 'maxbrod restore'"
    raise UsageError(f"{len(matching) or 'no'} {named}", operation=_OPERATION, hint=hint)
