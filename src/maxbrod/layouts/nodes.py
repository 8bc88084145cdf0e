"""The type of nested values as a tree of nodes, and the program by which a kernel walks such values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


class Shape(Enum):
    """The form in which the tape stores occurrences of a node."""

    NUMBER = auto()
    REAL = auto()
    """Its bits."""
    BLOB = auto()
    SYMBOL = auto()
    """An index into a list of texts."""
    DECIMAL = auto()
    """The bytes of a number, big-endian."""
    STRUCT = auto()
    LIST = auto()
    """The number of items."""
    NULL = auto()


@dataclass(slots=True, kw_only=True)
class Node:
    number: int
    shape: Shape
    type: pa.DataType
    name: str = ""
    children: list[Node] = field(default_factory=list)
    symbols: dict[int, str] = field(default_factory=dict)
    per_us: int = 1
    """For a time, how many of its units are a microsecond; negative: how many microseconds are a unit."""
    default: Any = None
    """The default of a field, as JSON, for values whose schema does not have the field."""

    def every(self) -> Iterator[Node]:
        """The node and all below it, in the order of their numbers."""
        yield self
        for child in self.children:
            yield from child.every()

    def beside(self) -> Iterator[Node]:
        """The node and those below that occur exactly as often: all but items of lists."""
        yield self
        if self.shape is Shape.STRUCT:
            for child in self.children:
                yield from child.beside()


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A schema compiled for its kernel, and the tree of columns that it fills."""

    format: str
    code: NDArray[np.int64]
    root: Node
    nodes: int
