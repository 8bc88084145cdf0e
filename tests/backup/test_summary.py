"""What a backup says when something wants looking at, and what it says only once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from maxbrod.backup.cli import NOTICES_SHOWN_MAX, TOPICS_SHOWN_MAX, IntervalPrinter, print_summary
from maxbrod.backup.follow import Interval
from maxbrod.backup.report import BackupReport, TopicReport
from maxbrod.cli.output import out
from maxbrod.errors import UnavailableError
from maxbrod.notices import Notice

if TYPE_CHECKING:
    from collections.abc import Iterable

CORRUPT = Notice(
    kind="corrupt",
    message="the checksum of a batch [is] wrong",
    topic="orders",
    partition=3,
    first_offset=70,
    end_offset=80,
    hint="move the leadership",
    exit_code=4,
)
MISSING = Notice(kind="missing", message="there is no such topic yet", topic="later")


def topic(name: str = "orders", **figures: int) -> TopicReport:
    usual = {"partitions": 4, "records": 10, "bytes": 500, "raw_bytes": 2000}
    return TopicReport(topic=name, topic_id=name, gaps={"retention": 12}, **{**usual, **figures})


def report(notices: Iterable[Notice] = (), topics: Iterable[TopicReport] = (topic(),)) -> BackupReport:
    return BackupReport(
        run_id="20260131T120000Z-abcdef",
        archive="/archive",
        started_at_ms=1_769_860_800_000,
        finished_at_ms=1_769_860_802_000,
        topics=tuple(topics),
        notices=tuple(notices),
        objects=1,
        version=1,
        committed=True,
        recovery_point_ms=1_769_860_800_000,
    )


def interval(told: BackupReport | None = None, error: UnavailableError | None = None) -> Interval:
    return Interval(
        number=1,
        started_at_ms=1_769_860_800_000,
        finished_at_ms=1_769_860_802_000,
        report=told,
        error=error,
        recovery_point_ms=1_769_860_800_000,
        failures=0 if error is None else 3,
        lags=None if told is None else {each.topic: each.waiting for each in told.topics},
    )


def test_what_is_wrong_is_named_with_its_offsets_and_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(report([CORRUPT, MISSING]))
    told = capsys.readouterr().out
    assert "corrupt: orders-3 offsets 70 to 80: the checksum of a batch [is] wrong\n  move the leadership\n" in told
    assert "retention 12" in told
    assert told.index("missing") < told.index("corrupt: ")
    assert told.endswith("corrupt data found: 1 problem above ('corrupt')\n")
    assert "complete" not in told


FULL = Notice(kind="storage", message="the disk is full", topic="orders", exit_code=1)


def test_a_topic_has_nothing_new_only_if_all_of_it_was_asked_and_is_archived(
    capsys: pytest.CaptureFixture[str],
) -> None:
    idle = {"records": 0, "bytes": 0, "raw_bytes": 0}
    topics = [
        replace(topic(name, **idle), gaps={}, waiting=waiting)
        for name, waiting in (("same", 0), ("behind", 40), ("unasked", None))
    ]
    stored_nothing = replace(report([FULL], topics), committed=False, recovery_point_ms=None)
    assert stored_nothing.waiting is None
    print_summary(stored_nothing)
    told = capsys.readouterr().out
    assert "1 topic without anything new" in told
    lines = {line.split()[0]: line.split()[-1] for line in told.splitlines()}
    assert (lines["behind"], lines["unasked"]) == ("40", "unknown")
    assert (
        "nothing was stored: /archive stays as it is\nrecovery point: none yet\nfailed: 1 problem above ('storage')"
        in told
    )
    # A run that ended before it could ask anybody knows of no lag.
    assert replace(report(topics=()), planned=False).waiting is None


def test_the_document_the_words_and_the_exit_code_give_one_verdict() -> None:
    for notices, verdict in (([], "complete"), ([MISSING], "complete"), ([CORRUPT], "corrupt data found")):
        told = report(notices).as_dict()
        assert (told["verdict"], told["complete"]) == (verdict, told["exit_code"] == 0)
    assert report([CORRUPT, FULL]).verdict == interval(report([CORRUPT, FULL])).verdict == "failed"


def test_a_hundred_thousand_notices_and_topics_do_not_flood_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    notices = [replace(CORRUPT, partition=number) for number in range(100_000)]
    print_summary(report(notices, [topic(f"topic-{number}") for number in range(1000)]))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < TOPICS_SHOWN_MAX + 2 * NOTICES_SHOWN_MAX + 10
    assert f"corrupt: {100_000 - NOTICES_SHOWN_MAX:,} more, all of them with --json" in lines
    assert f"and {1000 - TOPICS_SHOWN_MAX:,} topics more" in lines


@pytest.mark.parametrize("width", ["80", "40"])
def test_no_table_is_wider_than_the_terminal(
    width: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(out, "_width", int(width))
    print_summary(
        report(topics=[topic("a-topic-with-a-name-as-long-as-names-of-topics-tend-to-be", waiting=123_456_789)])
    )
    table = capsys.readouterr().out.split("10 records")[0]
    assert max(map(len, table.splitlines())) <= int(width)


def test_each_piece_of_news_is_told_once_and_again_when_it_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    show = IntervalPrinter(quiet=False, as_json=False)
    told = []
    for notices in ([MISSING], [replace(MISSING, message="still none")], [], [MISSING]):
        show(interval(report(notices)))
        told.append(capsys.readouterr().out.count("missing: "))
    assert told == [1, 0, 0, 1]


def test_an_interval_tells_lag_and_recovery_point(capsys: pytest.CaptureFixture[str]) -> None:
    show = IntervalPrinter(quiet=False, as_json=False)
    show(interval(report(topics=[topic(waiting=7)])))
    assert capsys.readouterr().out == (
        "2026-01-31 12:00:02Z  10 records, 2.0 kB in 2.0 s; lag 7 offsets, 2 s; "
        "recovery point 2026-01-31 12:00:00Z; complete\n"
    )
    show(interval(error=UnavailableError("no broker answers")))
    shown = capsys.readouterr()
    assert "lag unknown, 2 s; recovery point 2026-01-31 12:00:00Z; failed, 3 in a row" in shown.out
    assert "error: no broker answers" in shown.err


def test_quiet_follows_in_silence_but_for_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    show = IntervalPrinter(quiet=True, as_json=False)
    show(interval(report([MISSING])))
    assert capsys.readouterr() == ("", "")
    show(interval(report([MISSING, CORRUPT])))
    shown = capsys.readouterr()
    assert (shown.out, "corrupt: orders-3" in shown.err) == ("", True)


def test_a_run_that_found_no_topic_is_not_called_complete(capsys: pytest.CaptureFixture[str]) -> None:
    unmatched = Notice(kind="missing", message="no topic matches ordres-* yet")
    nothing = report([unmatched], topics=())
    print_summary(nothing)
    IntervalPrinter(quiet=False, as_json=False)(interval(nothing))
    told = capsys.readouterr().out
    assert told.count("nothing selected") == 2
    assert "complete" not in told
    assert (nothing.as_dict()["verdict"], interval(nothing).as_dict()["verdict"]) == ("nothing selected",) * 2
    assert report([unmatched]).verdict == "complete", "other topics were there"
    assert interval(report([unmatched, CORRUPT], topics=())).verdict == "corrupt data found"
