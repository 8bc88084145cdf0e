"""What waits to be appended is sent in order, and after a failure again in the same order."""

from __future__ import annotations

from uuid import UUID

import numpy as np
import pytest

from maxbrod.errors import UnavailableError
from maxbrod.kafka.produce.append_queue import AppendQueue, QueuedAppend
from maxbrod.kafka.produce.appends import LATER, Append, Batch, Feed, Hole, Later
from support.kafka_reads import partition_of

FAILURE = UnavailableError("a broker said so")


def batch(place: int) -> Batch:
    return Batch(data=np.zeros(100, np.uint8), count=10, source_offset=place)


def queue_of(*appends: Append | Later, patience_s: float = 60, first_offset: int = 0) -> AppendQueue:
    feed = Feed(where=partition_of("t"), topic_id=UUID(int=1), first_offset=first_offset, appends=appends)
    return AppendQueue(feed, in_flight_max=5, patience_s=patience_s)


def send_all(queue: AppendQueue) -> list[QueuedAppend]:
    """All that may be sent now."""
    sent = []
    while (entry := queue.next_entry()) is not None:
        queue.sent()
        sent.append(entry)
    return sent


def answer(queue: AppendQueue, entry: QueuedAppend) -> list[int]:
    """The entry is done; returns the offsets of what is acknowledged by that."""
    queue.in_flight -= 1
    entry.land(entry.append.count)
    return [each.base_offset for each in queue.acknowledged()]


def places(entries: list[QueuedAppend]) -> list[int]:
    return [entry.base_offset for entry in entries]


def test_nothing_follows_the_first_batch_before_the_broker_knows_the_producer() -> None:
    queue = queue_of(*(batch(place) for place in range(9)), first_offset=1000)
    (first,) = send_all(queue)
    assert answer(queue, first) == [1000]
    assert places(send_all(queue)) == [1010, 1020, 1030, 1040, 1050]  # no more than a broker remembers
    assert queue.next_entry() is None


def test_a_hole_is_alone_on_its_way() -> None:
    queue = queue_of(batch(0), batch(1), Hole(count=3, source_offset=2), batch(3), batch(4))
    seen = []
    while entries := send_all(queue):
        seen.append(places(entries))
        for entry in entries:
            answer(queue, entry)
    assert seen == [[0], [10], [20], [23, 33]]
    assert queue.finished


def test_after_a_failure_all_without_an_answer_are_sent_again_in_order() -> None:
    queue = queue_of(*(batch(place) for place in range(9)))
    answer(queue, send_all(queue)[0])
    first, second, third, fourth, fifth = send_all(queue)
    queue.in_flight -= 1
    queue.fail(FAILURE)
    # The third got through all the same: it is not sent again, and not acknowledged before the first.
    assert answer(queue, third) == []
    assert queue.next_entry() is None
    for _ in (second, fourth, fifth):
        queue.in_flight -= 1
    assert queue.in_flight == 0
    queue.renew_patience()  # the pause is over
    queue.recover()
    again = send_all(queue)
    assert again == [first, second, fourth, fifth]
    assert [answer(queue, each) for each in again] == [[10], [20, 30], [40], [50]]


def test_patience_ends_in_the_last_error_and_names_the_archives_offset() -> None:
    queue = queue_of(batch(77), patience_s=0)
    queue.next_entry()
    with pytest.raises(UnavailableError, match=r"waited \d+ s for the leader of t-0.*a broker said so") as caught:
        queue.fail(FAILURE)
    assert caught.value.offset == 77


def test_a_feed_that_has_nothing_yet_is_asked_again_and_costs_no_patience() -> None:
    queue = queue_of(LATER, batch(0), LATER, batch(1))
    queue._patient_since = -1000
    assert queue.next_entry() is None
    assert not queue.finished
    queue.check_patience()
    (first,) = send_all(queue)
    assert answer(queue, first) == [0]
    (second,) = send_all(queue)
    assert answer(queue, second) == [10]
    assert queue.next_entry() is None
    assert queue.finished


def test_a_hole_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 offset"):
        Hole(count=0, source_offset=0)
