"""The catalog of an archive in another tool's layout: rows made of a survey, held in memory, never written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.dataset as ds

from maxbrod.catalog import queries
from maxbrod.catalog.rows import encode_rows
from maxbrod.catalog.validity import find_fault, refused_row
from maxbrod.errors import CorruptDataError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from maxbrod.catalog.queries import ArchivedRange
    from maxbrod.catalog.replaced import Revisions
    from maxbrod.catalog.rows import Gap, Row, Run
    from maxbrod.model import GapReason, PartitionId


_NO_ROW: Final = (pa.ArrowException, OverflowError, TypeError, ValueError, KeyError)
_HINT: Final = "the files of the other tool are damaged or not what they claim; 'maxbrod check' looks at each of them"


class SurveyedCatalog:
    """Answers what a `Catalog` answers. There is one version of it: that of the survey."""

    version: Final = 0

    def __init__(self, url: str, rows: Iterable[Row]) -> None:
        self.url: Final = url
        self._rows = _Rows(_encoded(rows))

    def __repr__(self) -> str:
        return f"SurveyedCatalog({self.url!r})"

    def refresh(self) -> None:
        """A survey is made anew by opening the archive again."""

    def positions(self) -> dict[PartitionId, ArchivedRange]:
        """How far each partition is archived."""
        return queries.find_positions(self._rows)

    def runs(self) -> list[Run]:
        """The one that stands for all that were."""
        return queries.find_runs(self._rows)

    def gaps(self, reasons: Collection[GapReason]) -> list[Gap]:
        """Every gap that has one of these reasons."""
        return queries.find_gaps(self._rows, reasons)

    def rows(
        self,
        *,
        topic: str | None = None,
        topic_id: str | None = None,
        partition: int | None = None,
        offsets: tuple[int, int] | None = None,
        timestamps: tuple[int, int] | None = None,
        as_of: Mapping[PartitionId, int] | None = None,
        revisions: Revisions | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """See `Catalog.rows`."""
        return queries.find_rows(
            self._rows,
            topic=topic,
            topic_id=topic_id,
            partition=partition,
            offsets=offsets,
            timestamps=timestamps,
            as_of=as_of,
            revisions=revisions,
            columns=columns,
        )

    def replaced(self) -> pa.Table:
        """None."""
        return encode_rows(())

    def revisions(self) -> dict[PartitionId, int]:
        """None: what there was before, other tools do not tell."""
        return {}

    def paths(self) -> set[str]:
        """Every object that some row names."""
        return queries.find_paths(self._rows)

    def recent_paths(self, since_ms: int) -> set[str]:
        """None: what another tool has put out of use, nobody here knows."""
        del since_ms
        return set()

    def commit(
        self,
        rows: Iterable[Row] | pa.Table,
        *,
        replaced: Iterable[Row] | pa.Table = (),
        retired: Iterable[Row] | pa.Table = (),
        expected_version: int | None = None,
    ) -> int:
        """Always refused."""
        del rows, replaced, retired, expected_version
        raise RefusedError(
            "this archive is in the layout of another tool, and has no catalog to commit to",
            operation="commit to the catalog",
            object_name=self.url,
            hint="'maxbrod convert' makes an archive of it that can be written to",
        )


class _Rows:
    """A table that is read as the files of a catalog are."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def read(self, columns: Sequence[str], condition: ds.Expression | None = None) -> pa.Table:
        return ds.dataset(self._table).to_table(columns=list(columns), filter=condition)


def _encoded(rows: Iterable[Row]) -> pa.Table:
    """CorruptDataError: what the other tool's files say makes no row."""
    told = list(rows)
    try:
        table = encode_rows(told)
    except _NO_ROW:
        # Which one it is matters only now.
        for row in told:
            try:
                encode_rows([row])
            except _NO_ROW as error:
                raise CorruptDataError(
                    f"what is said of a segment cannot be true: {error}",
                    operation="read the archive",
                    object_name=getattr(row, "path", None),
                    hint=_HINT,
                ) from error
        raise
    fault = find_fault(table, native=False)
    if fault is not None:
        raise refused_row(fault, table, hint=_HINT)
    return table
