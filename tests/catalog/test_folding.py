"""The catalog's own files stay few, and no commit pays for more than its share."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from maxbrod.catalog.codec import DataFile
from maxbrod.catalog.commits import FAN_IN, TIER_ROWS, choose_folds

OPEN_MAX = (FAN_IN - 1) * len(TIER_ROWS)
FOLDED_ROWS_MAX = (FAN_IN - 1) * sum(bound - 1 for bound in TIER_ROWS)


def commit(files: list[DataFile], rows: int, name: int) -> tuple[list[DataFile], int]:
    folds = choose_folds(files, rows)
    folded = sum(file.rows for file in folds)
    rest = [file for file in files if file not in folds]
    return [*rest, DataFile(path=str(name), rows=rows + folded, bytes=0)], folded


@given(st.lists(st.sampled_from([1, 2, 100, 1023, 1024, 5000, 8192, 60_000, 65_536, 300_000]), max_size=200))
def test_commits_of_any_size_leave_few_open_files_and_fold_a_bounded_number_of_rows(sizes: list[int]) -> None:
    files: list[DataFile] = []
    for name, size in enumerate(sizes):
        files, folded = commit(files, size, name)
        assert folded <= FOLDED_ROWS_MAX
        assert sum(file.rows < TIER_ROWS[-1] for file in files) <= OPEN_MAX
    assert sum(file.rows for file in files) == sum(sizes)


def test_ten_thousand_runs_leave_few_files_and_rewrite_each_row_a_few_times() -> None:
    files: list[DataFile] = []
    rewritten, rows, names = 0, 100, count()
    for _ in range(10_000):
        files, folded = commit(files, rows, next(names))
        rewritten += folded
    assert len(files) <= OPEN_MAX + 10_000 * rows // TIER_ROWS[-1]
    assert rewritten < 6 * 10_000 * rows
