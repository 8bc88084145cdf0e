"""Compaction by key: of each key the newest record stays, at its offset, and nothing else goes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxbrod.archive.archive import open_archive, open_for_writing
from maxbrod.archive.holds import add_hold, release_hold
from maxbrod.catalog.rows import Gap, Segment, decode_rows
from maxbrod.compact.by_key import plan, task, verb
from maxbrod.compact.by_key.plan import plan_partition, policy_of
from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, RefusedError, UsageError
from maxbrod.model import AbortedTransaction, Codec, GapReason
from support.catalog_rows import gap, segment
from support.keyed_archives import (
    CUT_MS,
    DAY_MS,
    Keyed,
    Seen,
    batch,
    compact_groups_here,
    compact_keys,
    live_rows,
    newest,
    records_of,
    topic_state,
    transaction,
    without_spark,
)
from support.native_archives import TOPIC, compact, file_of, in_memory, segments
from support.native_logs import marker

if TYPE_CHECKING:
    from collections.abc import Iterator

OLD_MS = CUT_MS - DAY_MS - 1


@pytest.fixture(autouse=True)
def sparkless(monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch)


@pytest.fixture
def keyed() -> Iterator[Keyed]:
    with in_memory() as made:
        yield Keyed(made)


def small_groups(monkeypatch: pytest.MonkeyPatch, group_bytes: int = 1) -> None:
    monkeypatch.setattr(verb, "plan_partition", partial(plan_partition, group_bytes=group_bytes))


def test_of_each_key_the_newest_record_stays_at_its_offset(keyed: Keyed) -> None:
    keyed.backup({0: [batch(0, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (None, b"x"))]})
    keyed.backup({0: [batch(4, (b"b", b"2"), (b"c", b"1"), (None, b"y"), (b"", b"empty"))]})
    report = compact_keys(keyed.url)
    assert (report.exit_code, report.total("records"), report.total("removed"), report.commits) == (EXIT_DONE, 8, 2, 1)
    assert [each[:3] for each in records_of(keyed.url)] == [
        (2, b"a", b"2"),
        (3, None, b"x"),
        (4, b"b", b"2"),
        (5, b"c", b"1"),
        (6, None, b"y"),
        (7, b"", b"empty"),
    ]
    assert live_rows(keyed.url) == [("compacted", 0, 2), ("data", 2, 8)]
    last = open_archive(keyed.url).catalog.runs()[-1]
    assert (last.run_id, last.snapshot, last.statistics["command"], last.statistics["removed"]) == (
        report.run_id,
        None,
        "compact",
        2,
    )


def test_a_partition_of_records_without_keys_stays_as_it_is(keyed: Keyed) -> None:
    keyed.backup({0: [batch(0, (None, b"x"))]})
    keyed.backup({0: [batch(1, (None, b"y"))]})
    report = compact_keys(keyed.url)
    assert (report.exit_code, report.commits) == (EXIT_DONE, 0)
    assert [each[:3] for each in records_of(keyed.url)] == [(0, None, b"x"), (1, None, b"y")]


def test_as_of_the_runs_before_everything_is_as_it_was_and_a_later_run_sees_what_stayed(keyed: Keyed) -> None:
    keyed.backup({0: [batch(0, (b"a", b"1"), (b"b", b"1"))]})
    keyed.backup({0: [batch(2, (b"a", b"2"), (b"b", b"2"))]})
    before = {name: records_of(keyed.url, name) for name in ("run-000001", "run-000002")}
    compact_keys(keyed.url)
    keyed.backup({0: [batch(4, (b"a", b"3"))]})
    assert {name: records_of(keyed.url, name) for name in before} == before
    assert [each[0] for each in records_of(keyed.url, "run-000003")] == [2, 3, 4]
    compact_keys(keyed.url)
    assert {name: records_of(keyed.url, name) for name in before} == before
    assert [each[0] for each in records_of(keyed.url, "run-000003")] == [2, 3, 4]
    assert [each[0] for each in records_of(keyed.url)] == [3, 4]


def test_a_second_compaction_finds_nothing_to_do_and_writes_nothing(keyed: Keyed) -> None:
    keyed.backup({0: [batch(0, (b"a", b"1"), (b"a", b"2"), (None, b"x"))]})
    assert compact_keys(keyed.url).commits == 1
    version, rows = open_archive(keyed.url).catalog.version, segments(keyed.url)
    report = compact_keys(keyed.url)
    assert (report.commits, report.run_id, open_archive(keyed.url).catalog.version) == (0, None, version)
    assert segments(keyed.url) == rows


def test_an_aborted_record_neither_wins_nor_stays_and_markers_go(keyed: Keyed) -> None:
    keyed.backup({0: [batch(0, (b"a", b"1"), (b"b", b"1"))]})
    keyed.backup(
        {0: [transaction(2, (b"a", b"aborted"), (None, b"aborted")), marker(4, 9, 0)]},
        aborted={0: [AbortedTransaction(producer_id=9, first_offset=2, last_offset=4)]},
    )
    keyed.backup({0: [transaction(5, (b"b", b"committed")), marker(6, 9, 1), batch(7, (b"c", b"1"))]})
    compact_keys(keyed.url)
    assert [each[:3] for each in records_of(keyed.url)] == [
        (0, b"a", b"1"),
        (5, b"b", b"committed"),
        (7, b"c", b"1"),
    ]
    rows = segments(keyed.url)
    assert [(row.aborted, row.control_records) for row in rows] == [((), 0)] * len(rows)


@settings(max_examples=25)
@given(data=st.data())
def test_any_log_is_compacted_as_the_model_says(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch, in_memory() as making:
        small_groups(monkeypatch, data.draw(st.sampled_from([1, 300, 1 << 20])))
        _matches_the_model(Keyed(making), data)


def _matches_the_model(keyed: Keyed, data: st.DataObject) -> None:
    keys = st.sampled_from([None, b"", b"a", b"b", b"c", b"d\0", b"d"])
    values = st.one_of(st.none(), st.binary(max_size=3))
    drawn = st.tuples(st.lists(st.tuples(keys, values), min_size=1, max_size=4), st.sampled_from("ppcx"))
    times = st.sampled_from([CUT_MS, OLD_MS, OLD_MS + 1, 0])
    offset = 0
    visible: list[Seen] = []
    aborted: list[AbortedTransaction] = []
    runs: list[tuple[list[bytes], tuple[int, int] | None]] = []
    for _ in range(data.draw(st.integers(1, 4))):
        hole = data.draw(st.sampled_from([0, 0, 3, 2000]))
        log, before = [], (offset, offset + hole) if hole else None
        offset += hole
        for records, kind in data.draw(st.lists(drawn, min_size=1, max_size=4)):
            at, codec = data.draw(times), data.draw(st.sampled_from([Codec.NONE, Codec.LZ4]))
            more: dict[str, Any] = {} if kind == "p" else {"attributes": 0x10, "producer_id": 9, "producer_epoch": 0}
            log.append(batch(offset, *records, at=at, codec=codec, **more))
            if kind != "x":
                visible += [(offset + n, key, value, at) for n, (key, value) in enumerate(records)]
            first, offset = offset, offset + len(records)
            if kind != "p":
                log.append(marker(offset, 9, int(kind == "c")))
                offset += 1
            if kind == "x":
                aborted.append(AbortedTransaction(producer_id=9, first_offset=first, last_offset=offset - 1))
        runs.append((log, before))
    rows = []
    for log, before in runs:
        packed, gaps = data.draw(st.booleans()), {0: before} if before else {}
        rows += keyed.backup({0: log}, gaps=gaps, aborted={0: aborted}, packed=packed, commit=False)
    keyed.making.archive.catalog.commit(rows)
    assert records_of(keyed.url) == visible
    number = data.draw(st.integers(1, len(runs)))
    cut = f"run-{number:06}"
    until = records_of(keyed.url, cut)
    later = visible[len(until) :]
    older = {name: records_of(keyed.url, name) for name in (cut, f"run-{len(runs):06}")}
    report = compact_keys(keyed.url, cut=cut)
    assert report.faults == ()
    assert records_of(keyed.url) == [*newest(until), *later]
    assert {name: records_of(keyed.url, name) for name in older} == older


def test_tombstones_go_when_they_are_older_than_delete_retention_ms_before_the_cut(keyed: Keyed) -> None:
    keyed.states[TOPIC] = topic_state(cleanup_policy="compact,delete", delete_retention_ms="1000")
    keyed.backup({0: [batch(0, (b"old", b"1"), (b"young", b"1"), (b"timeless", b"1"))]})
    keyed.backup(
        {
            0: [
                batch(3, (b"old", None), at=CUT_MS - 1001),
                batch(4, (b"young", None), at=CUT_MS - 1000),
                batch(5, (b"timeless", None), at=-1),
            ]
        }
    )
    compact_keys(keyed.url)
    assert [each[:3] for each in records_of(keyed.url)] == [(4, b"young", None), (5, b"timeless", None)]


def test_a_tombstone_stays_while_an_older_record_of_its_key_may_come_back(keyed: Keyed) -> None:
    rows: list[Segment | Gap] = [segment(0, 5), gap(5, 8, reason=GapReason.COMPACTED), segment(8, 10)]
    assert plan_partition(rows, end=10).tombstones_end == 10
    assert plan_partition(rows, end=10, held=[0]).tombstones_end == 0
    assert plan_partition(rows, end=9).tombstones_end == 8
    for reason in (GapReason.PRUNED, GapReason.CORRUPT, GapReason.UNEXPLAINED):
        assert plan_partition([rows[0], gap(5, 8, reason=reason), rows[2]], end=10).tombstones_end == 5
    keyed.backup({0: [batch(0, (b"a", b"1"), at=OLD_MS - 10)]}, min_timestamp_exact=True)
    keyed.backup({0: [batch(1, (b"a", None), (b"b", b"1"), (b"b", b"2"), at=OLD_MS)]}, min_timestamp_exact=True)
    archive = open_for_writing(keyed.url)
    hold = add_hold(archive, who="legal", why="case", until_ms=OLD_MS - 5)
    report = compact_keys(keyed.url)
    assert report.topics[0].left == {"held": 1}
    assert [each[:3] for each in records_of(keyed.url)] == [(0, b"a", b"1"), (1, b"a", None), (3, b"b", b"2")]
    release_hold(archive, hold.id, who="legal", why="closed")
    compact_keys(keyed.url)
    assert [each[:3] for each in records_of(keyed.url)] == [(3, b"b", b"2")]


def test_groups_end_where_boundaries_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(base: int, end: int, epoch: int = 0, **more: Any) -> Any:
        return segment(base, end, first_leader_epoch=epoch, last_leader_epoch=epoch, raw_bytes=100, **more)

    rows = [row(0, 5), row(5, 8), gap(8, 9, reason=GapReason.COMPACTED), row(9, 12), row(12, 15, 1), row(15, 20, 1)]
    found = plan_partition(rows, end=20, borders=[5])
    assert [[each.base_offset for each in group.rows] for group in found.groups] == [[0], [5], [9], [12, 15]]
    assert [group.last for group in found.groups] == [False, False, False, True]
    bounded = plan_partition(rows[-2:], end=20, group_bytes=150)
    assert len(bounded.groups) == 2
    strange = plan_partition([row(0, 5, reason=GapReason.UNEXPLAINED), row(5, 8)], end=8)
    assert (strange.left, strange.tombstones_end) == ({plan.INCOMPLETE: 1}, 0)


def test_a_topic_that_is_not_compacted_is_left_alone_and_refused_by_name(keyed: Keyed) -> None:
    keyed.states["events"] = topic_state("events")
    keyed.backup({0: [batch(0, (b"a", b"1"), (b"a", b"2"))]}, topic="events")
    keyed.backup({0: [batch(0, (b"a", b"1"), (b"a", b"2"))]})
    for named in (["events"], ["ev*"], [TOPIC, "events"]):
        with pytest.raises(RefusedError, match="compacted") as refused:
            compact_keys(keyed.url, topics=named)
        assert "cleanup.policy" in str(refused.value.hint)
    assert [each.topic for each in compact_keys(keyed.url, topics=["*"]).topics] == [TOPIC]
    assert len(records_of(keyed.url, topic="events")) == 2
    assert len(records_of(keyed.url)) == 1
    assert policy_of(None, None).compacted is False
    assert policy_of({"cleanup.policy": "compact"}, {"cleanup.policy": "delete"}).compacted is False
    assert policy_of(None, {"cleanup.policy": "delete, compact"}).compacted is True


def test_a_dry_run_lists_what_would_be_read_and_changes_nothing(keyed: Keyed) -> None:
    keyed.backup({0: [batch(0, (b"a", b"1"), (b"a", b"2"))], 1: [batch(0, (b"a", b"1"))]})
    version = open_archive(keyed.url).catalog.version
    report = compact_keys(keyed.url, dry_run=True)
    (topic,) = report.topics
    assert (topic.topic, topic.partitions, topic.segments, topic.records, topic.removed) == (TOPIC, 2, 2, 3, None)
    assert (topic.bytes, report.cut) == (sum(row.bytes for row in segments(keyed.url)), "run-000001")
    assert open_archive(keyed.url).catalog.version == version


def test_the_cut_is_a_run_with_a_snapshot(keyed: Keyed) -> None:
    keyed.backup({0: [batch(0, (b"a", b"1"), (b"a", b"2"))]}, snapshot=False)
    with pytest.raises(UsageError, match="snapshot"):
        compact_keys(keyed.url)
    keyed.backup({0: [batch(2, (b"a", b"3"))]})
    keyed.backup({0: [batch(3, (b"a", b"4"))]})
    with pytest.raises(UsageError, match="no runs"):
        compact_keys(keyed.url, cut="nothing")
    report = compact_keys(keyed.url, cut="run-000002")
    assert [each[0] for each in records_of(keyed.url)] == [2, 3]
    assert report.topics[0].left == {plan.LATER: 1}


def test_cut_without_by_key_is_refused(keyed: Keyed) -> None:
    keyed.backup({0: [batch(0, (b"a", b"1"))]})
    with pytest.raises(UsageError, match="by-key"):
        compact(keyed.url, cut="run-000001")


def test_the_leader_epoch_of_the_last_offset_stays_known_though_its_record_goes(keyed: Keyed) -> None:
    keyed.backup({0: [batch(0, (b"a", b"1"), leader_epoch=3, at=OLD_MS)]})
    keyed.backup({0: [batch(1, (b"a", None), leader_epoch=5, at=OLD_MS)]})
    keyed.backup({1: [batch(0, (b"a", b"1"), (b"a", None), at=OLD_MS)]})
    compact_keys(keyed.url)
    assert records_of(keyed.url) == []
    assert live_rows(keyed.url) == [("compacted", 0, 1), ("data", 1, 2)]
    assert [(row.records, row.last_leader_epoch) for row in segments(keyed.url)] == [(0, 5)]
    assert live_rows(keyed.url, partition=1) == [("compacted", 0, 2)], "it knew no epoch"


def test_codec_headers_timestamps_and_their_type_stay(keyed: Keyed) -> None:
    log = [
        batch(0, (b"a", b"x" * 500), (b"a", b"y" * 500), codec=Codec.ZSTD, leader_epoch=2),
        batch(2, (b"b", b"1"), (b"c", b"2"), at=5, attributes=0x08, max_timestamp=77, leader_epoch=2),
    ]
    keyed.backup({0: log}, packed=False)
    compact_keys(keyed.url, recompress="source")
    (row,) = segments(keyed.url)
    assert (row.codec, row.first_leader_epoch, row.reason) == ("zstd", 2, None)
    assert [(each[0], each[3]) for each in records_of(keyed.url)] == [(1, CUT_MS), (2, 77), (3, 77)]


def test_a_few_keys_in_a_long_log_take_few_rows(keyed: Keyed) -> None:
    log = [batch(base, (b"%d" % base, b"1")) for base in range(0, 400_000, 4000)]
    filled = [batch(base + 1, *[(b"same", b"2")] * 3999) for base in range(0, 400_000, 4000)]
    keyed.backup({0: [each for pair in zip(log, filled, strict=True) for each in pair]})
    compact_keys(keyed.url)
    assert len(records_of(keyed.url)) == 101
    assert len(live_rows(keyed.url)) <= 2 * 64 + 1


def test_a_damaged_slice_leaves_its_partition_and_the_others_go_on(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch)
    for number in range(3):
        keyed.backup({part: [batch(number, (b"a", b"%d" % number))] for part in range(2)}, packed=False)
    bad = next(row for row in segments(keyed.url) if row.partition == 1 and row.base_offset == 1)
    file = file_of(keyed.making, bad.path)
    file.chmod(0o644)
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    report = compact_keys(keyed.url)
    assert report.exit_code == EXIT_CORRUPT
    (fault,) = report.faults
    assert (fault.topic, fault.partition, fault.offset, fault.damaged) == (TOPIC, 1, 1, True)
    assert str(fault.object_name).endswith(bad.path)
    assert live_rows(keyed.url) == [("compacted", 0, 1), ("compacted", 1, 2), ("data", 2, 3)]
    assert live_rows(keyed.url, partition=1) == [("data", number, number + 1) for number in range(3)]
    assert open_archive(keyed.url).catalog.runs()[-1].statistics["exit_code"] == EXIT_CORRUPT


def test_a_missing_object_found_only_when_it_is_written_changes_nothing(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed.backup({0: [batch(0, (b"a", b"1"), (b"a", b"2"))]}, packed=False)
    path = segments(keyed.url)[0].path

    def gone(items: Any, *more: Any) -> Any:
        found = by_group(items, *more)
        file_of(keyed.making, path).unlink(missing_ok=True)
        return found

    by_group = task._by_group
    monkeypatch.setattr(task, "_by_group", gone)
    report = compact_keys(keyed.url)
    assert (report.exit_code, report.commits) == (EXIT_CORRUPT, 0)


def test_what_is_held_stays_as_it_is(keyed: Keyed) -> None:
    keyed.states["users"] = topic_state("users", cleanup_policy="compact")
    keyed.backup({0: [batch(0, (b"a", b"1"), (b"a", b"2"))]}, topic="users")
    keyed.backup({0: [batch(0, (b"a", b"1"), (b"a", b"2"))]})
    hold = add_hold(open_for_writing(keyed.url), who="legal", why="case", topics=[TOPIC])
    report = compact_keys(keyed.url)
    assert {each.topic: dict(each.left) for each in report.topics} == {TOPIC: {"held": 1}, "users": {}}
    assert (len(records_of(keyed.url)), len(records_of(keyed.url, topic="users"))) == (2, 1)
    release_hold(open_for_writing(keyed.url), hold.id, who="legal", why="closed")
    compact_keys(keyed.url)
    assert len(records_of(keyed.url)) == 1


def overtaking(monkeypatch: pytest.MonkeyPatch, between: Any) -> None:
    """Something happens after the groups were written, before the commit."""

    def overtaken(*arguments: Any, **more: Any) -> Any:
        found = compact_groups_here(*arguments, **more)
        monkeypatch.setattr(verb, "compact_groups", compact_groups_here)
        between()
        return found

    monkeypatch.setattr(verb, "compact_groups", overtaken)


def test_a_hold_that_is_added_meanwhile_is_respected(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    keyed.backup({0: [batch(0, (b"a", b"1"), (b"a", b"2"))]})
    overtaking(monkeypatch, lambda: add_hold(open_for_writing(keyed.url), who="legal", why="case"))
    report = compact_keys(keyed.url)
    assert (report.commits, report.overtaken) == (0, 1)
    assert len(records_of(keyed.url)) == 2


def test_a_backup_that_commits_meanwhile_does_not_stop_it(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    keyed.backup({0: [batch(0, (b"a", b"1"), (b"a", b"2"))]})
    overtaking(monkeypatch, lambda: keyed.backup({0: [batch(2, (b"a", b"3"))]}))
    report = compact_keys(keyed.url)
    assert (report.commits, report.overtaken) == (1, 0)
    assert [each[0] for each in records_of(keyed.url)] == [1, 2]
    assert [each[0] for each in records_of(keyed.url, "run-000002")] == [0, 1, 2]


def test_a_partition_whose_rows_were_replaced_meanwhile_is_left_alone(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed.backup({part: [batch(0, (b"a", b"1"), (b"a", b"2"))] for part in range(2)})

    def replace_rows() -> None:
        catalog = open_for_writing(keyed.url).catalog
        catalog.commit([], retired=decode_rows(catalog.rows(partition=1)))

    overtaking(monkeypatch, replace_rows)
    report = compact_keys(keyed.url)
    assert (report.commits, report.overtaken) == (1, 1)
    assert [each[0] for each in records_of(keyed.url)] == [1]
    assert live_rows(keyed.url, partition=1) == []


def test_large_archives_are_committed_partition_by_partition(keyed: Keyed) -> None:
    keyed.backup({part: [batch(0, (b"a", b"1"), (b"a", b"2"))] for part in range(3)})
    report = compact_keys(keyed.url, commit_bytes=1)
    assert (report.commits, report.total("removed")) == (3, 3)
    runs = [each.run_id for each in open_archive(keyed.url).catalog.runs()]
    assert len(set(runs)) == len(runs) == 4


def test_the_archive_can_be_merged_and_compacted_again(keyed: Keyed) -> None:
    for number in range(4):
        keyed.backup({0: [batch(2 * number, (b"a", b"%d" % number), (b"k%d" % number, b"v"))]})
    before = records_of(keyed.url, "run-000003")
    compact_keys(keyed.url)
    left = records_of(keyed.url)
    compact(keyed.url)
    assert (records_of(keyed.url), records_of(keyed.url, "run-000003")) == (left, before)
    keyed.backup({0: [batch(8, (b"k1", b"new"))]})
    compact_keys(keyed.url)
    assert [each[0] for each in records_of(keyed.url)] == [1, 5, 6, 7, 8]
    assert records_of(keyed.url, "run-000003") == before
