"""kill -9 of the driver before and after every put and around every commit: nothing half, nothing twice, goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.inspect.listing import list_topics
from maxbrod.sandbox.topics import create_topic
from support.archive_oracle import Holding, read_archive
from support.backup_processes import driver
from support.ledger import Ledger
from support.storages import s3_options, s3_section

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.config import StorageConfig
    from maxbrod.sandbox.cluster import Cluster

POINTS_MAX = 200


def holding(archive: str, options: StorageConfig | None) -> Holding | None:
    """What a reader sees; None while there is no archive yet."""
    try:
        return read_archive(archive, options)
    except Exception as error:
        if "TableNotFound" not in type(error).__name__:
            raise
        return None


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_killed_at_any_point_a_backup_leaves_a_true_archive_and_the_next_run_completes_it(
    cluster: Cluster, topic: str, tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    create_topic(cluster, topic, partitions=2, config={"retention.ms": "-1"})
    ledger = Ledger()
    ledger.write(cluster, topic, 240, batch=20)
    ledger.write(cluster, topic, 30, partition=1)
    place, options, storage = str(tmp_path), None, {}
    if kind == "s3":
        server = request.getfixturevalue("s3")
        place, options, storage = server.url, s3_options(server), s3_section(server)
    met: list[str] = []
    with driver(cluster, topic, storage, commit_bytes=12_000, segment_records=60) as program:
        for point in range(POINTS_MAX):
            archive = f"{place}/archive-{point}"
            met.append(program.run(archive, point).get("killed", ""))
            seen = holding(archive, options)
            if seen is not None:
                seen.assert_prefix_of(ledger)
                # No recovery point without everything, and everything with the run's own row.
                listing = list_topics(open_archive(archive, options))
                assert (listing.recovery_point is not None) == bool(seen.runs), met[-1]
            assert program.run(archive)["exit_code"] == 0, met[-1]
            read_archive(archive, options).assert_equals(ledger)
            if not met[-1]:
                break
    assert not met[-1]
    for call in ("create_table", "commit", "write_commit"):
        assert {f"before {call}", f"after {call}"} <= set(met)
    # Several objects, and more than one commit.
    assert met.count("after commit") >= 4
    assert met.count("after write_commit") >= 2
