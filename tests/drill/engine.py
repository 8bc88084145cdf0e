"""Runs drills in this process, without Spark, and looks at what they leave behind."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from compare.engine import without_spark as comparing_without_spark
from maxbrod.drill import run as engine
from restore.engine import without_spark as restoring_without_spark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster


@contextmanager
def without_spark() -> Iterator[None]:
    @contextmanager
    def nothing(*_: object) -> Iterator[None]:
        yield None

    with ExitStack() as undo:
        undo.enter_context(restoring_without_spark())
        undo.enter_context(comparing_without_spark())
        undo.enter_context(patch.object(engine, "open_configured", nothing))
        undo.enter_context(patch.object(engine, "cancelled_by", nothing))
        yield


def scratch_topics(cluster: Cluster) -> list[str]:
    with cluster.admin() as admin:
        return sorted(name for name in admin.list_topics() if name.startswith("maxbrod-drill-"))


def remembered(archive: Path) -> list[str]:
    """What drills and restores have left in an archive."""
    return sorted(
        str(path.relative_to(archive))
        for folder in ("drills", "restores")
        for path in (archive / folder).rglob("*")
        if path.is_file()
    )


def partitions_of(document: dict[str, Any]) -> list[tuple[str, int]]:
    return [(each["topic"], each["partition"]) for each in document["report"]["covered"]]
