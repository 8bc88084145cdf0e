"""A job gives every payload its answer, and costs a worker next to nothing besides."""

from __future__ import annotations

from typing import Any

from maxbrod.spark.jobs import run_tasks


def test_every_payload_gets_its_own_answer_in_order(spark: Any) -> None:
    payloads = [str(number) for number in range(5)]
    assert run_tasks(spark, lambda payload: payload * 2, payloads, name="doubling") == [each * 2 for each in payloads]


def test_modules_are_never_looked_through_for_garbage_after_each_task(spark: Any) -> None:
    def frozen(_payload: str) -> str:
        import gc  # noqa: PLC0415 - in the worker

        return str(gc.get_freeze_count())

    run_tasks(spark, frozen, ["x"] * 4, name="first")
    # At least one of them goes to a worker that has done a task before; Spark may have started another.
    assert max(map(int, run_tasks(spark, frozen, ["x"] * 4, name="second"))) > 10_000
