"""The report of a verb: the document that `--json` prints, and the exit code of the command, follow from it.

Most reports have notices.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, cast

from maxbrod.errors import EXIT_DONE
from maxbrod.model import TopicPartition
from maxbrod.notices import Notice

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Report:
    """Base of all reports, which are frozen dataclasses. The reference derives their schemas from the same names."""

    __slots__ = ()
    published: ClassVar[tuple[str, ...]] = ("exit_code",)
    """Properties that stand in the document, after the fields."""

    @property
    def exit_code(self) -> int:
        raise NotImplementedError

    def as_dict(self) -> dict[str, Any]:
        document = asdict(cast("DataclassInstance", self))
        return document | {name: getattr(self, name) for name in self.published}


def about(
    where: TopicPartition,
    kind: str,
    message: str,
    offsets: tuple[int, int] | None = None,
    *,
    hint: str | None = None,
    exit_code: int = EXIT_DONE,
) -> Notice:
    """A notice about a partition, and about offsets [first, end) of it."""
    first, end = offsets or (None, None)
    return Notice(
        kind=kind,
        message=message,
        topic=where.topic,
        partition=where.partition,
        first_offset=first,
        end_offset=end,
        hint=hint,
        exit_code=exit_code,
    )
