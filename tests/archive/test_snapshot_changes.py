"""Runs that follow each other closely share a snapshot: what differs is in their rows, and nothing is lost by it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given

from maxbrod.archive.snapshot_document import Snapshot, apply_changes, decode, document_of, encode, find_changes
from maxbrod.errors import CorruptDataError
from support.full_archive import part
from support.snapshots import SNAPSHOT, snapshots


def document(snapshot: Snapshot) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(document_of(snapshot)))
    return plain


@given(snapshots, snapshots)
def test_changes_make_any_snapshot_of_any_other(one: Snapshot, other: Snapshot) -> None:
    changes = json.loads(json.dumps(find_changes(document(one), document(other))))
    changed = apply_changes(document(one), changes)
    assert json.dumps(changed, sort_keys=True) == json.dumps(document(other), sort_keys=True)
    assert find_changes(document(one), document(one)) == []


@given(snapshots, snapshots)
def test_a_snapshot_is_read_as_the_run_that_shares_it_had_it(one: Snapshot, other: Snapshot) -> None:
    assume(document(one) != document(other))  # without changes it is its own, and has the runs before it
    shared = replace(one, runs=({"run_id": "before"},))
    assert decode(encode(shared), changes=find_changes(document(one), document(other))) == other


def test_the_changes_of_a_run_follow_the_partitions_that_changed_and_not_their_number() -> None:
    partitions = [part(number) for number in range(1000)]
    before = replace(SNAPSHOT, ends=dict.fromkeys(partitions, 10), recovery_points=dict.fromkeys(partitions, 5000))
    after = replace(
        before,
        ends={**before.ends, partitions[3]: 11},
        recovery_points={**dict.fromkeys(partitions, 6000), partitions[7]: 5000},
    )
    changes = find_changes(document(before), document(after))
    assert len(changes) == 3
    assert json.loads(json.dumps(apply_changes(document(before), changes))) == document(after)


@pytest.mark.parametrize(
    "changes", [[[]], [[[]]], [[["ends", "none", 0], 1]], [[["ends"], [1]]], [[["taken_at_ms", 0], 1]], [["run_id"]]]
)
def test_changes_that_do_not_fit_are_refused(changes: list[Any]) -> None:
    with pytest.raises(CorruptDataError):
        decode(encode(SNAPSHOT), changes=changes)
