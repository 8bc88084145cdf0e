"""Looks at what drills leave behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster


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
