"""Tasks hold every offset once, in order, evenly spread, and are no more than the work asks for."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from maxbrod.backup.plan.ranges import RangeItem, Wave, choose_task_bytes, plan_tasks

if TYPE_CHECKING:
    from random import Random

    from maxbrod.backup.plan.ranges import RangeItem

MIB = 1 << 20


def offsets(partition: int, start: int, end: int, bytes_per_offset: float | None = 1.0) -> RangeItem:
    return RangeItem(
        topic=f"topic-{partition % 3}",
        topic_id=f"id-{partition % 3}",
        partition=partition,
        start=start,
        end=end,
        bytes_per_offset=bytes_per_offset,
    )


def items_of(waves: tuple[Wave, ...]) -> list[RangeItem]:
    return [item for wave in waves for task in wave for item in task.items]


def identity(each: RangeItem) -> tuple[str, str, int]:
    return each.topic, each.topic_id, each.partition


_ranges = st.lists(
    st.tuples(
        st.integers(0, 2**62),
        st.sampled_from([0, 1, 2, 50, 1000, 10_000, 100_000]),
        st.sampled_from([None, 0.0, 0.01, 1.0, 700.5]),
    ),
    max_size=30,
).map(lambda drawn: [offsets(number, start, start + size, each) for number, (start, size, each) in enumerate(drawn)])
_limits = st.fixed_dictionaries(
    {
        "parallelism": st.integers(1, 9),
        "task_bytes": st.none() | st.integers(10_000, 10 * MIB),
        "wave_bytes": st.integers(1 * MIB, 100 * MIB),
        "pack_bytes_max": st.sampled_from([0, 1000, 8 * MIB]),
    }
)


@given(_ranges, _limits)
def test_every_offset_is_in_exactly_one_item_and_comes_in_order(
    ranges: list[RangeItem], limits: dict[str, Any]
) -> None:
    waves = plan_tasks(ranges, **limits)
    for whole in ranges:
        mine = [[item for task in wave for item in task.items if identity(item) == identity(whole)] for wave in waves]
        # Within a wave tasks run side by side; from wave to wave offsets only rise.
        pieces = [item for wave in mine for item in sorted(wave, key=lambda item: item.start)]
        if whole.start == whole.end:
            assert not pieces
            continue
        assert (pieces[0].start, pieces[-1].end) == (whole.start, whole.end)
        assert all(one.end == other.start and one.start < one.end for one, other in pairwise(pieces))
    for wave in waves:
        for task in wave:
            assert task.items == tuple(sorted(task.items, key=lambda item: (*identity(item), item.start)))


@given(_ranges, _limits)
def test_waves_and_tasks_are_bounded(ranges: list[RangeItem], limits: dict[str, Any]) -> None:
    task_bytes = min(
        limits["task_bytes"]
        or choose_task_bytes(
            min(sum(each.bytes_estimate for each in ranges), limits["wave_bytes"]), limits["parallelism"]
        ),
        limits["wave_bytes"],
    )
    for wave in plan_tasks(ranges, **limits):
        total = sum(task.bytes_estimate for task in wave)
        assert total <= limits["wave_bytes"] or sum(len(task.items) for task in wave) == 1
        assert len(wave) <= max(limits["parallelism"], -(-total // task_bytes))
        for item in (item for task in wave for item in task.items):
            # A piece is an offset wide at least, and rounding may give it one more than its share.
            assert item.bytes_estimate <= task_bytes + 1025
            assert item.packed == (item.bytes_estimate <= limits["pack_bytes_max"])


@given(_ranges, _limits, st.randoms(use_true_random=False))
def test_the_same_ranges_always_give_the_same_tasks(
    ranges: list[RangeItem], limits: dict[str, Any], random: Random
) -> None:
    shuffled = list(ranges)
    random.shuffle(shuffled)
    assert plan_tasks(shuffled, **limits) == plan_tasks(ranges, **limits)


def test_a_thousand_quiet_partitions_are_two_tasks_on_two_cores() -> None:
    (wave,) = plan_tasks([offsets(number, 0, 3, 100.0) for number in range(1000)], parallelism=2)
    assert [len(task.items) for task in wave] == [500, 500]
    assert all(item.packed for task in wave for item in task.items)


def test_a_thousand_quiet_partitions_never_become_an_object_for_each_core_of_a_large_cluster() -> None:
    (wave,) = plan_tasks([offsets(number, 0, 3, 100.0) for number in range(1000)], parallelism=500)
    assert len(wave) <= 16


def test_a_tiny_run_is_one_task() -> None:
    (wave,) = plan_tasks([offsets(number, 0, 1000, 50.0) for number in range(50)], parallelism=8)
    assert len(wave) == 1


def test_a_hot_partition_is_split_for_all_cores() -> None:
    (wave,) = plan_tasks([offsets(0, 500, 3_000_500, 1024.0)], parallelism=2)
    assert len(wave) == 4
    assert all(len(task.items) == 1 for task in wave)
    assert {task.items[0].end - task.items[0].start for task in wave} == {750_000}


def test_a_hot_partition_is_not_split_into_crumbs() -> None:
    (wave,) = plan_tasks([offsets(0, 0, 100 * MIB)], parallelism=16)
    assert len(wave) == 2


def test_a_partition_of_unknown_weight_counts_a_kibibyte_an_offset() -> None:
    assert offsets(0, 0, 10, None).bytes_estimate == 10 << 10


def test_bytes_are_spread_evenly() -> None:
    ranges = [offsets(number, 0, (number % 40 + 1) * MIB) for number in range(200)]
    (wave,) = plan_tasks(ranges, parallelism=4)
    sizes = [task.bytes_estimate for task in wave]
    assert max(sizes) - min(sizes) <= 8 * MIB
    assert sizes == sorted(sizes, reverse=True)


def test_partitions_that_weigh_nothing_are_spread_as_well() -> None:
    """Asking a broker for nothing takes a round trip, too."""
    (wave,) = plan_tasks([offsets(number, 0, 1, 0.0) for number in range(200)], parallelism=2)
    assert [len(task.items) for task in wave] == [100, 100]


def test_a_range_is_never_split_into_more_pieces_than_it_has_offsets() -> None:
    waves = plan_tasks([offsets(0, 5, 7, 1e9)], parallelism=2)
    assert [(item.start, item.end) for item in items_of(waves)] == [(5, 6), (6, 7)]


def test_an_absurd_estimate_never_fills_the_memory() -> None:
    waves = plan_tasks([offsets(0, 0, 2**62, 1e6)], parallelism=2)
    assert len(items_of(waves)) == 1 << 16


def test_a_hundred_thousand_partitions_are_planned_in_a_bounded_number_of_tasks() -> None:
    ranges = [offsets(number, number, number + number % 50, None) for number in range(100_000)]
    waves = plan_tasks(ranges, parallelism=16)
    assert len(items_of(waves)) == sum(each.start < each.end for each in ranges)
    total = sum(each.bytes_estimate for each in ranges)
    assert len(waves) == 1
    assert len(waves[0]) <= max(16, -(-total // choose_task_bytes(total, 16)))
