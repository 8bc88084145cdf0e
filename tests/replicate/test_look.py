"""An interval works with one look at the archive, however often egress commits meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from maxbrod.config import Config
from maxbrod.errors import UnavailableError
from maxbrod.kafka.state.cluster_state import TopicState
from maxbrod.model import PartitionId, TopicPartition
from maxbrod.replicate import status
from maxbrod.replicate.ingress import exact_mode
from maxbrod.replicate.ingress.plan import Extent, Mirror
from maxbrod.replicate.ingress.run import Ingress
from maxbrod.replicate.ingress.topics import MirrorTopics
from maxbrod.replicate.link import Link, State
from maxbrod.replicate.view import LinkView, MirroredPartition
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce
from maxbrod.work.progress import silent
from support.archives import Place, commit_run
from support.catalog_rows import TOPIC_ID, segment
from support.clocks import set_time
from support.replications import SUFFIX, archive, assert_mirrored, carry, link_config, only
from support.restore_oracle import log_of

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

ONE = PartitionId(topic_id=TOPIC_ID, partition=0)


@pytest.mark.parametrize("mode", ["exact", "append"])
def test_what_egress_commits_within_an_interval_is_of_the_next_one(
    cluster: Cluster, tmp_path: Path, topic: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With gaps accepted: the ends of a newer version and the rows of an older one would be a hole for ever."""
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, offsets=mode, accept_gaps=True)
    produce(cluster, topic, numbered(100))
    archive(config)
    orders = LinkView.orders

    def orders_then(view: LinkView) -> Any:
        monkeypatch.setattr(LinkView, "orders", orders)
        produce(cluster, topic, numbered(100, first=100))
        archive(config)
        return orders(view)

    with Ingress(config) as ingress:
        monkeypatch.setattr(LinkView, "orders", orders_then)
        first = only(ingress.run())
        assert (first.state, first.end, first.archive_end) == (State.IN_STEP, 100, 100)
        second = only(ingress.run())
        assert (second.state, second.end, second.archive_end) == (State.IN_STEP, 200, 200)
    if mode == "exact":
        assert_mirrored(cluster, topic)
    values = [each.value for each in log_of(cluster, topic + SUFFIX).values()]
    assert values == [b"value-%d" % number for number in range(200)]


def test_status_never_calls_a_mirror_longer_because_ingress_went_on(
    cluster: Cluster, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic)
    produce(cluster, topic, numbered(10))
    carry(config)
    ends = status.destination_ends

    def carry_then(*words: Any, **more: Any) -> Any:
        produce(cluster, topic, numbered(10, first=10))
        carry(config)
        return ends(*words, **more)

    monkeypatch.setattr(status, "destination_ends", carry_then)
    (found,) = status.link_status(config).partitions
    assert (found.state, found.end) == (State.IN_STEP, 20)


def test_offsets_without_a_row_become_a_hole_only_if_two_looks_agree(
    local_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_run(local_place.create(), "first", [segment(0, 10), segment(20, 30)])
    view, slept = _view_of(local_place), list[float]()
    newest = view.look()
    set_time(monkeypatch, "maxbrod.replicate.view", sleep=slept.append)
    portion = view.portions(newest, {ONE: (5, 30)}, accept_gaps=True)[ONE]
    assert (portion.end, portion.lost) == (30, None)
    assert slept.pop() >= 1
    # Nobody waits for what is covered, or for gaps that nobody accepts.
    assert view.portions(newest, {ONE: (20, 30)}, accept_gaps=True)[ONE].end == 30
    assert view.portions(newest, {ONE: (5, 30)}, accept_gaps=False)[ONE].lost == (10, 20, "no row covers it")
    assert not slept

    def commit_late(_: float) -> None:
        commit_run(local_place.open(), "late", [segment(10, 20)])

    set_time(monkeypatch, "maxbrod.replicate.view", sleep=commit_late)
    with pytest.raises(UnavailableError, match="nothing was made a hole"):
        view.portions(newest, {ONE: (5, 30)}, accept_gaps=True)


def test_a_mirror_is_longer_than_its_archive_only_if_the_archive_has_not_grown_since(local_place: Place) -> None:
    commit_run(local_place.create(), "first", [segment(0, 10)])
    view, each = _view_of(local_place), _mirrored(end=10)
    view.look()
    view.grow([each], {each.key: 20})
    assert each.extent.end == 10
    commit_run(local_place.open(), "later", [segment(10, 30)])
    view.grow([each], {each.key: 20})
    assert each.extent.end == 20, "no more than the destination has: the rows at hand are older"
    view.grow([each], {each.key: 50})
    assert each.extent.end == 30


def test_groups_do_not_look_at_topics_that_are_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that was looked at is not begun any more: it would start at 0, whatever the source has deleted since."""
    monkeypatch.setattr(exact_mode, "may_write_markers", lambda *_, **__: True)
    carried: list[Any] = []
    monkeypatch.setattr(exact_mode, "carry_groups", lambda *words, **_: carried.append(words[3]))
    config = Config.model_validate({"archive": "nowhere", "kafka": {"bootstrap": "nowhere:1"}})
    view: Any = SimpleNamespace(deadline=lambda: None, link=lambda: Link(name="x"), config=config, client=None)
    mode = exact_mode.ExactMode(view, cast("Any", None), silent)
    monkeypatch.setattr(MirrorTopics, "led", lambda _, partitions: list(partitions))
    asked: list[Any] = []
    monkeypatch.setattr(MirrorTopics, "ends", lambda _, partitions: asked.extend(partitions))
    each = _mirrored(end=10)
    each.state = State.CATCHING_UP
    newest: Any = SimpleNamespace(cluster=SimpleNamespace(groups=()))
    mode.carry_groups(newest, [each], [each])
    assert (carried, asked) == ([{}], [])


def _view_of(place: Place) -> LinkView:
    config = Config.model_validate({"archive": place.url, "kafka": {"bootstrap": "nowhere:1"}})
    return LinkView(config, cast("Any", None))


def _mirrored(*, end: int) -> MirroredPartition:
    source = TopicState(name="orders", topic_id=TOPIC_ID, internal=False, replicas=((1,),), configs={}, effective={})
    return MirroredPartition(
        id=ONE,
        where=TopicPartition(topic="orders", partition=0),
        mirror=Mirror(source=source, name="orders"),
        extent=Extent(first=0, end=end, start=0),
    )
