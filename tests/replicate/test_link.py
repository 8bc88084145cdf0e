"""Names, marks, orders and origins of a link: values that are read by other instances, and by other releases."""

from __future__ import annotations

import pytest

from maxbrod.errors import UsageError
from maxbrod.kafka.state.cluster_state import CommittedOffset, Group
from maxbrod.model import TopicPartition
from maxbrod.replicate.ingress.topics import filler_id
from maxbrod.replicate.link import (
    Link,
    LinkMark,
    Order,
    Ordered,
    State,
    order_of,
    origins_of,
    promotions_in,
    read_marks,
    read_orders,
)

WHERE = TopicPartition(topic="orders", partition=3)
MARK = LinkMark(
    topic_id="abc", next_offset=7, version=5, at_ms=99, state=State.FAULTED, why="x" * 9000, origins=("a", "b")
)


def test_all_instances_of_a_link_have_one_producer_id_forever() -> None:
    assert Link(name="eu").producer_id == 7300468795381691534
    assert Link(name="eu").producer_id != Link(name="us").producer_id
    for name in ("eu", "us", "x" * 249):
        link = Link(name=name)
        assert (1 << 62) <= min(link.producer_id, filler_id(link)) < (1 << 63), "brokers never assign these"
        assert link.producer_id != filler_id(link)


def test_a_link_that_cannot_be_named_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot name a link"):
        Link(name="a/b")


def test_positions_of_different_sources_links_and_partitions_never_have_one_name() -> None:
    """A name that looks like the parts of another one."""
    links = [Link(name=each) for each in ("eu", "eu.t", "eu.control")]
    wheres = [TopicPartition(topic=topic, partition=number) for topic in ("t", "t.t", "t-0") for number in (0, 1)]
    sources = ("s", "t-0.s", "control", "s.control")
    ids = {link.transactional_id((source, where)) for link in links for where in wheres for source in sources}
    assert len(ids) == len(links) * len(wheres) * len(sources)
    groups = {link.group_of(source) for link in links for source in sources}
    assert len(groups) == len(links) * len(sources)
    assert groups.isdisjoint({name for each in links for name in (each.group_id, each.control_id, each.lease_id)})


def test_a_mark_is_read_as_it_was_written_but_for_an_endless_reason() -> None:
    committed = MARK.committed(WHERE)
    assert len((committed.metadata or "").encode()) < 4096
    found = read_marks([committed])[WHERE]
    assert found.why == "x" * 500
    assert (found.topic_id, found.next_offset, found.version, found.state) == ("abc", 7, 5, State.FAULTED)
    assert found.origins == ("a", "b")


@pytest.mark.parametrize("metadata", [None, "", "x", "{}", "[]", '{"maxbrod": 2}', '{"maxbrod": 1, "state": "new"}'])
def test_what_is_not_a_mark_or_an_order_is_left_out(metadata: str | None) -> None:
    other = CommittedOffset(topic="t", topic_id=None, partition=0, offset=1, leader_epoch=-1, metadata=metadata)
    assert read_marks([other]) == {}
    assert read_orders([other]) == {}


def test_an_order_is_read_as_it_was_given() -> None:
    assert read_orders([order_of(TopicPartition(topic="orders", partition=0), Order.PAUSE)]) == {
        TopicPartition(topic="orders", partition=0): Ordered(Order.PAUSE)
    }


def test_origins_are_known_from_the_marks_of_links_until_a_topic_is_promoted() -> None:
    def group(name: str, *marks: CommittedOffset) -> Group:
        return Group(group_id=name, type="classic", state="Empty", protocol_type="", offsets=marks)

    paused, promoted = TopicPartition(topic="orders", partition=0), TopicPartition(topic="payments", partition=0)
    groups = [
        group("maxbrod.replicate.eu", MARK.committed(WHERE), MARK.committed(promoted)),
        group("maxbrod.replicate.eu.control", order_of(paused, Order.PAUSE), order_of(promoted, Order.PROMOTE, 42)),
        group("maxbrod.replicate.eu.lease"),
        group("consumers", MARK.committed(TopicPartition(topic="other", partition=0))),
    ]
    assert origins_of(groups) == {"orders": ("a", "b")}
    assert promotions_in(groups) == {promoted: 42}
