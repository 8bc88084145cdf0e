"""A number for each partition, held as a snapshot's document has them: a list by partition number for each topic id.

A snapshot has seven such numbers for each partition. As dictionaries by partition, those of a hundred thousand
partitions took a second to make and a hundred megabytes, and a command needs few of them.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from typing import Any, TypeVar

from maxbrod.model import PartitionId

Number = TypeVar("Number")
"""An integer, or one that may be None."""


class PartitionNumbers(Mapping[PartitionId, Number]):
    """A mapping by partition. `never`: the number in the lists that stands for None."""

    __slots__ = ("_never", "lists")

    def __init__(self, lists: Mapping[str, list[Any]], *, never: int | None = None) -> None:
        self.lists = lists
        """A partition that is null in its list is not in the mapping."""
        self._never = never

    def __getitem__(self, key: PartitionId) -> Number:
        numbers = self.lists.get(key.topic_id)
        found = numbers[key.partition] if numbers is not None and 0 <= key.partition < len(numbers) else None
        if found is None:
            raise KeyError(key)
        meant: Any = None if found == self._never else found
        return meant  # type: ignore[no-any-return] # None only with `never`

    def __iter__(self) -> Iterator[PartitionId]:
        return (partition for partition, _ in self.pairs())

    def __len__(self) -> int:
        return sum(len(numbers) - numbers.count(None) for numbers in self.lists.values())

    def __repr__(self) -> str:
        return f"PartitionNumbers({dict(self.items())!r})"

    def items(self) -> ItemsView[PartitionId, Number]:
        return _Items(self)

    def values(self) -> ValuesView[Number]:
        return _Values(self)

    def pairs(self) -> Iterator[tuple[PartitionId, Number]]:
        never = self._never
        for topic_id, numbers in self.lists.items():
            for partition, number in enumerate(numbers):
                if number is not None:
                    meant: Any = None if number == never else number
                    yield PartitionId(topic_id=topic_id, partition=partition), meant

    def has_same_partitions(self, other: Mapping[PartitionId, object]) -> bool:
        """Whether both have a number for the same partitions."""
        if isinstance(other, PartitionNumbers) and self.lists.keys() == other.lists.keys():
            pairs = ((numbers, other.lists[topic_id]) for topic_id, numbers in self.lists.items())
            if all(len(mine) == len(theirs) and None not in mine and None not in theirs for mine, theirs in pairs):
                return True
        return self.keys() == other.keys()


class _Items(ItemsView[PartitionId, Number]):
    """Without a look-up for each."""

    def __init__(self, numbers: PartitionNumbers[Number]) -> None:
        super().__init__(numbers)
        self._numbers = numbers

    def __iter__(self) -> Iterator[tuple[PartitionId, Number]]:
        return self._numbers.pairs()


class _Values(ValuesView[Number]):
    def __init__(self, numbers: PartitionNumbers[Number]) -> None:
        super().__init__(numbers)
        self._numbers = numbers

    def __iter__(self) -> Iterator[Number]:
        return (number for _, number in self._numbers.pairs())
