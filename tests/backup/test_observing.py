"""What a backup says of words that mean no topic yet: it goes on, because the topic may come."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from maxbrod.backup.observation import choose_topics
from maxbrod.backup.options import BackupOptions
from maxbrod.errors import UsageError


def cluster(*names: str) -> Any:
    topics = {name: SimpleNamespace(internal=False, topic_id=uuid4()) for name in names}
    return SimpleNamespace(metadata=lambda **_: SimpleNamespace(topics=topics))


def test_a_pattern_that_no_topic_matches_yet_is_told_and_a_name_is_demanded() -> None:
    request = BackupOptions(topics=("orders", "pay-*", "/ord/"), start={"payments": {0: 5}, "orders": {0: 7}})
    found = choose_topics(cluster("orders"), request, patience_s=1, demand=True)
    assert list(found.topics) == ["orders"]
    assert [(each.kind, each.topic) for each in found.notices] == [
        ("missing", None),
        ("missing", None),
        ("missing", "payments"),
    ]
    assert "pay-*" in found.notices[1].message
    with pytest.raises(UsageError, match="has no topic") as caught:
        choose_topics(cluster("orders"), BackupOptions(topics=("ordres",)), patience_s=1, demand=True)
    assert caught.value.hint == "did you mean orders?"


def test_a_topic_that_does_not_exist_yet_is_a_warning_with_the_topic_that_may_be_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    observation = sys.modules[choose_topics.__module__]
    monkeypatch.setattr(observation, "see_topics", lambda *_, **__: SimpleNamespace(denied=()))
    request = BackupOptions(topics=("ordres", "ordesr-*", "invoices"))
    found = choose_topics(cluster("orders"), request, patience_s=1, demand=False)
    assert [(notice.topic, notice.message, notice.exit_code) for notice in found.notices] == [
        ("invoices", "there is no such topic yet", 0),
        ("ordres", "there is no such topic yet; did you mean orders?", 0),
        (None, "no topic matches ordesr-* yet; did you mean orders?", 0),
    ]
