"""The catalog of an archive in another tool's layout: rows made from a survey, held in memory, never written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.dataset as ds

from maxbrod.catalog.queries import Queries
from maxbrod.catalog.rows import Row, encode_rows
from maxbrod.catalog.validity import find_fault, refused_row
from maxbrod.errors import CorruptDataError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from maxbrod.catalog.generations import GenerationChanges


_NO_ROW: Final = (pa.ArrowException, OverflowError, TypeError, ValueError, KeyError)
_HINT: Final = (
    "the files of the other tool are damaged or not what they claim to be; 'maxbrod check' examines each of them"
)


class SurveyedCatalog(Queries):
    """Answers the same queries as a `Catalog`. It has one version and no replaced rows: other tools record none."""

    version: Final = 0

    def __init__(self, url: str, rows: Iterable[Row]) -> None:
        self.url: Final = url
        self._rows: Final = _Rows(_encoded(rows))

    def __repr__(self) -> str:
        return f"SurveyedCatalog({self.url!r})"

    def _files(self) -> _Rows:
        return self._rows

    def refresh(self) -> None:
        """Does nothing: to repeat a survey, open the archive again."""

    def recent_paths(self, since_ms: int) -> set[str]:
        """Empty: which objects another tool has stopped using is unknown."""
        del since_ms
        return set()

    def commit(
        self,
        rows: Iterable[Row] | pa.Table,
        *,
        replaced: Iterable[Row] | pa.Table = (),
        retired: Iterable[Row] | pa.Table = (),
        generations: GenerationChanges | None = None,
        expected_version: int | None = None,
    ) -> int:
        """Always refused."""
        del rows, replaced, retired, generations, expected_version
        raise RefusedError(
            "this archive is in the layout of another tool, and has no catalog to commit to",
            operation="commit to the catalog",
            object_name=self.url,
            hint="'maxbrod convert' makes a writable archive of it",
        )


class _Rows:
    """A table in memory that is read like the files of a catalog."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def read(self, columns: Sequence[str], condition: ds.Expression | None = None) -> pa.Table:
        return ds.dataset(self._table).to_table(columns=list(columns), filter=condition)

    def stream(self, columns: Sequence[str], condition: ds.Expression | None = None) -> Iterator[pa.Table]:
        yield self.read(columns, condition)

    @property
    def row_count(self) -> int:
        return int(self._table.num_rows)


def _encoded(rows: Iterable[Row]) -> pa.Table:
    """CorruptDataError: what the other tool's files say is not a valid row."""
    rows = list(rows)
    try:
        table = encode_rows(rows)
    except _NO_ROW:
        # Find the row only now that it matters.
        for row in rows:
            try:
                encode_rows([row])
            except _NO_ROW as error:
                raise CorruptDataError(
                    f"the description of a segment is invalid: {error}",
                    operation="read the archive",
                    object_name=getattr(row, "path", None),
                    hint=_HINT,
                ) from error
        raise
    fault = find_fault(table, native=False)
    if fault is not None:
        raise refused_row(fault, table, hint=_HINT)
    return table
