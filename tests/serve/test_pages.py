"""The pages' values, from made-up facts and without a server."""

from __future__ import annotations

import shlex
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.archive.archive import Proof, ProofKind
from maxbrod.archive.runs import RunSummary
from maxbrod.catalog.rows import encode_rows
from maxbrod.inspect.listing import TopicListing, TopicSummary
from maxbrod.inspect.options import StatusOptions
from maxbrod.inspect.promises import ArchiveFacts, LastBackup, judge
from maxbrod.inspect.topic import Span
from maxbrod.model import GapReason, PartitionId
from maxbrod.prune.options import PruneOptions
from maxbrod.prune.report import Item, PruneReport, PruneTotals
from maxbrod.replicate.heartbeat import Heartbeat
from maxbrod.restore.options import RestoreOptions
from maxbrod.serve.pages.charts import TIME_COLUMNS, WIDTH, line_chart, offset_rects, over_time
from maxbrod.serve.pages.command_lines import flags_of, prune_words, restore_words
from maxbrod.serve.pages.frame import link, listed
from maxbrod.serve.pages.jobs import jobs_view
from maxbrod.serve.pages.proofs import drills_view, growth_view, replication_view
from maxbrod.serve.pages.records import DecodedBytes, hex_lines, shown_bytes, visible
from maxbrod.serve.pages.restore import form_of
from maxbrod.serve.pages.retention import policy_of, topic_fates
from maxbrod.serve.pages.runs import runs_view
from maxbrod.serve.pages.topic import ConfigSeen, history_view
from maxbrod.serve.pages.topics import topic_lines, topics_view
from maxbrod.serve.pages.wall import in_order_of_concern, wall_row
from support.catalog_rows import gap, segment
from support.shown_archives import schedule

NOW_MS = 1_790_000_000_000
HOUR_MS = 3_600_000


def facts(**changes: Any) -> ArchiveFacts:
    values: dict[str, Any] = {
        "now_ms": NOW_MS,
        "backup": LastBackup(run_id="r", finished_at_ms=NOW_MS - HOUR_MS, exit_code=0),
        "unfinished": (),
        "recovery_point_ms": NOW_MS - HOUR_MS,
        "missing": None,
        "damaged": None,
        "deep_check": None,
        "drill": None,
        "bytes": 10**12,
        "records": 1000,
        "partitions": 3,
        "segments": 7,
        "grown": [(NOW_MS - 10 * 24 * HOUR_MS, 10**9), (NOW_MS - HOUR_MS, 10**9)],
        "format_version": "1.2",
        "release_format": "1.2",
        "newest_run_ms": NOW_MS - HOUR_MS,
        "layout": "kafka",
    }
    return ArchiveFacts(**{**values, **changes})


def run(number: int, **changes: Any) -> RunSummary:
    values: dict[str, Any] = {
        "run_id": f"run-{number:05d}",
        "command": "backup",
        "started_at": NOW_MS + number * 1000 - 500,
        "finished_at": NOW_MS + number * 1000,
        "records": 5,
        "bytes": 100,
        "topics": 1,
        "exit_code": 0,
        "snapshot": "snapshots/x",
        "statistics": {},
    }
    return RunSummary(**{**values, **changes})


def row_of(found: ArchiveFacts | None, **changes: Any) -> Any:
    promises = () if found is None else judge(found, StatusOptions())
    values: dict[str, Any] = {
        "promises": promises,
        "facts": found,
        "runs": (),
        "checked_at_ms": NOW_MS,
        "reading": False,
    }
    return wall_row("a", "/a", **{**values, **changes})


def test_an_archive_that_nobody_has_checked_is_neither_good_nor_bad() -> None:
    row = row_of(None)
    assert (row.state, row.recovery_point_ms, row.bytes) == ("none", None, None)
    assert "nothing is said" in row.sentence


def test_the_worst_promise_is_the_sentence_and_decides_the_state() -> None:
    assert row_of(facts()).state == "warn", "no deep check is recorded"
    failed = row_of(facts(backup=LastBackup(run_id="r", finished_at_ms=NOW_MS, exit_code=3, findings=("gone",))))
    assert failed.state == "bad"
    assert failed.sentence.startswith("backup: the last one ended with 3: gone")
    assert [row.state for row in in_order_of_concern([row_of(facts()), failed])] == ["bad", "warn"]


def test_bars_of_runs_differ_without_colour() -> None:
    good, bad = row_of(facts(), runs=[run(1), run(2, exit_code=1)]).bars
    assert good.y > 0
    assert bad.y == 0
    assert "failed" in bad.title


@given(
    st.lists(st.tuples(st.integers(1, 50), st.sampled_from(["data", *map(str, GapReason)])), min_size=1, max_size=20),
    st.integers(0, 2**62),
)
def test_a_bar_of_offsets_is_filled_from_edge_to_edge_and_shows_every_alarm(
    sizes: list[tuple[int, str]], first: int
) -> None:
    spans = []
    for size, cover in sizes:
        spans.append(Span(first_offset=first, end_offset=first + size, cover=cover))
        first += size
    rects = offset_rects(spans)
    assert rects[0].x == 0
    assert abs(rects[-1].x + rects[-1].width - WIDTH) < 0.1
    assert all(abs(a.x + a.width - b.x) < 0.1 for a, b in pairwise(rects))
    alarms = {"corrupt", "unexplained"}
    if sum(size for size, _ in sizes) <= 250:
        assert {rect.cover for rect in rects} & alarms == {cover for _, cover in sizes} & alarms


def rows(*found: Any) -> pa.Table:
    return encode_rows(found).select(TIME_COLUMNS)


def test_records_are_spread_over_the_time_of_their_segments_and_none_is_lost() -> None:
    time = over_time(
        rows(
            segment(0, 100, min_timestamp=NOW_MS, max_timestamp=NOW_MS + 10 * HOUR_MS - 1),
            gap(100, 150),
            segment(150, 250, min_timestamp=NOW_MS + 20 * HOUR_MS, max_timestamp=NOW_MS + 30 * HOUR_MS - 1),
            segment(0, 7, partition=1, min_timestamp=NOW_MS, max_timestamp=NOW_MS),
        )
    )
    assert time is not None
    assert abs(sum(step.records for step in time.steps) - 207) <= len(time.steps) / 2, "but for rounding"
    assert time.steps[len(time.steps) // 2].records == 0, "between the segments there is nothing"
    assert [rect.cover for rect in time.partitions[0]] == ["data", "data", "retention"]
    missing = time.partitions[0][2]
    assert 320 < missing.x < 345
    assert 320 < missing.width < 345, "the gap is drawn between the records around it"


def test_times_outside_of_the_calendar_leave_room_for_the_rest() -> None:
    odd = [
        segment(10, 20, min_timestamp=2**62, max_timestamp=2**63 - 1),
        segment(20, 30, min_timestamp=-(2**63), max_timestamp=-5),
        segment(30, 40, min_timestamp=None, max_timestamp=None),
    ]
    time = over_time(rows(segment(0, 10, min_timestamp=NOW_MS, max_timestamp=NOW_MS + HOUR_MS), *odd))
    assert time is not None
    assert (time.first_ms, time.end_ms) == (NOW_MS, NOW_MS + HOUR_MS + 1)
    assert time.unplaced == 30
    assert over_time(rows(*odd)) is None
    assert over_time(rows()) is None


def summary(name: str, **changes: Any) -> TopicSummary:
    values: dict[str, Any] = {
        "topic": name,
        "topic_id": f"{name:x<22}",
        "newest": True,
        "partitions": 1,
        "offsets": 1_000_000,
        "records": 10,
        "segments": 1,
        "bytes": 5,
        "raw_bytes": 5,
        "gaps": {},
        "min_timestamp": 1,
        "max_timestamp": 2,
        "written_at": 3,
    }
    return TopicSummary(**{**values, **changes})


def listing(*topics: TopicSummary) -> TopicListing:
    return TopicListing(
        archive="/a", layout="kafka", as_of=None, topics=topics, runs=0, last_run=None, recovery_point=None
    )


def test_coverage_is_never_rounded_up_to_all_and_a_lost_offset_is_seen() -> None:
    (line,) = topic_lines("a", listing(summary("t", gaps={"corrupt": 1})), {})
    assert line.covered == "99.9%"
    assert line.alarming
    assert line.cover[-1].cover == "corrupt"
    assert line.cover[-1].width > 5
    assert topic_lines("a", listing(summary("t")), {})[0].covered == "100%"


def test_topics_are_found_by_words_ordered_and_cut_into_pages() -> None:
    lines = topic_lines(
        "a", listing(*(summary(f"Topic-{n:04d}", bytes=n) for n in range(1200)), summary("t", newest=False)), {}
    )
    view = topics_view(lines, words="topic 11", sort="bytes")
    assert view.lines.total == sum("11" in f"{number:04d}" for number in range(1200))
    assert view.lines.items[0].summary.bytes == max(line.summary.bytes for line in view.lines.items)
    assert topics_view(lines, first=10**18).lines.items[-1].summary.topic == "Topic-1199"
    assert topics_view(lines, sort="nonsense").sort == "name"
    assert view.past == 1


def test_ten_thousand_runs_are_one_page() -> None:
    runs = [run(number, exit_code=1 if number % 100 == 0 else 0) for number in range(10_000)]
    view = runs_view("a", runs)
    assert (view.lines.total, len(view.lines.items)) == (10_000, 100)
    assert view.lines.items[0].run.run_id == "run-09999"
    assert runs_view("a", runs, trouble=True).lines.total == 100
    assert view.lines.following == 100
    assert listed(runs, 9_950, 100).following is None


@pytest.mark.parametrize(
    ("data", "form", "text"),
    [
        (None, "null", None),
        (b"", "empty", ""),
        (b"plain", "text", "plain"),
        (b'{"a": 1}', "json", '{"a": 1}'),
        (b'{"a": ', "text", '{"a": '),
        (b"\xff\xfe", "binary", None),
        (b"\x00\x00\x00\x00\x00\x00\x00\x2a", "binary", None),
        ("\u202eevil\u2066\u200b".encode(), "text", "\\u{202e}evil\\u{2066}\\u{200b}"),
        (b"a\x1b[31mb", "text", "a\\u{1b}[31mb"),
        (b"[" * 5000, "text", "[" * 5000),
    ],
)
def test_bytes_are_shown_as_what_they_are(data: bytes | None, form: str, text: str | None) -> None:
    found = shown_bytes(data)
    assert (found.form, found.text) == (form, text)
    assert found.size == (None if data is None else len(data))


def test_long_values_are_cut_and_say_so() -> None:
    assert shown_bytes(b"x" * 30_000).cut
    assert shown_bytes(b"\xff" * 2000).cut
    assert not shown_bytes(b"x" * 1000).cut


def test_what_a_schema_cannot_decode_is_shown_as_bytes_with_the_reason() -> None:
    found = shown_bytes(b"\x00\x00\x00\x00\x07x", DecodedBytes(schema="t-value", why="no such schema"))
    assert found.note == "no such schema"
    decoded = shown_bytes(b"\x00\x00\x00\x00\x07x", DecodedBytes(schema="t-value", value={"a": b"\xff"}))
    assert (decoded.form, decoded.text) == ("t-value", '{"a": "/w=="}')


@given(st.text())
def test_visible_text_has_no_letter_that_hides(text: str) -> None:
    assert all(letter in "\n\t" or letter.isprintable() or letter.isspace() for letter in visible(text))


@given(st.binary(max_size=70))
def test_hexadecimal_lines_have_every_byte(data: bytes) -> None:
    assert bytes.fromhex("".join(line[8:55] for line in hex_lines(data))) == data


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12))
def test_a_command_line_survives_a_shell_whatever_a_topic_is_called(name: str) -> None:
    words = shlex.split(restore_words({"topics": [name], "suffix": name}, place=("--archive", "/a")))
    assert words[:4] == ["maxbrod", "restore", "--archive", "/a"]
    flag = [f"--topic={name}"] if name.startswith("-") else ["--topic", name]
    assert words[6 : 6 + len(flag)] == flag


def test_a_command_line_says_what_was_given_and_nothing_else() -> None:
    assert flags_of(RestoreOptions, {"topics": ["a", "b"], "accept_gaps": True, "since": "", "with_acls": False}) == [
        *("--topic", "a", "--topic", "b", "--accept-gaps")
    ]
    assert flags_of(PruneOptions, {"topics": ["-x"], "keep_last": 3}) == ["--keep-last", "3", "--", "-x"]
    assert (
        prune_words({"older_than": "3d"}, place=("--archive", "/a b"))
        == "maxbrod prune --archive '/a b' --older-than 3d"
    )


def test_forms_become_options_and_unknown_fields_nothing() -> None:
    form = form_of({"topics": ["a\r\n\n b "], "since": [" "], "offsets": ["auto"], "yes": ["1"], "with_acls": ["1"]})
    assert form == {"topics": ["a", "b"], "with_acls": True}
    assert policy_of({"keep_daily": ["5"], "keep_last": ["x"], "apply": ["1"], "older_than": ["3d"]}) == {
        "keep_daily": 5,
        "keep_last": "x",
        "older_than": "3d",
    }


def test_a_link_has_names_as_parameters_only() -> None:
    assert link("a", "topic", name="../../x?&#", id=None) == "/archives/a/topic?name=..%2F..%2Fx%3F%26%23"


def test_the_history_of_a_configuration_passes_over_runs_that_saw_nothing() -> None:
    seen = [
        ConfigSeen(run_id="1", at_ms=1, configs={"a": "1", "b": "1"}),
        ConfigSeen(run_id="2", at_ms=2, configs=None),
        ConfigSeen(run_id="3", at_ms=3, configs={"a": "2", "c": None}),
    ]
    found = history_view("t", seen, left=4, unreadable=0)
    assert [(line.run_id, line.name, line.kind) for line in found.changes] == [
        *(("3", "c", "set"), ("3", "b", "removed"), ("3", "a", "changed")),
    ]
    assert (found.looked, found.left) == (3, 4)


def drill(at: int, records: int | None, *, sound: bool = True) -> Proof:
    details = {} if records is None else {"records": records, "restore_s": 10.0}
    return Proof(
        kind=ProofKind.DRILL, verdict="v", sound=sound, started_at_ms=at - 1, finished_at_ms=at, details=details
    )


def test_a_drill_that_proved_nothing_promises_no_recovery_time() -> None:
    view = drills_view([drill(3, 100), drill(1, 50), drill(2, 70, sound=False), drill(4, None)], records=1000)
    assert view.speed is not None
    assert [mark.good for mark in view.speed.marks] == [True, False, True]
    assert view.recovery is not None
    assert len(view.recovery.marks) == 2
    assert len(view.drills) == 4
    assert line_chart([(1, 1.0, "", True)], "") is None


def test_cost_is_estimated_only_with_a_price() -> None:
    with_price = growth_view(facts(free_bytes=10**10), [run(1), run(2)], 0.023)
    assert with_price.monthly == pytest.approx(23.0)
    assert with_price.days_left == pytest.approx(50, abs=1)
    assert growth_view(facts(grown=()), [], None).monthly is None


def test_replication_is_as_far_behind_as_the_last_heartbeat_says() -> None:
    places = [PartitionId(topic_id="x", partition=number) for number in range(3)]
    beat = Heartbeat(at_ms=NOW_MS - 60_000, instance="i", cluster_id="c", ends=dict.fromkeys(places, 10))
    view = replication_view((), [beat], {places[0]: 10, places[1]: 4}, {"x": "orders"}, now_ms=NOW_MS, stale_ms=30_000)
    assert (view.behind, view.partitions, view.stale) == (16, 3, True)
    assert view.lags[0].topic == "orders"
    nothing = replication_view((), [], {}, {}, now_ms=NOW_MS, stale_ms=1)
    assert (nothing.beat_ms, nothing.stale, nothing.lags) == (None, False, ())


def test_a_silent_scheduler_runs_nothing_whatever_its_state_says() -> None:
    state = schedule(NOW_MS)
    running = {name: replace(job, running_since_ms=NOW_MS) for name, job in state.jobs.items()}
    alive = jobs_view(replace(state, jobs=running), NOW_MS + 1)
    assert (alive.silent, alive.lines[0].name, alive.lines[0].running_since_ms) == (False, "sweep", NOW_MS)
    later = jobs_view(replace(state, jobs=running), NOW_MS + 3 * 24 * HOUR_MS)
    assert later.silent
    assert [(line.running_since_ms, line.next_ms) for line in later.lines] == [(None, None)] * 2
    assert jobs_view(replace(state, instance=None), NOW_MS).silent


def test_fates_of_topics_add_up_and_name_every_reason() -> None:
    def item(topic: str, size: int, reason: str, *, keep: bool) -> Item:
        return Item(
            topic=topic, topic_id="x", partition=0, first_offset=0, end_offset=1, segments=1, records=1, bytes=size,
            keep=keep, reason=reason, replaced=False,
        )  # fmt: skip

    none = PruneTotals(segments=0, records=0, bytes=0)
    report = PruneReport(
        archive="/a", layout="kafka", runs=(), going=none, kept=none, objects=0, objects_bytes=0, applied=False,
        items=(item("a", 5, "old", keep=False), item("a", 3, "held", keep=True), item("b", 9, "new", keep=True)),
    )  # fmt: skip
    first, second = topic_fates(report)
    assert (first.topic, first.going_bytes, first.kept_bytes) == ("a", 5, 3)
    assert first.why == ("goes: old (5 B)", "stays: held (3 B)")
    assert second.going_bytes == 0
    assert replace(report, items=()).exit_code == 0
