"""The report of a verb: the document that `--json` prints, and the exit code of the command, follow from it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, cast

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
