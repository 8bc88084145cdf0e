from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from maxbrod.cli.commands import logged
from maxbrod.cli.progress import _Line, _Pace, describe, progress_bar, progress_lines
from maxbrod.work.progress import Meter, Progress


def test_a_line_has_bytes_rate_and_the_time_left_as_far_as_they_are_known() -> None:
    step = Progress(phase="reading", bytes_done=25_000_000, bytes_total=100_000_000, records_done=1234)
    assert describe(step, 5e6, 15) == "25.0 MB of 100.0 MB, 5.0 MB/s, 0:00:15 left"
    assert describe(Progress(phase="reading", bytes_total=7), 0.0, None) == "0 B of 7 B"
    assert describe(Progress(phase="compacting", bytes_done=7_000), 350.0, None) == "7.0 kB, 350 B/s"
    assert describe(Progress(phase="querying", tasks_done=3, tasks_total=1200), 0.0, None) == "3 of 1,200 tasks"
    assert describe(Progress(phase="planning"), 0.0, None) == ""


def shown(width: int, *steps: Progress) -> str:
    line, console = _Line(), Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    for step in steps:
        line.see(step)
    with console.capture() as captured:
        console.print(line, end="")
    return captured.get()


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_line_is_one_line_at_any_width(width: int) -> None:
    large = Progress(phase="looking for first differences", bytes_done=123_456_789_000, bytes_total=987_654_321_000)
    for step in (large, Progress(phase="reading", bytes_done=1, bytes_total=9), Progress(phase="starting Spark")):
        text = shown(width, step)
        assert text.count("\n") <= 1
        assert len(text.rstrip("\n")) <= width
    assert "0:00:00" in shown(width, Progress(phase="starting Spark")), "for how long"
    assert "of 110.0 MB" in shown(80, Progress(phase="reading", bytes_done=1, bytes_total=110_000_000))
    assert "━" in shown(80, Progress(phase="reading", bytes_done=50_000_000, bytes_total=110_000_000))


def test_the_rate_is_that_of_the_last_seconds_and_a_new_phase_begins_anew() -> None:
    pace = _Pace()
    step = Progress(phase="reading", bytes_done=0, bytes_total=1_000)
    assert pace.see(step, 100.0)
    for second in range(1, 31):
        assert not pace.see(replace(step, bytes_done=10 * second), 100.0 + second)
    assert (round(pace.bytes_per_s), pace.left_s(replace(step, bytes_done=300))) == (10, 70)
    for second in range(31, 60):
        pace.see(replace(step, bytes_done=300), 100.0 + second)
    assert (pace.bytes_per_s, pace.left_s(replace(step, bytes_done=300))) == (0.0, None), "it stands still"
    assert pace.see(Progress(phase="committing"), 161.0)
    assert (pace.began_at, pace.bytes_per_s) == (161.0, 0.0)


def test_a_pipe_sees_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(shown=True) as on_progress:
        on_progress(Progress(phase="reading", bytes_done=1, bytes_total=2))
    assert capsys.readouterr() == ("", "")


def test_lines_on_request_are_json_one_for_each_phase_and_one_at_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_lines(shown=True), progress_bar(shown=False) as on_progress:
        on_progress(Progress(phase="planning"))
        for done in (0, 1, 2, 100):
            on_progress(Progress(phase="reading", bytes_done=done, bytes_total=100))
    printed = capsys.readouterr()
    lines = [json.loads(line) for line in printed.err.splitlines()]
    assert [(line["phase"], line["bytes_done"]) for line in lines] == [
        ("planning", 0),
        ("reading", 0),
        ("reading", 100),
    ]
    assert all(line["event"] == "progress" and line["bytes_per_s"] >= 0 for line in lines)
    assert printed.out == "", "standard output is for the document"


def test_commands_without_a_configuration_file_print_their_progress_too(capsys: pytest.CaptureFixture[str]) -> None:
    def pack() -> None:
        with progress_bar(shown=False) as on_progress:
            on_progress(Progress(phase="packing"))

    logged(pack, "cluster pack")(verbose=None, progress=True, log_file=None, log_format=None)
    assert json.loads(capsys.readouterr().err)["phase"] == "packing"


def test_bytes_that_tasks_count_are_shown_before_a_task_has_ended() -> None:
    seen: list[tuple[int, int]] = []
    meter = Meter(lambda step: seen.append((step.bytes_done, step.bytes_total)), "reading", 300)
    meter.begin(2, 200)
    meter.seen(0, 30)
    meter.seen(1, 30)
    meter.seen(1, 150)
    meter.seen(1, 900)
    meter.seen(2, 180)
    meter.begin(1, 100)
    meter.seen(0, 10)
    done = [0, 30, 30, 150, 200, 200, 200, 200, 210]
    assert seen == [(size, 300) for size in done], "never more than the wave has, and exact when it has ended"


def test_where_tasks_cannot_count_those_that_have_ended_stand_for_their_bytes() -> None:
    seen: list[tuple[int, int]] = []
    meter = Meter(lambda step: seen.append((step.bytes_done, step.tasks_done)), "reading", 300)
    meter.begin(3, 300)
    for ended in (1, 2, 3):
        meter.seen(ended, 0)
    assert seen == [(0, 0), (100, 1), (200, 2), (300, 3)]


def test_what_a_wave_really_had_replaces_the_estimate_and_the_total_follows() -> None:
    seen: list[Progress] = []
    meter = Meter(seen.append, "reading", 300, 4)
    meter.begin(2, 200)
    meter.end(150, records=7)
    meter.begin(2, 100)
    last = seen[-1]
    assert (last.bytes_done, last.bytes_total, last.records_done) == (150, 250, 7)
    assert (last.tasks_done, last.tasks_total) == (2, 4)


def test_a_total_that_is_unknown_stays_so() -> None:
    seen: list[Progress] = []
    meter = Meter(seen.append, "compacting")
    meter.begin(2, 200)
    meter.seen(0, 500)
    assert (seen[-1].bytes_done, seen[-1].bytes_total) == (500, 0)
