"""Commands that look at an archive hold a portion of its rows, whatever the size of the archive."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import pyarrow as pa
import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.catalog import files
from maxbrod.catalog.queries import Queries
from maxbrod.check.run import check_archive
from maxbrod.compact.verb import compact_archive
from maxbrod.config import Config
from maxbrod.prune.plan import SegmentPolicy
from maxbrod.prune.run import PruneRequest, prune_archive
from maxbrod.prune.runs import RunPolicy
from maxbrod.repair.run import repair_archive
from maxbrod.work.work import Work
from maxbrod_bench.large_archive import write_archive

if TYPE_CHECKING:
    from collections.abc import Callable

PARTITIONS: Final = 300
PORTION: Final = 450
"""Fewer rows than a topic has."""
GROUP: Final = 64
"""Rows that Parquet reads at once: few, so that portions count."""
MEASURED: Final = ("check", "compact", "prune by runs", "prune by both sizes", "repair")
NOW: Final = 1 << 42


def prune(url: str, runs: RunPolicy | None = None, **limits: Any) -> dict[str, Any]:
    request = PruneRequest(segments=SegmentPolicy(**limits), runs=runs or RunPolicy())
    report = asdict(prune_archive(open_archive(url), request))
    return {name: value for name, value in report.items() if name != "idle_ms"}  # grows with the time of day


def compact(url: str) -> dict[str, Any]:
    limits = {"min_segment_count": 2, "min_segment_size": 1, "max_segment_count": 3}
    config = Config.model_validate({"archive": url, "compact": {"dry_run": True, **limits}})
    report = compact_archive(Work(config, clock_ms=NOW)).as_dict()
    return {name: report[name] for name in ("topics", "faults", "exit_code")}


def repair(url: str) -> dict[str, Any]:
    with Work(Config.model_validate({"archive": url})) as work:
        report = repair_archive(work, notices_max=5).as_dict()
    return {name: value for name, value in report.items() if name != "run_id"}


LOOKS: Final[dict[str, Callable[[str], Any]]] = {
    "check": lambda url: check_archive(open_archive(url), kept_max=5),
    "compact": compact,
    "prune by runs": lambda url: prune(url, RunPolicy(last=2)),
    "prune by age": lambda url: prune(url, before_ms=1_050_000),
    "prune by size of topics": lambda url: prune(url, topic_bytes_max=12_500_000_000),
    "prune by size of the archive": lambda url: prune(url, archive_bytes_max=33_000_000_000),
    "prune by both sizes": lambda url: prune(url, topic_bytes_max=12_500_000_000, archive_bytes_max=21_000_000_000),
    "prune as the source": lambda url: prune(url, as_source_at_ms=1_050_000 + 604_800_000),
    "repair": repair,
}


def read_in_small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    for method in (Queries.portions, Queries.portions_with_replaced):
        assert method.__kwdefaults__ is not None
        monkeypatch.setitem(method.__kwdefaults__, "rows_max", PORTION)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three topics of 100 partitions, each with a row of each of 20 runs."""
    folder = str(tmp_path_factory.mktemp("large"))
    with patch.object(files, "_GROUP_ROWS", GROUP):
        write_archive(folder, partitions=PARTITIONS, segments=PARTITIONS * 20)
    return folder


@pytest.mark.parametrize("name", LOOKS)
def test_a_command_that_looks_says_the_same_whatever_portions_it_reads(
    name: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = LOOKS[name](url)
    read_in_small_portions(monkeypatch)
    assert LOOKS[name](url) == whole


@pytest.mark.parametrize("name", MEASURED)
def test_a_command_that_looks_never_holds_all_rows(name: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = open_archive(url).catalog.rows().nbytes
    monkeypatch.setattr(files, "_GROUP_ROWS", 4 * GROUP)
    read_in_small_portions(monkeypatch)
    assert peak_bytes(LOOKS[name], url) < everything / 2


def peak_bytes(look: Callable[[str], Any], url: str) -> int:
    """The most memory that Arrow had at a time."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(pa.system_memory_pool())
    pa.set_memory_pool(pool)
    try:
        look(url)
    finally:
        pa.set_memory_pool(before)
    return int(pool.max_memory())
