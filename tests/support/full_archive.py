"""An archive with a bit of everything: gaps, an empty topic, two incarnations, groups, two runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from maxbrod.kafka.state.cluster_state import ClusterState, CommittedOffset, Group, TopicState
from maxbrod.model import AbortedTransaction, GapReason, PartitionId
from support.archives import Place, commit_run
from support.catalog_rows import TOPIC_ID, gap, segment

if TYPE_CHECKING:
    from maxbrod.archive.archive import Archive

OLD_ID: Final = "OLDOLDOLDOLDOLDOLDOLDA"
EMPTY_ID: Final = "EMPTYEMPTYEMPTYEMPTYEA"
NAMES: Final = {OLD_ID: "orders", TOPIC_ID: "orders", EMPTY_ID: "empty"}


def part(number: int, topic_id: str = TOPIC_ID) -> PartitionId:
    return PartitionId(topic_id=topic_id, partition=number)


def old(base: int, end: int) -> Any:
    path = f"segments/orders/{OLD_ID}/0/{base:020}-77.log"
    return segment(base, end, topic_id=OLD_ID, path=path, run_id="run-0", written_at=1_600_000_000_000)


def fill(place: Place) -> Archive:
    """`orders`: partition 0 has [0, 30) with a gap [20, 25), partition 1 [5, 10) in a pack; one more of its name."""
    archive = place.create()
    commit_run(
        archive,
        "run-0",
        [old(0, 7)],
        topics={OLD_ID: "orders"},
        ends={part(0, OLD_ID): 7},
        recovery_points={part(0, OLD_ID): 1_600_000_000_000},
        started_at=1_600_000_000_000,
        finished_at=1_600_000_000_500,
        statistics={"command": "backup", "records": 7, "bytes": 700, "topics": 1, "exit_code": 0},
    )
    aborted = AbortedTransaction(producer_id=9, first_offset=3, last_offset=9)
    commit_run(
        archive,
        "run-1",
        [
            segment(0, 10, aborted=(aborted,)),
            segment(10, 20, aborted=(AbortedTransaction(producer_id=9, first_offset=3, last_offset=12),)),
            segment(5, 10, partition=1, path="packs/run-1-aa.log", position=50, raw_bytes=5000),
        ],
        topics=NAMES,
        ends={part(0, OLD_ID): 7, part(0): 20, part(1): 10, part(0, EMPTY_ID): 0, part(1, EMPTY_ID): 0},
        recovery_points=dict.fromkeys((part(0), part(1), part(0, EMPTY_ID), part(1, EMPTY_ID)), 1_700_000_000_001),
        cluster=cluster(),
    )
    commit_run(
        archive,
        "run-2",
        [gap(20, 25, reason=GapReason.COMPACTED, run_id="run-2"), segment(25, 30, run_id="run-2", last_leader_epoch=4)],
        topics=NAMES,
        ends={part(0, OLD_ID): 7, part(0): 30, part(1): 10, part(0, EMPTY_ID): 0, part(1, EMPTY_ID): 0},
        # It did not read `orders-1` to its end.
        recovery_points={
            **dict.fromkeys((part(0), part(0, EMPTY_ID), part(1, EMPTY_ID)), 1_700_000_200_000),
            part(1): 1_700_000_000_001,
        },
        cluster=cluster(),
        started_at=1_700_000_200_000,
        finished_at=1_700_000_201_000,
        statistics={"command": "backup", "records": 5, "exit_code": 3, "notices": {"stopped": 1}},
    )
    return archive


def cluster() -> ClusterState:
    def topic(name: str, topic_id: str) -> TopicState:
        configs = {"retention.ms": "1000"}
        return TopicState(
            name=name, topic_id=topic_id, internal=False, replicas=((1,), (1,)), configs=configs, effective={}
        )

    def group(group_id: str, offsets: tuple[CommittedOffset, ...] | None) -> Group:
        return Group(group_id=group_id, type="classic", state="Empty", protocol_type="consumer", offsets=offsets)

    def committed(partition: int, offset: int, topic_id: str = TOPIC_ID) -> CommittedOffset:
        where: dict[str, Any] = {"topic": "orders", "topic_id": topic_id, "partition": partition}
        return CommittedOffset(**where, offset=offset, leader_epoch=-1, metadata="")

    return ClusterState(
        cluster_id="sandbox",
        taken_at_ms=1_700_000_000_001,
        brokers=(),
        topics=(topic("orders", TOPIC_ID), topic("empty", EMPTY_ID)),
        acls=(),
        quotas=(),
        users=(),
        groups=(
            group("billing", (committed(0, 18), committed(1, 12))),
            group("hidden", None),
            group("of the past", (committed(0, 1, OLD_ID),)),
        ),
        gaps=(),
    )
