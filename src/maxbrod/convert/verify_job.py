"""The job that proves a conversion: partitions out to the workers, their digests back, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from maxbrod.batch.digest import Digest
from maxbrod.convert.verify_task import Verified, VerifyItem, VerifySettings, run_verify_task
from maxbrod.engine.jobs import run_tasks
from maxbrod.layouts.travelling import decode_slice
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession


def run_verify_job(
    session: SparkSession, settings: VerifySettings, tasks: Sequence[Sequence[VerifyItem]]
) -> list[Verified]:
    """What both archives hold."""
    payloads = [json.dumps([asdict(item) for item in task]) for task in tasks]
    answers = run_tasks(session, partial(_work, settings), payloads, name=f"verify-{settings.run_id}")
    return [_verified(values) for answer in answers for values in json.loads(answer)]


def _work(settings: VerifySettings, payload: str) -> str:
    items = [_item(values) for values in json.loads(payload)]
    return json.dumps([asdict(each) for each in run_verify_task(settings, items)])


def _item(values: dict[str, Any]) -> VerifyItem:
    slices = tuple(decode_slice(each) for each in values["slices"])
    return VerifyItem(**{**values, "where": TopicPartition(**values["where"]), "slices": slices})


def _verified(values: dict[str, Any]) -> Verified:
    fields = values["digest"]
    digest = Digest(records=fields["records"], sequence=tuple(fields["sequence"]), total=tuple(fields["total"]))
    return Verified(**{**values, "where": TopicPartition(**values["where"]), "digest": digest})
