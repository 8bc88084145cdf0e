"""The story of a mount: a cluster is lost, a group reads on from the archive, and moves to the restored cluster."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from maxbrod.compare.run import compare
from maxbrod.config import Config
from maxbrod.demo.mount_process import mount_process
from maxbrod.demo.story import GROUP, GROUP_TOPICS, Beginning, Findings, Step, begin, restore
from maxbrod.errors import RefusedError, UnavailableError
from maxbrod.groups.movement import RestoredGroups
from maxbrod.sandbox.cluster import Cluster
from maxbrod.sandbox.traffic import read_as_group, read_as_member

_LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The records that a group read of a topic: from the lost cluster, from the mount, from the restored cluster."""

    topic: str
    before: int
    on_mount: int
    after: int
    distinct: int
    """The records among them, each counted once."""
    acknowledged: int

    @property
    def exact(self) -> bool:
        """True if the group read every record once, and a part of them from the mount."""
        total = self.before + self.on_mount + self.after
        return self.on_mount > 0 and total == self.distinct == self.acknowledged

    @classmethod
    def of(cls, topic: str, parts: Sequence[Mapping[str, list[int]]], acknowledged: int) -> Moved:
        before, on_mount, after = (part[topic] for part in parts)
        return cls(
            topic=topic,
            before=len(before),
            on_mount=len(on_mount),
            after=len(after),
            distinct=len({*before, *on_mount, *after}),
            acknowledged=acknowledged,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MountTale:
    """What was found, and how long consumers had to wait."""

    findings: Findings[Moved]
    first_record_s: float
    """From the loss of the cluster to the first record from the mount."""
    restored_s: float
    """From the loss of the cluster to the end of the restore, which consumers would have waited for."""


def tell(step: Step, records: int, brokers: int) -> MountTale:
    """Play the whole story in a temporary folder, which is removed at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="maxbrod-demo-") as name,
        begin(step, Path(name), records, brokers) as begun,
    ):
        return _lose_and_mount(step, Path(name), begun, brokers)


def _lose_and_mount(step: Step, folder: Path, begun: Beginning, brokers: int) -> MountTale:
    with ExitStack() as undo:
        with step("lose the cluster: every broker is killed"):
            for broker in begun.cluster.broker_ids:
                begun.cluster.kill(broker)
        lost_at = time.monotonic()
        state = folder / "state"
        with step("mount the archive"):
            mounted = undo.enter_context(mount_process(begun.archive, state))
        reader = undo.enter_context(closing(_Reader(mounted.bootstrap, begun)))
        with step(f"{GROUP} reads on from the mount"):
            first_record_s = reader.await_first() - lost_at
        with step("meanwhile: start a new cluster"):
            cluster = undo.enter_context(Cluster.start(folder / "new-cluster", brokers=brokers))
        with step("meanwhile: restore every topic into it, at its offsets"):
            restore(cluster, begun.archive, begun.session)
        restored_s = time.monotonic() - lost_at
        with step(f"{GROUP} stops reading from the mount, and its offsets are carried over"):
            on_mount = reader.result()
            _carry_over(cluster, begun.archive, state)
        with step("compare every record with the archive"):
            compared = compare(bootstrap=cluster.bootstrap, archive=begun.archive, session=begun.session)
        with step(f"{GROUP} reads the rest from the new cluster"):
            after = read_as_group(cluster, GROUP, dict.fromkeys(GROUP_TOPICS))
    parts = (begun.before, on_mount, after)
    moved = [Moved.of(topic, parts, begun.acknowledged[topic]) for topic in GROUP_TOPICS]
    findings = Findings(archived=begun.archived, run=begun.run, compared=compared, resumed=moved)
    return MountTale(findings=findings, first_record_s=first_record_s, restored_s=restored_s)


class _Reader:
    """A member of the group that reads half of what it has not read yet, in a thread."""

    def __init__(self, bootstrap: str, begun: Beginning) -> None:
        counts = {topic: (begun.acknowledged[topic] - len(begun.before[topic])) // 2 for topic in GROUP_TOPICS}
        self._first = threading.Event()
        self._first_at = 0.0
        self._pool = ThreadPoolExecutor(1)
        properties = {"bootstrap_servers": [bootstrap]}
        self._read = self._pool.submit(read_as_member, properties, GROUP, counts, self._on_read)

    def _on_read(self, _: int) -> None:
        if not self._first.is_set():
            self._first_at = time.monotonic()
            self._first.set()

    def await_first(self) -> float:
        """Wait for the first record; returns when that was."""
        while not self._first.wait(_LOOK_S):
            if self._read.done() and not self._first.is_set():
                raise UnavailableError(f"{GROUP} read {self._read.result()} from the mount", hint="run it again")
        return self._first_at

    def result(self) -> dict[str, list[int]]:
        """The offsets that were read, by topic."""
        return self._read.result()

    def close(self) -> None:
        self._pool.shutdown()


def _carry_over(cluster: Cluster, archive: Path, state: Path) -> None:
    """As `maxbrod groups apply --from-mount` does it. RefusedError: the group was left alone."""
    config = Config.model_validate({"archive": str(archive), "kafka": {"bootstrap": cluster.bootstrap}})
    with RestoredGroups(config) as groups:
        positions = groups.apply((GROUP,), mount=state)
    refused = next((position.refused for position in positions if position.refused is not None), None)
    if refused is not None:
        raise RefusedError(refused, object_name=GROUP)
