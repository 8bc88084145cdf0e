"""Runs drills in this process, without Spark, and looks at what they leave behind."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from maxbrod.drill import run as engine
from support.sparkless import no_session
from support.sparkless import without_spark as sparkless

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster


@contextmanager
def without_spark() -> Iterator[None]:
    with (
        sparkless(),
        patch.object(engine, "open_configured", no_session),
        patch.object(engine, "cancelled_by", no_session),
    ):
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
