"""Spark's reader and the verbs see the same archive: rows, snapshots, and which of several topics a name means."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.archive.archive import Archive, open_archive
from maxbrod.archive.snapshots import Moment, find_moment
from maxbrod.errors import CorruptDataError
from maxbrod.kafka.state.cluster_state import ClusterState, TopicState
from maxbrod.layouts.registry import FOREIGN, NATIVE
from maxbrod.model import PartitionId
from maxbrod.query.options import ScopeOptions
from maxbrod.query.scope import select
from maxbrod.table.read.options import parse_options
from maxbrod.table.read.splits import find_slices, open_table
from support.archives import put_snapshot
from support.conversions import convert
from support.native_logs import NAME, data_batch
from support.table_archives import query, write

if TYPE_CHECKING:
    from pathlib import Path


OLD, NEW, LAST = (f"{name}{name}AAAAAAAAAAAAAAAAAAAA"[:22] for name in ("OLD", "NEW", "LAST"))


@pytest.mark.parametrize("layout", [NATIVE, *FOREIGN])
def test_the_reader_sees_the_rows_and_the_snapshot_that_the_verbs_see(tmp_path: Path, layout: str) -> None:
    place = tmp_path / "archive"
    write(place, [data_batch(0, 5), data_batch(5, 5)])
    if layout != NATIVE:
        convert(place, tmp_path / "tree", layout, accept_loss=True, verify=False)
        place = tmp_path / "tree"
    verb, reader = open_archive(str(place)), open_table(parse_options({"path": str(place)}))
    assert reader.catalog.rows().equals(verb.catalog.rows())
    assert _moment(reader) == _moment(verb)
    assert reader.survey == verb.survey
    assert [row["offset"] for row in query(place)] == [*range(10)]


def test_a_name_means_the_same_topic_to_the_reader_and_to_the_verbs_also_in_older_archives(tmp_path: Path) -> None:
    """The cluster had OLD, then NEW; by LAST both are deleted. The clock of the host that archived NEW was behind."""
    place = tmp_path / "archive"
    topics, ends = {}, {}
    for topic_id, written_at in ((OLD, 2_000), (NEW, 1_000)):
        write(place, [data_batch(0, 5)], run_id=f"run-{topic_id}", topic_id=topic_id, written_at=written_at)
        topics[topic_id], ends[PartitionId(topic_id=topic_id, partition=NAME.partition)] = NAME.topic, 5
        _put_older(place, f"run-{topic_id}", topics, ends, (topic_id,))
    write(place, [data_batch(0, 5)], run_id="run-LAST", topic="other", topic_id=LAST, written_at=3_000)
    _put_older(place, "run-LAST", topics, ends, ())
    verb = open_archive(str(place))
    assert NEW in select(verb, ScopeOptions(topics=(NAME.topic,)), layout=None).newest
    options = parse_options({"path": str(place), "topics": NAME.topic})
    assert {each.source.topic_id for each in find_slices(open_table(options), options)} == {NEW}


def test_as_of_a_run_whose_snapshot_is_damaged_both_refuse_and_now_both_do_without(tmp_path: Path) -> None:
    place = tmp_path / "archive"
    write(place, [data_batch(0, 5)])
    (place / "snapshots" / "run-1.json.zst").write_bytes(b"damaged")
    for as_of in (lambda: _moment(open_archive(str(place)), "run-1"), lambda: query(place, asOf="run-1")):
        with pytest.raises(CorruptDataError, match="the snapshot is damaged"):
            as_of()
    assert _moment(open_archive(str(place))).snapshot is None
    assert len(query(place)) == 5


def _moment(archive: Archive, as_of: str | None = None) -> Moment:
    return find_moment(archive.storage, archive.catalog.runs(), as_of)


def _put_older(
    place: Path, run_id: str, topics: dict[str, str], ends: dict[PartitionId, int], seen: tuple[str, ...]
) -> None:
    """A snapshot as releases wrote it that carried nothing on: only what the run itself saw."""
    state = ClusterState(
        cluster_id="c",
        taken_at_ms=1,
        brokers=(),
        topics=tuple(
            TopicState(name=topics[each], topic_id=each, internal=False, replicas=((1,),), configs={}, effective={})
            for each in seen
        ),
        acls=(),
        quotas=(),
        users=(),
        groups=(),
        gaps=(),
    )
    (place / "snapshots" / f"{run_id}.json.zst").unlink()
    put_snapshot(open_archive(str(place)).storage, run_id, topics=topics, ends=ends, cluster=state)
