"""Notifications end to end: a bucket, its queue, the events topic, the destination. No listing helps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from maxbrod.replicate.metrics import TreeIngressCollector, serving
from maxbrod.replicate.seed import queue
from maxbrod.replicate.seed.run import TreeIngress
from maxbrod.sandbox.proxy.faults import AnswerError
from maxbrod.sandbox.proxy.server import FaultProxy
from maxbrod.storage.stores import open_storage
from support.aws import Aws, aws_server
from support.parquet_trees import rows, write
from support.seed_trees import REGION, Link, until

if TYPE_CHECKING:
    import pytest

    from maxbrod.sandbox.cluster import Cluster

HOUR_S = 3600.0


def add(aws: Aws, link: Link, start: int, count: int) -> None:
    storage = open_storage(link.tree, aws.storage_config)
    write(storage, [rows(count, start=start)], where=link.where(), extra={"region": REGION})


def test_segments_arrive_by_notifications_alone(cluster: Cluster, topic: str) -> None:
    with aws_server() as aws:
        aws.bucket(topic, queue=topic)
        options = {"queue": topic, "sqs_endpoint": aws.endpoint, "events_topic": f"{topic}.events"}
        link = Link(cluster, topic, f"s3://{topic}", poll_every=HOUR_S, once=False, **options).created()
        link.config = link.config.model_copy(update={"storage": aws.storage_config})
        poison = aws.client("sqs")
        poison.send_message(QueueUrl=poison.get_queue_url(QueueName=topic)["QueueUrl"], MessageBody="nonsense")
        add(aws, link, 0, 10)
        with TreeIngress(link.config) as ingress:
            until(ingress, lambda: ingress.statuses() and ingress.statuses()[0].checkpoint == 9)
            add(aws, link, 10, 10)  # the tree is not listed again for an hour
            until(ingress, lambda: ingress.statuses()[0].checkpoint == 19)
            assert ingress.counts is not None
            assert ingress.counts.invalid >= 1
            with (
                serving(TreeIngressCollector(ingress), 0, "127.0.0.1") as port,
                urlopen(f"http://127.0.0.1:{port}/metrics") as answer,
            ):
                text = answer.read().decode()
    labels = f'{{partition="0",region="{REGION}",topic="{topic}"}}'
    assert f"maxbrod_ingress_messages_produced_total{labels} 20.0" in text
    assert f"maxbrod_ingress_checkpoint{labels} 19.0" in text
    assert 'maxbrod_ingress_notifications_total{what="invalid"}' in text
    assert link.numbers() == list(range(20))


def test_a_queue_that_is_down_for_a_while_costs_no_segment(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile polling finds what is new; after that the messages are received, and nothing comes twice."""
    monkeypatch.setattr(queue, "_PAUSE_S", 0.2)
    with aws_server() as aws, FaultProxy(_address(aws), protocol="http") as proxy:
        aws.bucket(topic, queue=topic)
        options = {"queue": topic, "sqs_endpoint": proxy.endpoint, "events_topic": f"{topic}.events"}
        link = Link(cluster, topic, f"s3://{topic}", once=False, **options).created()
        link.config = link.config.model_copy(update={"storage": aws.storage_config})
        with TreeIngress(link.config) as ingress:
            with proxy.fault(AnswerError(status=503)) as number:
                until(ingress, lambda: proxy.fired[number])
                add(aws, link, 0, 10)
                until(ingress, lambda: ingress.statuses() and ingress.statuses()[0].checkpoint == 9)
                assert ingress.counts is not None
                # What the bucket sends when the queue is set up may have come before the fault.
                assert ingress.counts.events == 0
            add(aws, link, 10, 10)
            until(ingress, lambda: ingress.counts is not None and ingress.counts.acknowledged >= 2)
            until(ingress, lambda: ingress.statuses()[0].checkpoint == 19)
            assert ingress.report().exit_code == 0
    assert link.numbers() == list(range(20))


def _address(aws: Aws) -> tuple[str, int]:
    found = urlsplit(aws.endpoint)
    return str(found.hostname), int(found.port or 0)


def test_polling_finds_what_no_notification_told(cluster: Cluster, topic: str, tmp_path: Any) -> None:
    link = Link(cluster, topic, tmp_path, once=False, events_topic=f"{topic}.events").created()
    with TreeIngress(link.config) as ingress:
        until(ingress, lambda: all(ingress._listed_ns.values()))
        link.add(0, 10)
        until(ingress, lambda: ingress.statuses() and ingress.statuses()[0].checkpoint == 9)
        link.add(10, 5)
        until(ingress, lambda: ingress.statuses()[0].checkpoint == 14)
    assert link.numbers() == list(range(15))
