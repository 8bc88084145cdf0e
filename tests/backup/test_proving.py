"""A run reports only what is committed, and takes nothing out of the archive before there is something in its place."""

from __future__ import annotations

from dataclasses import replace

from maxbrod.backup.observation import Observed
from maxbrod.backup.plan.ranges import Failure, FailureKind, PartitionBackup, PartitionState, Task, plan_partition
from maxbrod.backup.plan.starts import Earliest
from maxbrod.backup.proof import prove, still_to_read
from maxbrod.backup.run_state import BackupRun
from maxbrod.catalog.queries import ArchivedRange
from maxbrod.catalog.rows import Gap
from maxbrod.model import GapReason, PartitionId
from support.backup_plans import PARTITION, TOPIC, TOPIC_ID, item, outcome, part

OTHER = PartitionId(topic_id=TOPIC_ID, partition=0)
HELD = ArchivedRange(topic=TOPIC, first_offset=0, end_offset=10, last_leader_epoch=1)
OLD = Gap(
    topic=TOPIC,
    topic_id=TOPIC_ID,
    partition=PARTITION.partition,
    base_offset=0,
    end_offset=10,
    reason=GapReason.RETENTION,
    run_id="run-0",
    written_at=1,
)


def plan(partition: PartitionId = PARTITION) -> PartitionBackup:
    state = PartitionState(
        topic=TOPIC,
        topic_id=TOPIC_ID,
        partition=partition.partition,
        log_start=0,
        end=20,
        high_watermark=20,
        held=HELD,
        bytes_per_offset=1.0,
        compacted=False,
    )
    return plan_partition(state, Earliest())


def planned(*partitions: PartitionId) -> BackupRun:
    plans = {each: plan(each) for each in partitions}
    observed = Observed(topics={}, present=frozenset({TOPIC_ID}), states=tuple(each.state for each in plans.values()))
    return BackupRun().with_plans(observed, plans, dict.fromkeys(plans, 10))


def test_rows_that_were_not_committed_are_in_no_report() -> None:
    run = planned(PARTITION)
    proved = prove([outcome(10, 20, part(10, 20))], run.plans, {PARTITION: HELD}, run_id=run.run_id)
    assert proved.held == {PARTITION: replace(HELD, end_offset=20)}
    run = run.with_proved(proved)
    for uncommitted in (run, run.without_uncommitted()):
        report = uncommitted.report("archive", 1, None)
        assert (report.records, report.objects, report.waiting, report.committed) == (0, 0, 10, False)
        assert uncommitted.reaches()[PARTITION].behind
    done = run.after_commit({PARTITION: 20}, everything=False)
    report = done.report("archive", 1, None)
    assert (report.records, report.objects, report.waiting, report.committed) == (10, 1, 0, True)
    assert done.reaches()[PARTITION].complete
    assert done.rows == ()


def test_rows_of_a_log_that_lost_everything_stay_until_a_commit_has_something_in_their_place() -> None:
    run = replace(planned(PARTITION, OTHER), superseded={PARTITION: (OLD,)})
    elsewhere = replace(outcome(10, 20, part(10, 20)), item=replace(item(10, 20), partition=OTHER.partition))
    other = run.with_proved(prove([elsewhere], run.plans, {OTHER: HELD}, run_id=run.run_id))
    ends = {PARTITION: 10, OTHER: 20}
    assert other.to_retire(everything=False) == []
    assert other.after_commit(ends, everything=False).superseded == run.superseded
    assert other.to_retire(everything=True) == [OLD]
    assert other.after_commit(ends, everything=True).superseded == {}
    mine = run.with_proved(prove([outcome(10, 20, part(10, 20))], run.plans, {PARTITION: HELD}, run_id=run.run_id))
    assert mine.to_retire(everything=False) == [OLD]


def test_an_error_of_the_store_is_reported_once_and_its_partitions_are_not_read_on() -> None:
    run = planned(PARTITION)
    failure = Failure(kind=FailureKind.STORAGE, message="the disk is full")
    failed = [replace(outcome(start, start + 5, reached=start), failure=failure) for start in (10, 15)]
    proved = prove(failed, run.plans, {PARTITION: HELD}, run_id=run.run_id)
    run = run.with_proved(proved).with_proved(proved)
    assert [each.kind for each in run.notices].count("storage") == 1
    assert (proved.stopped, proved.again, proved.rows) == (frozenset({PARTITION}), frozenset(), ())
    assert still_to_read((Task(items=(item(15, 20),)),), {PARTITION: HELD}, proved.stopped) == []


def test_a_log_that_was_cut_while_it_was_read_is_planned_again() -> None:
    run = planned(PARTITION)
    failure = Failure(kind=FailureKind.TRUNCATED, message="the log was truncated")
    failed = replace(outcome(10, 20, part(10, 14), reached=14), failure=failure)
    proved = prove([failed], run.plans, {PARTITION: HELD}, run_id=run.run_id)
    assert (proved.again, proved.held[PARTITION].end_offset) == (frozenset({TOPIC}), 14)


def test_a_wave_goes_on_behind_a_batch_that_reached_into_it() -> None:
    wave = (Task(items=(item(10, 15),)), Task(items=(item(15, 20),)))
    left = still_to_read(wave, {PARTITION: replace(HELD, end_offset=17)}, ())
    assert [(each.start, each.end) for task in left for each in task.items] == [(17, 20)]
