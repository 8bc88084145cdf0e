"""The division of partitions: everyone has one owner, shares are even, few partitions move, nobody shares one."""

from __future__ import annotations

import math
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from maxbrod.model import TopicPartition
from maxbrod.replicate.sharing import Share, divide, next_step, read_shares

_NAMES = [f"instance-{number}" for number in range(6)]
_members = st.sets(st.sampled_from(_NAMES), min_size=1).map(sorted)
_partitions = st.dictionaries(
    st.builds(TopicPartition, topic=st.sampled_from(["a", "b", "c"]), partition=st.integers(0, 8)),
    st.integers(-1, 3),
    max_size=24,
)


@st.composite
def _divisions(draw: st.DrawFn) -> tuple[dict[TopicPartition, int], list[str], dict[TopicPartition, str]]:
    """Partitions, members, and owners so far: some of them gone, of partitions that may be gone."""
    brokers = draw(_partitions)
    owned = draw(st.lists(st.sampled_from(sorted(brokers)), unique=True)) if brokers else []
    present = {where: draw(st.sampled_from(_NAMES)) for where in owned}
    present |= dict.fromkeys(draw(_partitions).keys() - brokers.keys(), _NAMES[0])
    return brokers, draw(_members), present


@given(_divisions())
def test_every_partition_has_one_owner_and_shares_differ_by_one_at_most(
    case: tuple[dict[TopicPartition, int], list[str], dict[TopicPartition, str]],
) -> None:
    brokers, members, present = case
    wanted = divide(brokers, members, present)
    assert wanted.keys() == brokers.keys()
    sizes = [sum(owner == member for owner in wanted.values()) for member in members]
    assert sum(sizes) == len(brokers)
    assert max(sizes) - min(sizes) <= 1


@given(_divisions())
def test_as_few_partitions_move_as_even_shares_allow(
    case: tuple[dict[TopicPartition, int], list[str], dict[TopicPartition, str]],
) -> None:
    brokers, members, present = case
    wanted = divide(brokers, members, present)
    kept = sum(present.get(where) == owner for where, owner in wanted.items())
    held = [sum(present.get(where) == member for where in brokers) for member in members]
    size, larger = divmod(len(brokers), len(members))
    most = max(
        sum(min(have, size + (rank in chosen)) for rank, have in enumerate(held))
        for chosen in combinations(range(len(members)), larger)
    )
    assert kept == most
    assert divide(brokers, members, wanted) == wanted, "what is divided stays as it is"


@given(_divisions(), st.randoms())
def test_the_order_of_what_is_given_does_not_matter(
    case: tuple[dict[TopicPartition, int], list[str], dict[TopicPartition, str]], random: object
) -> None:
    brokers, members, present = case

    def shuffled(values: dict[TopicPartition, object]) -> dict[TopicPartition, object]:
        keys = list(values)
        random.shuffle(keys)  # type: ignore[attr-defined]
        return {key: values[key] for key in keys}

    random.shuffle(members)  # type: ignore[attr-defined]
    assert divide(shuffled(brokers), members, shuffled(present)) == divide(brokers, sorted(members), present)  # type: ignore[arg-type]


@given(_partitions, _members)
def test_a_first_division_is_contiguous_and_clustered_by_broker(
    brokers: dict[TopicPartition, int], members: list[str]
) -> None:
    wanted = divide(brokers, members, {})
    ordered = sorted(brokers, key=lambda where: (brokers[where], where))
    owners = [wanted[where] for where in ordered]
    assert owners == sorted(owners), "each member has one range, in the order of the members"


class _Link:
    """Instances that read the division when they like, and one that divides. What they work on is what they read."""

    def __init__(self, brokers: dict[TopicPartition, int]) -> None:
        self.brokers = brokers
        self.shares: dict[TopicPartition, Share] = {}
        self.generation = 0
        self.heard = {_NAMES[0]: -1}
        """The living instances, and the generation that each follows."""
        self.working: dict[str, set[TopicPartition]] = {}

    def join(self, name: str) -> None:
        self.heard.setdefault(name, -1)

    def die(self, name: str) -> None:
        self.heard.pop(name, None)
        self.working.pop(name, None)

    def read(self, name: str) -> None:
        if name in self.heard:
            self.heard[name] = self.generation
            self.working[name] = {where for where, share in self.shares.items() if share.owner == name}

    def divide(self, _: str) -> bool:
        heard = self.heard | {_NAMES[0]: math.inf}
        present = {where: share.owner for where, share in self.shares.items() if share.owner is not None}
        step = next_step(self.shares, divide(self.brokers, heard.keys(), present), heard, self.generation + 1)
        assert step.taken_from.isdisjoint(self.heard)
        if step.changes:
            self.generation += 1
            # Another instance may lead from now on: all that it knows is what was committed.
            self.shares.update(read_shares(share.committed(where) for where, share in step.changes.items()))
        self.read(_NAMES[0])
        return step.settled

    def worked_on(self) -> list[TopicPartition]:
        return sorted(where for each in self.working.values() for where in each)


@given(
    st.integers(4, 12).map(
        lambda count: {TopicPartition(topic="a", partition=number): number % 3 for number in range(count)}
    ),
    st.lists(
        st.tuples(st.sampled_from(["read", "read", "divide", "join", "die"]), st.sampled_from(_NAMES[1:4])),
        min_size=20,
        max_size=40,
    ),
)
def test_no_two_living_instances_ever_work_on_one_partition(
    brokers: dict[TopicPartition, int], events: list[tuple[str, str]]
) -> None:
    """Whatever the order in which instances join, die, read the division late, and the leader divides."""
    link = _Link(brokers)
    for what, name in events:
        getattr(link, what)(name)
        assert len(link.worked_on()) == len(set(link.worked_on()))
    for _ in range(3):
        settled = link.divide(_NAMES[0])
        for name in link.heard:
            link.read(name)
    assert settled
    assert link.worked_on() == sorted(brokers)
