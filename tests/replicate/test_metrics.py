"""What Prometheus is told of ingress and egress: the names that alerts rest on, and nothing better than it is."""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.request
from dataclasses import replace
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from maxbrod.cli.metrics import exporting
from maxbrod.errors import UnavailableError
from maxbrod.model import GapReason
from maxbrod.replicate.egress import EgressShare
from maxbrod.replicate.ingress.run import IngressInterval
from maxbrod.replicate.link import State
from maxbrod.replicate.metrics import BeatMetrics, IngressMetrics, problem_of
from maxbrod.replicate.options import ReplicateOptions
from maxbrod.replicate.report import IngressReport, Lacking, PartitionStatus
from maxbrod.sandbox.process import free_ports

if TYPE_CHECKING:
    from pathlib import Path


def partition(number: int, **changes: object) -> PartitionStatus:
    known = PartitionStatus(
        source="orders",
        topic="eu.orders",
        partition=number,
        state=State.IN_STEP,
        why=None,
        end=100,
        archive_end=100,
        source_end=103,
        lag_records=3,
        lag_bytes=40,
        lag_ms=1500,
    )
    return replace(known, **changes)  # type: ignore[arg-type]


def interval(*partitions: PartitionStatus, **changes: object) -> IngressInterval:
    known = IngressReport(
        link="eu",
        started_at_ms=1000,
        finished_at_ms=3500,
        version=7,
        partitions=partitions,
        appended=10,
        groups=2,
        appended_bytes=900,
        heartbeat_ms=2000,
        leads=True,
        takeovers=1,
    )
    return IngressInterval(number=1, report=replace(known, **changes), error=None, failures=0)  # type: ignore[arg-type]


FAILED = IngressInterval(number=2, report=None, error=UnavailableError("the cluster is away"), failures=1)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"maxbrod_{name}", labels)


def test_the_lag_of_a_topic_is_that_of_all_its_partitions() -> None:
    metrics = IngressMetrics()
    metrics.observe(interval(partition(0), partition(1, lag_records=4, lag_bytes=1, lag_ms=9000)))
    of = {"topic": "eu.orders"}
    assert value(metrics.registry, "replicate_lag_records", **of) == 7
    assert value(metrics.registry, "replicate_lag_bytes", **of) == 41
    assert value(metrics.registry, "replicate_lag_seconds", **of) == 9.0


def test_offsets_that_were_never_archived_are_counted_as_long_as_the_catalog_names_them() -> None:
    metrics = IngressMetrics()
    lost = Lacking(first_offset=10, end_offset=15, reason=GapReason.RETENTION)
    metrics.observe(interval(partition(0, lacking=(lost,)), partition(1, lacking=(lost, lost))))
    assert value(metrics.registry, "replicate_never_archived_offsets", topic="eu.orders") == 15
    metrics.observe(interval())
    assert value(metrics.registry, "replicate_never_archived_offsets", topic="eu.orders") is None


def test_an_unknown_lag_is_never_a_number() -> None:
    metrics = IngressMetrics()
    metrics.observe(interval(partition(0), partition(1, lag_records=None, lag_ms=None)))
    of = {"topic": "eu.orders"}
    assert math.isnan(value(metrics.registry, "replicate_lag_records", **of) or 0)
    assert math.isnan(value(metrics.registry, "replicate_lag_seconds", **of) or 0)
    metrics.observe(interval(partition(0)))
    metrics.observe(FAILED)
    assert math.isnan(value(metrics.registry, "replicate_lag_records", **of) or 0), "nothing is known after a failure"
    metrics.observe(interval())
    assert value(metrics.registry, "replicate_lag_records", **of) is None, "another instance has it, or nobody"


def test_states_work_heartbeats_and_takeovers_are_counted() -> None:
    metrics = IngressMetrics()
    late = partition(1, state=State.LATE_SEGMENT, why="an object is missing")
    metrics.observe(interval(partition(0), late))
    metrics.observe(interval(partition(0), takeovers=3, leads=False))
    metrics.observe(FAILED)
    metrics.observe(interval(standby_for="another"))
    registry = metrics.registry
    assert value(registry, "replicate_partitions", state="in step") == 0
    assert value(registry, "replicate_late_segments") == 0
    assert value(registry, "replicate_appended_offsets_total") == 30
    assert value(registry, "replicate_appended_bytes_total") == 2700
    assert value(registry, "replicate_group_offsets_total") == 6
    assert value(registry, "replicate_heartbeat_timestamp_seconds") == 2.0
    assert value(registry, "replicate_takeovers_total") == 3
    assert value(registry, "replicate_failures") == 0
    results = {
        each: value(registry, "replicate_intervals_total", result=each)
        for each in ("complete", "incomplete", "failed", "standing by")
    }
    assert results == {"complete": 1, "incomplete": 1, "failed": 1, "standing by": 1}
    metrics.observe(interval(late))
    assert (
        value(registry, "replicate_late_segments") == value(registry, "replicate_partitions", state="late segment") == 1
    )


def test_a_heartbeat_that_failed_does_not_look_written() -> None:
    registry = CollectorRegistry()
    beats = BeatMetrics(registry)
    beats.observe(5000)
    beats.observe(None)
    assert value(registry, "egress_heartbeat_timestamp_seconds") == 5.0
    assert value(registry, "egress_heartbeats_total", result="failed") == 1


def test_the_share_of_an_egress_is_exported() -> None:
    registry = CollectorRegistry()
    beats = BeatMetrics(registry)
    for takeovers in (1, 1, 2):
        beats.share(EgressShare(leads=True, leader=None, any=True, takeovers=takeovers))
    assert value(registry, "egress_takeovers_total") == 2
    assert (value(registry, "egress_leads"), value(registry, "egress_standing_by")) == (1, 0)
    beats.share(EgressShare(leads=False, leader="another", any=False, takeovers=2))
    assert (value(registry, "egress_leads"), value(registry, "egress_standing_by")) == (0, 1)
    assert value(registry, "egress_partitions") == 0


def test_readiness_names_the_partition_that_waits(tmp_path: Path) -> None:
    metrics = IngressMetrics()
    options = ReplicateOptions(metrics_file=tmp_path / "metrics.prom", metrics_port=free_ports(1)[0])
    late = interval(partition(4, state=State.LATE_SEGMENT, why="an object is missing"))
    with exporting(metrics.registry, options, every_s=1) as ended:
        for told, problem in (
            (late, "eu.orders-4: late segment: an object is missing"),
            (FAILED, "the cluster is away"),
            (interval(partition(0)), None),
            (interval(standby_for="another"), None),
        ):
            metrics.observe(told)
            ended(problem_of(told))
            ready, why = _ask(options.metrics_port, "readyz")
            assert (ready, why.get("reason")) == (problem is None, problem)
            assert _ask(options.metrics_port, "healthz")[0]
    assert "maxbrod_replicate_lag_records" in (tmp_path / "metrics.prom").read_text()


def _ask(port: int | None, path: str) -> tuple[bool, dict[str, str]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}") as answer:
            return True, json.load(answer)
    except urllib.error.HTTPError as error:
        return False, json.load(error)
