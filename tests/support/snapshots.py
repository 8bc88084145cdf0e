"""A snapshot, and any snapshot."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from maxbrod.archive.snapshot_document import Snapshot
from maxbrod.model import PartitionId

INT64_MAX = 2**63 - 1
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), INT64_MAX) | _text | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
).filter(lambda value: "Infinity" not in json.dumps(value))
_partitions = st.builds(PartitionId, topic_id=_text, partition=st.integers(0, 300))
_numbers = st.dictionaries(_partitions, st.integers(0, INT64_MAX), max_size=8)
_points = st.dictionaries(_partitions, st.none() | st.integers(0, INT64_MAX), max_size=8)
snapshots = st.builds(
    Snapshot,
    run_id=_text,
    taken_at_ms=st.integers(-(2**63), INT64_MAX),
    cluster=st.dictionaries(_text, _json, max_size=3),
    ends=_numbers,
    topics=st.dictionaries(_text, _text, max_size=3),
    recovery_points=_points,
    behind=_points,
    log_starts=_numbers,
    revisions=_numbers,
)
SNAPSHOT = Snapshot(
    run_id="run-7",
    taken_at_ms=1_700_000_000_001,
    cluster={"topics": [{"name": "orders"}]},
    ends={PartitionId(topic_id="a", partition=2): 17, PartitionId(topic_id="a", partition=0): INT64_MAX},
    topics={"a": "orders"},
)
