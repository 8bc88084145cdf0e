"""Topics are not readable in the names of an encrypted archive's objects, and listings show them all the same."""

from __future__ import annotations

import os

import pytest

from maxbrod.storage.interface import Storage
from maxbrod.storage.sealing.hidden_names import HiddenNames
from maxbrod.storage.stores import encrypted, open_storage
from maxbrod.storage.urls import check_name
from support.storages import sealing_keys

NAMES = HiddenNames(os.urandom(64))


@pytest.mark.parametrize("topic", ["a", "orders", "x" * 249, "x" * 109, "x" * 110, "A.b_c-d", "-", "a-"])
def test_a_hidden_name_is_shown_again(topic: str) -> None:
    path = f"segments/{topic}/IVh0Kk5nQSuv3NqX3lZ3BA/0/00000000000000000000-090a143bcf69d38c.log.zst"
    hidden = check_name(NAMES.hide(path))
    assert topic not in hidden.split("/")
    assert NAMES.show(hidden) == path
    assert NAMES.hide(path) == hidden, "a reader finds it again"


@pytest.mark.parametrize("path", ["packs/x.log", "catalog/segments/x", "segments", "snapshots/a.json.zst"])
def test_other_names_are_as_they_are(path: str) -> None:
    assert NAMES.hide(path) == path == NAMES.show(path)


def test_a_name_of_somebody_else_is_shown_as_it_is() -> None:
    for path in ("segments/orders/x", "segments/aaaa/x", "segments/-/-/-"):
        assert NAMES.show(path) == path


@pytest.fixture
def storage(memory_url: str) -> Storage:
    return encrypted(open_storage(memory_url), sealing_keys())


def test_listings_are_in_the_order_of_the_shown_names(storage: Storage) -> None:
    paths = [f"segments/topic-{number:02}/id/0/{offset:020}.log" for number in range(8) for offset in range(2)]
    for path in reversed(paths):
        storage.put(path, b"")
    assert [info.path for info in storage.list()] == paths
    assert [info.path for info in storage.list("segments/topic-03")] == paths[6:8]
    assert [info.path for info in storage.list("segments/topic-03/id/")] == paths[6:8]
    assert list(storage.list("segments/topic-0")) == []
