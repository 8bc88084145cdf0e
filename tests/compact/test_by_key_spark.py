"""On Spark: what it does between the two tasks is what the model does, also when the keys do not fit in memory."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.keyed_archives import CUT_MS, DAY_MS, Keyed, batch, compact_keys, newest, records_of
from support.native_archives import Making

if TYPE_CHECKING:
    from collections.abc import Sequence


def _backups(keyed: Keyed, runs: int, partitions: int) -> None:
    """Random keys, tombstones of any age and records without a key, in every partition."""
    noise = random.Random(7)
    for number in range(runs):
        log = {}
        for part in range(partitions):
            at = noise.choice([CUT_MS, CUT_MS - DAY_MS - 1])
            records = [
                (
                    noise.choice([None, *[b"key-%d" % noise.randrange(300)] * 9]),
                    noise.choice([None, noise.randbytes(9)]),
                )
                for _ in range(1000)
            ]
            log[part] = [
                batch(1000 * number + first, *records[first : first + 100], at=at) for first in range(0, 1000, 100)
            ]
        keyed.backup(log, commit=True)


def test_spark_finds_the_newest_record_of_each_key_of_each_partition(tmp_path: Path, spark: Any) -> None:
    keyed = Keyed(Making(str(tmp_path / "archive")))
    _backups(keyed, 3, 3)
    before = [records_of(keyed.url, partition=part) for part in range(3)]
    report = compact_keys(keyed.url, session=spark)
    assert (report.faults, report.commits) == ((), 1)
    for part, records in enumerate(before):
        assert records_of(keyed.url, partition=part) == newest(records)
        assert records_of(keyed.url, "run-000003", partition=part) == records
    assert compact_keys(keyed.url, session=spark).commits == 0


SMALL = """
    import json, resource, sys
    sys.path[:0] = json.loads(sys.argv[2])
    from maxbrod.config import Config
    from maxbrod.compact.verb import compact_archive
    from maxbrod.work.work import Work

    config = Config.model_validate({
        "archive": sys.argv[1],
        "compact": {"by_key": True},
        "spark": {"master": "local[2]", "conf": json.loads(sys.argv[3])},
    })
    report = compact_archive(Work(config))
    print(json.dumps({
        "exit_code": report.exit_code,
        "removed": report.total("removed"),
        "rss": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10,
    }))
"""


@pytest.mark.slow
def test_keys_that_do_not_fit_in_memory_are_compacted(tmp_path: Path) -> None:
    """Keys of 120 MB, twice, where Spark has 90 MB for them: a heap of 450 MB, of which it keeps the most to itself."""
    keyed = Keyed(Making(str(tmp_path / "archive")))
    count, size = 60_000, 2_000
    for half in range(2):
        for first in range(0, count, 10 * size):
            bases = range(first, first + 10 * size, size)
            log = [batch(half * count + base, *_keys(base, size)) for base in bases]
            keyed.backup({0: log}, packed=False, compression="source")
    heap = {"spark.driver.memory": "450m"}
    found = _run(keyed.url, heap)
    assert (found["exit_code"], found["removed"]) == (0, count)
    assert found["rss"] < 1200 << 20, found


def _keys(first: int, count: int) -> Sequence[tuple[bytes, bytes]]:
    return [(b"%02000d" % number, b"v") for number in range(first, first + count)]


def _run(url: str, conf: dict[str, str]) -> dict[str, Any]:
    script = textwrap.dedent(SMALL)
    paths = [str(Path(__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-c", script, url, json.dumps(paths), json.dumps(conf)],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
