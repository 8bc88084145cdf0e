"""Whatever dies between a task's first record and the end of the last transaction: each record counts once, or the
error says which do not; and no reader is held back afterwards. The broker is real, Spark is played by the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.config import KafkaConfig
from maxbrod.errors import MaxbrodError, RefusedError
from maxbrod.kafka.produce.transactions import begin, end, ongoing
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.sandbox.topics import create_topic
from maxbrod.storage.stores import open_storage
from maxbrod.table.sink import kafka as kafka_sink_commit
from maxbrod.table.sink import kafka_task as kafka_sink_rows
from maxbrod.table.sink.kafka_decisions import BatchDecisions, DecisionOutcome
from maxbrod.table.sink.kafka_task import _LAST_USED
from support.kafka_writes import KEEP, Query, ends, failing, released, rows, values, write, writer_of

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster
    from maxbrod.table.sink.kafka import KafkaCommitMessage
    from support.java_oracle import JavaOracle


class Killed(BaseException):
    """The driver is gone: nothing that comes later in it happens."""


@pytest.fixture
def made(cluster: Cluster, topic: str) -> str:
    create_topic(cluster, topic, config=KEEP)
    return topic


def decisions(state: Path) -> BatchDecisions:
    return BatchDecisions(open_storage(str(state / "maxbrod-kafka-sink")))


def outcome(state: Path) -> DecisionOutcome | None:
    found = decisions(state).newest()
    return None if found is None else found[1]


def killed_after(monkeypatch: pytest.MonkeyPatch, ended: int) -> Any:
    """The driver dies when so many transactions of the batch have ended."""
    left = [ended]

    def dies(*arguments: Any, **options: Any) -> None:
        if not left[0]:
            raise Killed
        left[0] -= 1
        end(*arguments, **options)

    context = monkeypatch.context()
    context.__enter__().setattr(kafka_sink_commit, "end", dies)
    return context


def push_aside(cluster: Cluster, written: KafkaCommitMessage) -> None:
    """What a timeout does to a transaction, without the wait: it is aborted, and its epoch is over."""
    assert written.filled is not None
    with KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap)) as client:
        begin(client, written.filled.transaction.transactional_id, timeout_ms=60_000)


def test_an_attempt_that_does_not_win_never_counts_and_holds_no_reader_back(
    cluster: Cluster, made: str, java: JavaOracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_sink_rows, "PORTION_BYTES", 1)  # so that what a task has read is sent at once
    writer = writer_of(cluster)
    first = writer.write(iter([rows(made, ["a", "b"])]))
    assert ends(cluster, made) == (0, 2)
    with pytest.raises(RuntimeError, match="the task is lost"):
        writer.write(failing(rows(made, ["c", "d"])))
    assert ends(cluster, made)[1] >= 4
    with KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap)) as client:
        assert ongoing(client, f"maxbrod-{writer._sink.write_id}-") == [first.filled.transaction.transactional_id]
    again = writer.write(iter([rows(made, ["c", "d"])]))
    speculative = writer.write(iter([rows(made, ["c", "d"])]))
    assert ends(cluster, made)[0] == 0
    assert len({each.filled.transaction for each in (first, again, speculative)}) == 3
    writer.commit([first, again])
    assert values(java, cluster, made) == ["a", "b", "c", "d"]


def test_an_aborted_write_leaves_nothing_and_holds_no_reader_back(
    cluster: Cluster, made: str, java: JavaOracle
) -> None:
    writer = writer_of(cluster)
    told = writer.write(iter([rows(made, ["a"])]))
    writer.write(iter([rows(made, ["b"])]))  # its process was killed before it could tell
    writer.abort([told, None])
    assert values(java, cluster, made) == []


def test_a_driver_that_died_before_the_decision_leaves_nothing_of_its_batch(
    cluster: Cluster, made: str, java: JavaOracle, tmp_path: Path
) -> None:
    dead = Query(cluster, tmp_path)
    dead.begin()
    for value in ("a", "b"):
        dead.task([rows(made, [value])], 0)
    assert ends(cluster, made)[0] == 0
    _LAST_USED.clear()  # other processes know nothing of its transactional ids
    Query(cluster, tmp_path).batch(0, rows(made, ["a"]), rows(made, ["b"]))
    assert values(java, cluster, made) == ["a", "b"]


@pytest.mark.parametrize("ended", [0, 1, 2])
def test_a_driver_that_died_after_the_decision_is_finished_by_the_next_and_nothing_is_doubled(
    cluster: Cluster, made: str, java: JavaOracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: int
) -> None:
    dead = Query(cluster, tmp_path)
    dead.batch(0, rows(made, ["a"]))
    dead.begin()
    told = [dead.task([rows(made, [value])], 1) for value in ("b", "c")]
    if ended < 2:
        context = killed_after(monkeypatch, ended)
    else:
        context = monkeypatch.context()
        context.__enter__().setattr(BatchDecisions, "settle", _dies)
    with pytest.raises(Killed):
        dead.commit(told, 1)
    context.__exit__(None, None, None)
    assert outcome(tmp_path) is DecisionOutcome.PENDING

    restarted = Query(cluster, tmp_path)
    restarted.begin()
    assert sorted(values(java, cluster, made)) == ["a", "b", "c"]
    assert outcome(tmp_path) is DecisionOutcome.DONE
    # Spark does not know that the batch is there, and has it written once more.
    known = restarted.task([rows(made, ["b"])], 1)
    assert known.skipped
    assert known.filled is None
    unknown = restarted.sink.fill(iter([rows(made, ["c"])]), None, None)
    assert unknown.filled is not None
    restarted.commit([known, unknown], 1)
    restarted.batch(2, rows(made, ["d"]))
    assert sorted(values(java, cluster, made)) == ["a", "b", "c", "d"]


def _dies(*_: Any) -> None:
    raise Killed


def test_a_commit_that_fails_is_never_taken_back_once_it_is_decided(
    cluster: Cluster, made: str, java: JavaOracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(cluster, tmp_path)
    query.begin()
    told = [query.task([rows(made, [value])], 0) for value in ("a", "b")]

    def fails(*_: Any, **__: Any) -> None:
        raise MaxbrodError("the broker refuses")

    with monkeypatch.context() as patched:
        patched.setattr(kafka_sink_commit, "end", fails)
        with pytest.raises(MaxbrodError, match="the broker refuses"):
            query.commit(told, 0)
    query.sink.abort(told)  # as Spark does when a commit fails
    assert outcome(tmp_path) is DecisionOutcome.PENDING
    query.abort(told, 0)
    assert sorted(values(java, cluster, made)) == ["a", "b"]


def test_a_batch_whose_transactions_all_timed_out_after_the_decision_is_written_again_once(
    cluster: Cluster, made: str, java: JavaOracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = Query(cluster, tmp_path)
    dead.begin()
    told = [dead.task([rows(made, [value])], 0) for value in ("a", "b")]
    context = killed_after(monkeypatch, 0)
    with pytest.raises(Killed):
        dead.commit(told, 0)
    context.__exit__(None, None, None)
    push_aside(cluster, told[0])  # the other one is still open
    restarted = Query(cluster, tmp_path)
    restarted.batch(0, rows(made, ["a"]), rows(made, ["b"]))
    assert sorted(values(java, cluster, made)) == ["a", "b"]
    assert outcome(tmp_path) is DecisionOutcome.DONE


def test_a_batch_that_came_true_in_part_is_told_and_never_passed_over(
    cluster: Cluster, made: str, java: JavaOracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = Query(cluster, tmp_path)
    dead.begin()
    told = [dead.task([rows(made, [value] * 3)], 0) for value in ("a", "b")]
    context = killed_after(monkeypatch, 1)
    with pytest.raises(Killed):
        dead.commit(told, 0)
    context.__exit__(None, None, None)
    push_aside(cluster, told[1])
    restarted = Query(cluster, tmp_path)
    for _ in range(2):
        with pytest.raises(RefusedError, match=f"1 of its 2 transactions.*3 records of {made}-0 are missing") as caught:
            restarted.begin()
    way_out = str(caught.value.hint).split("empty object ")[1].split(";")[0]
    open_storage(str(tmp_path)).put(way_out.split(f"{tmp_path}/")[1], b"")
    restarted.batch(1, rows(made, ["c"]))
    assert values(java, cluster, made) == ["a", "a", "a", "c"]


def test_a_transaction_that_timed_out_before_the_decision_fails_the_batch_and_nothing_counts(
    cluster: Cluster, made: str, java: JavaOracle, tmp_path: Path
) -> None:
    query = Query(cluster, tmp_path)
    query.begin()
    told = [query.task([rows(made, [value])], 0) for value in ("a", "b")]
    push_aside(cluster, told[1])
    with pytest.raises(MaxbrodError, match=f"1 of 2 transactions were aborted.*1 record of {made}-0"):
        query.commit(told, 0)
    query.abort(told, 0)
    assert outcome(tmp_path) is None
    assert values(java, cluster, made) == []


def test_a_state_never_serves_another_query_or_an_earlier_batch(
    cluster: Cluster, made: str, java: JavaOracle, tmp_path: Path
) -> None:
    query = Query(cluster, tmp_path)
    query.batch(0, rows(made, ["a"]))
    query.batch(1, rows(made, ["b"]))
    for batch_id, query_id in ((0, "a-query"), (1, "another"), (2, "another")):
        with pytest.raises(RefusedError, match="the state belongs to another query"):
            query.batch(batch_id, rows(made, ["c"]), query_id=query_id)
    query.batch(2, rows(made, ["d"]))
    assert values(java, cluster, made) == ["a", "b", "d"]


def test_of_two_drivers_that_write_one_batch_one_is_refused(
    cluster: Cluster, made: str, java: JavaOracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = Query(cluster, tmp_path), Query(cluster, tmp_path)
    one.begin()
    two.begin()
    mine = one.task([rows(made, ["a"])], 0)
    _LAST_USED.clear()  # they run in different processes
    other = two.task([rows(made, ["a"])], 0)
    two.commit([other], 0)
    with monkeypatch.context() as patched:
        patched.setattr(BatchDecisions, "newest", lambda _: None)  # it looked before the other one decided
        with pytest.raises(MaxbrodError, match="1 of 1 transactions were aborted"):  # the other one has aborted it
            one.commit([mine], 0)
        one.abort([mine], 0)
    assert values(java, cluster, made) == ["a"]


def test_a_write_with_a_name_is_done_once_however_often_it_is_run(
    cluster: Cluster, made: str, java: JavaOracle, tmp_path: Path
) -> None:
    for _ in range(2):
        write(cluster, rows(made, ["a"]), rows(made, ["b"]), state=str(tmp_path), writeId="load-1")
    write(cluster, rows(made, ["c"]), state=str(tmp_path), writeId="load-2")
    assert values(java, cluster, made) == ["a", "b", "c"]


def test_transactional_ids_are_used_again_but_never_twice_in_one_write(
    cluster: Cluster, made: str, java: JavaOracle, tmp_path: Path
) -> None:
    query = Query(cluster, tmp_path)
    seen: list[set[str]] = []
    for batch_id in range(3):
        query.begin()
        told = [query.task([rows(made, [f"{batch_id}"])], batch_id) for _ in range(2)]
        seen.append({each.filled.transaction.transactional_id for each in told if each.filled is not None})
        query.commit(told, batch_id)
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) == 2
    assert values(java, cluster, made) == ["0", "0", "1", "1", "2", "2"]
    kept = list((tmp_path / "maxbrod-kafka-sink" / "decisions").iterdir())
    assert sorted(each.suffix for each in kept) == [".done", ".json"]


def test_an_empty_batch_needs_no_transaction(cluster: Cluster, made: str, tmp_path: Path) -> None:
    query = Query(cluster, tmp_path)
    query.batch(0, rows(made, []))
    query.batch(1)
    assert outcome(tmp_path) is None
    released(cluster, made)
    assert ends(cluster, made) == (0, 0)
