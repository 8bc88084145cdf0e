"""A restore is resumed only in topics that are still its own."""

from __future__ import annotations

import pytest

from maxbrod.errors import RefusedError, TopicGoneError
from maxbrod.restore.plan.plan import check_topic
from maxbrod.restore.plan.request import OffsetsMode, RestoreRequest
from support.catalog_rows import TOPIC_ID, segment
from support.restore_plans import plan, target, topic


def test_a_topic_is_gone_on_with_only_if_it_is_the_same() -> None:
    request = RestoreRequest(offsets=OffsetsMode.EXACT)
    (into_new,) = plan([segment(0, 10)], request).topics
    (into_existing,) = plan([segment(0, 10)], request, into=target(topic(), ends={"orders": [(0, 0)]})).topics
    new, existing = into_new.target, into_existing.target
    mine, other = topic(), topic(topic_id="another")
    assert not check_topic(new, None, None, empty=True)
    assert check_topic(new, mine, TOPIC_ID, empty=False)
    assert check_topic(new, mine, None, empty=True), "killed between creating it and storing its id"
    assert check_topic(existing, mine, None, empty=False)
    assert not check_topic(new, None, TOPIC_ID, empty=True), "a topic of this restore that was deleted is created again"
    for planned, present, created in ((existing, None, None), (new, other, TOPIC_ID), (existing, other, None)):
        with pytest.raises(TopicGoneError):
            check_topic(planned, present, created, empty=True)
    with pytest.raises(RefusedError, match="somebody else"):
        check_topic(new, mine, None, empty=False)
    with pytest.raises(RefusedError, match="partitions"):
        check_topic(new, topic(partitions=2), TOPIC_ID, empty=True)
