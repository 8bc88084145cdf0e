"""kill -9 at any instant leaves the old state or the new one, and the archive goes on from there."""

from __future__ import annotations

import signal
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from maxbrod.catalog.rows import decode_rows
from maxbrod.catalog.tiling import find_tiling_faults
from support.catalog_places import hear, start_writer
from support.catalog_rows import run, segment
from support.programs.catalog_writers import ROWS_PER_COMMIT

if TYPE_CHECKING:
    from support.catalog_places import Archive

pytestmark = pytest.mark.full


@pytest.mark.parametrize("point", ["before the files", "after the files", "after the commit"])
def test_killed_at_a_point_of_a_commit_that_replaces_and_folds_all_of_it_is_there_or_nothing(
    archive: Archive, point: str
) -> None:
    catalog = archive.create()
    for base in range(0, 80, 10):
        catalog.commit([segment(base, base + 10)])
    with start_writer("die", archive, point) as writer:
        assert writer.wait(60) == -signal.SIGKILL
    whole = [segment(base, base + 10) for base in range(10, 80, 10)]
    survivor = archive.open()
    if point == "after the commit":
        assert decode_rows(survivor.rows()) == [segment(0, 5), segment(5, 10), *whole]
    else:
        assert decode_rows(survivor.rows()) == [segment(0, 10), *whole]
    assert [each.run_id for each in survivor.runs()] == (["last"] if point == "after the commit" else [])
    survivor.commit([segment(80, 90), run("next")])
    assert find_tiling_faults(archive.open().rows()).complete


def test_killed_at_any_moment_no_commit_is_lost_and_none_is_there_in_part(archive: Archive) -> None:
    archive.create()
    acknowledged: list[int] = []
    for life in range(5):
        with start_writer("pour", archive, "") as writer:
            acknowledged.append(int(hear(writer)))
            # Commits take tens of milliseconds, so these moments fall all over one.
            time.sleep(0.1 + 0.017 * life)
            writer.kill()
            assert writer.stdout is not None
            acknowledged += [int(line) for line in writer.stdout if line.endswith("\n")]
        catalog = archive.open()
        rows = catalog.rows()
        runs = {each.run_id for each in catalog.runs()}
        assert runs >= {f"run-{number}" for number in acknowledged}
        assert len(runs) <= max(acknowledged) + 2  # the one that nobody was told of
        assert Counter(rows["run_id"].to_pylist()) == dict.fromkeys(runs, ROWS_PER_COMMIT)
        assert find_tiling_faults(rows).complete
