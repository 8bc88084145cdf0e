"""The store of the archive answers 503, is slow, or cuts its answers under ingress: it says so, and goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.config import Config, StorageConfig
from maxbrod.errors import UnavailableError
from maxbrod.replicate.ingress.run import Ingress
from maxbrod.replicate.link import State
from maxbrod.replicate.seed.run import TreeIngress
from maxbrod.sandbox.proxy.faults import AnswerError, CutAnswer, HttpMatch, Latency, ProxyFault, TruncateAnswer
from maxbrod.sandbox.topics import create_topic, offsets
from maxbrod.sandbox.traffic import numbered, produce
from support.replications import SUFFIX, archive, assert_mirrored, link_config, only
from support.seed_trees import Link, until
from support.storages import s3_section

if TYPE_CHECKING:
    from maxbrod.sandbox.cluster import Cluster
    from maxbrod.sandbox.proxy.server import FaultProxy
    from maxbrod.sandbox.s3 import S3Server

_ALL = HttpMatch("GET")
_OBJECTS = HttpMatch("GET", r"/(packs|segments)/")
_WAITING = {State.CATCHING_UP, State.LATE_SEGMENT}


@pytest.mark.parametrize(
    "fault",
    [
        AnswerError(on=_ALL, status=503),
        CutAnswer(on=_OBJECTS, after_bytes=300),
        TruncateAnswer(on=_OBJECTS, keep_bytes=60, consistent=True),
    ],
    ids=["503", "cut", "truncated"],
)
def test_a_store_that_fails_under_ingress_is_waited_for(
    cluster: Cluster, s3: S3Server, s3_proxy: FaultProxy, topic: str, fault: ProxyFault
) -> None:
    create_topic(cluster, topic)
    here, there = _sides(link_config(cluster, s3.object_path(topic), topic), s3, s3_proxy, topic)
    produce(cluster, topic, numbered(20))
    archive(here)
    with Ingress(there) as ingress:
        assert only(ingress.run()).state is State.IN_STEP
        produce(cluster, topic, numbered(500, first=20), batch_size=400)
        archive(here)
        with s3_proxy.fault(fault) as number:
            assert _state(ingress) in {*_WAITING, None}
            assert s3_proxy.fired[number] >= 1
        assert offsets(cluster, topic + SUFFIX)[1] <= 520
        while (state := _state(ingress)) is not State.IN_STEP:
            assert state in _WAITING
    assert_mirrored(cluster, topic)


def test_a_store_that_is_slow_under_ingress_costs_only_time(
    cluster: Cluster, s3: S3Server, s3_proxy: FaultProxy, topic: str
) -> None:
    create_topic(cluster, topic)
    here, there = _sides(link_config(cluster, s3.object_path(topic), topic), s3, s3_proxy, topic)
    produce(cluster, topic, numbered(500), batch_size=400)
    archive(here)
    with s3_proxy.fault(Latency(answer_s=0.1)), Ingress(there) as ingress:
        assert _state(ingress) is State.IN_STEP
    assert_mirrored(cluster, topic)


@pytest.mark.parametrize(
    "fault",
    [AnswerError(on=_ALL, status=503), TruncateAnswer(on=HttpMatch("GET", r"/data/"), keep_bytes=60, consistent=True)],
    ids=["503", "truncated"],
)
def test_a_store_that_fails_under_ingress_from_a_tree_is_waited_for(
    cluster: Cluster, s3: S3Server, s3_proxy: FaultProxy, topic: str, fault: ProxyFault
) -> None:
    link = Link(cluster, topic, s3.object_path(topic), once=False).created()
    link.add(0, 10)
    _, config = _sides(link.config, s3, s3_proxy, topic)
    with TreeIngress(config) as ingress:
        until(ingress, lambda: ingress.statuses() and ingress.statuses()[0].checkpoint == 9)
        with s3_proxy.fault(fault):
            link.add(10, 10)
            until(ingress, lambda: ingress.statuses()[0].state in {"faulted", "late segment"})
        until(ingress, lambda: ingress.statuses()[0].checkpoint == 19)
        assert ingress.report().exit_code == 0
    assert link.numbers() == list(range(20))


def _sides(config: Config, s3: S3Server, proxy: FaultProxy, topic: str) -> tuple[Config, Config]:
    """The same archive as a directory, for egress, and through the proxy, for ingress."""
    section: dict[str, Any] = s3_section(s3, s3={"endpoint": proxy.endpoint}, request_timeout_s=2, deadline_s=1)
    storage = StorageConfig.model_validate(section)
    return config, config.model_copy(update={"archive": f"{s3.url}/{topic}", "storage": storage})


def _state(ingress: Ingress) -> State | None:
    """The state of the partition after an interval; None: the archive could not be read, and is read again."""
    try:
        return only(ingress.run()).state
    except UnavailableError:
        return None
