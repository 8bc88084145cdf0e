"""Two source topics of one link in one topic: each has its own position, and all else is as with one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.replicate.fail_back import fail_back
from maxbrod.replicate.link import State
from maxbrod.replicate.promote import promote
from maxbrod.replicate.status import link_status
from maxbrod.replicate.verify import verify
from maxbrod.replicate.view import LinkView
from maxbrod.sandbox.topics import create_topic, recreate_topic
from maxbrod.sandbox.traffic import numbered, produce
from support.replications import (
    archive,
    carry,
    committed,
    ingress_program,
    link_config,
    produce_small_batches,
    take_in,
    tell,
    wait_until_stopped,
)
from support.restores import put, stand
from support.sparkless import without_spark

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.config import Config
    from maxbrod.sandbox.cluster import Cluster


def _joining(cluster: Cluster, tmp_path: Path, topic: str, **options: object) -> tuple[Config, str, str]:
    other, both = f"{topic}-other", f"{topic}-both"
    rename = tuple(f"{each}={both}" for each in (topic, other))
    chosen = {"offsets": "append", "rename": rename, **options}
    return link_config(cluster, tmp_path / "archive", topic, other, **chosen), other, both


def test_two_topics_of_a_link_join_in_one_and_nothing_is_lost_or_doubled(
    cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    """The second one comes later, with more partitions, and ingress is killed while it appends both."""
    config, other, both = _joining(cluster, tmp_path, topic, takeover=0)
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(10))
    carry(config)
    create_topic(cluster, other, partitions=2)
    produce_small_batches(cluster, topic, 300, first=10, compression_type="gzip")
    produce_small_batches(cluster, other, 300, first=1000, compression_type="gzip")
    produce(cluster, other, numbered(5, first=2000), partition=1)
    archive(config)
    with ingress_program(config, stop_at=20) as process:
        tell(process)
        wait_until_stopped(process)
        process.kill()
    report = take_in(config)
    assert {(each.source, each.partition): (each.state, each.end) for each in report.partitions} == {
        (topic, 0): (State.IN_STEP, 310),
        (other, 0): (State.IN_STEP, 300),
        (other, 1): (State.IN_STEP, 5),
    }
    assert take_in(config).appended == 0
    found = committed(cluster, both)
    assert [each for each in found if each < 1000] == list(range(310))
    assert [each for each in found if each >= 1000] == list(range(1000, 1300))
    assert committed(cluster, both, 1) == list(range(2000, 2005))
    with without_spark():
        compared = verify(config).report
    assert compared is not None
    assert [(each.equal, each.source_records) for each in compared.partitions] == [(True, 310), (True, 300), (True, 5)]
    assert [each.end for each in link_status(config).partitions] == [310, 300, 5]
    recreate_topic(cluster, other)
    produce(cluster, other, numbered(7, first=5000))
    produce(cluster, topic, numbered(3, first=310))
    states = {(each.source, each.partition): each.state for each in carry(config).partitions}
    assert (states[topic, 0], states[other, 0]) == (State.IN_STEP, State.FAULTED)
    assert len(committed(cluster, both)) == 613


def test_groups_move_over_the_records_of_both_topics_and_a_promotion_ends_both(
    cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    group, partial = f"group-{topic}", f"partial-{topic}"
    config, other, both = _joining(cluster, tmp_path, topic, groups=(group, partial))
    create_topic(cluster, topic)
    create_topic(cluster, other)
    for number in range(2):
        produce(cluster, topic, numbered(5, first=number * 5))
        produce(cluster, other, numbered(5, first=1000 + number * 5))
        put(cluster, group, {(topic, 0): number * 5 + 5, (other, 0): number * 5 + 3})
        put(cluster, partial, {(topic, 0): number * 5 + 5})
        carry(config)
    order = committed(cluster, both)
    passed = order.index(1008)
    # Four transactions, each of which ends with a marker; only those before the first unprocessed record count.
    assert stand(cluster, group)[both, 0] - passed in range(4)
    assert stand(cluster, partial)[both, 0] - order.index(1000) in range(2), "it has never read the other topic"
    produce(cluster, topic, numbered(2, first=10))
    promoted = promote(config)
    assert [(each.source, each.end) for each in promoted.partitions] == [(topic, 10), (other, 10)]
    produce(cluster, both, numbered(2, first=3000))
    assert take_in(config).states == {"promoted": 2}
    back = link_config(
        cluster, tmp_path / "back", both, offsets="append", rename=(f"{both}={topic}",), link=f"back-{topic}"
    )
    archive(back)
    (way,) = fail_back(back).partitions
    assert (way.promoted_at, way.diverged, way.new) == (10, (10, 12), 2)
    # What has come from the other topic was never here.
    take_in(back)
    assert committed(cluster, topic) == [*range(12), 3000, 3001]


def test_a_position_is_found_wherever_the_link_has_put_it(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    """One topic was alone at first, the other one is at last: neither begins anew."""
    config, other, both = _joining(cluster, tmp_path, topic)
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(3))
    carry(config)
    create_topic(cluster, other)
    produce(cluster, other, numbered(3, first=1000))
    carry(config)
    alone, _, _ = _joining(cluster, tmp_path, topic, topics=(other,), rename=(f"{other}={both}",))
    assert alone.kafka is not None
    with KafkaClient(alone.kafka) as client:
        for each, expected in ((config, {topic: 3, other: 3}), (alone, {other: 3})):
            view = LinkView(each, client)
            marks = view.positions(view.partitions(view.look(), view.orders())).values()
            assert {mark.source: mark.next_offset for mark in marks} == expected
    produce(cluster, other, numbered(3, first=1003))
    archive(config)
    assert take_in(alone).appended == 3
    assert committed(cluster, both) == [0, 1, 2, *range(1000, 1006)]
