from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.cli.progress import describe, progress_bar
from maxbrod.work.progress import Progress

if TYPE_CHECKING:
    import pytest


def test_the_rate_and_the_time_left_follow_from_what_is_done() -> None:
    step = Progress(phase="reading", bytes_done=25_000_000, bytes_total=100_000_000, records_done=1234)
    assert describe(step, 5.0) == "25.0 MB of 100.0 MB, 1,234 records, 5.0 MB/s, 0:00:15 left"
    assert describe(Progress(phase="reading", bytes_total=7), 0.0) == "0 B of 7 B"


def test_a_pipe_sees_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(shown=True) as on_progress:
        on_progress(Progress(phase="reading", bytes_done=1, bytes_total=2))
    assert capsys.readouterr() == ("", "")
