"""Takes a query's filters where Spark hands them out, and reads without them where it does not.

Spark keeps filters from sources in Python unless `spark.sql.python.filterPushdown.enabled` is set, which it is not by
default, and fails every query on a source that would take some. For us a filter only ever saves work: Spark looks at
the records once more in any case. So without them a query is slower and no less right, and that is better than none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.datasource import Filter


class if_asked:  # noqa: N801 - a decorator
    """Of the method `pushFilters`: it is there for Spark to call, and no reason to refuse a query that has it off."""

    def __init__(self, method: Callable[[Any, list[Filter]], list[Filter]]) -> None:
        self._method = method

    def __get__(self, reader: object, owner: type | None = None) -> _Bound:
        return _Bound(self._method, reader)


class _Bound:
    # By this Spark tells whether a reader has the method of its own or the inherited one.
    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, method: Callable[[Any, list[Filter]], list[Filter]], reader: object) -> None:
        self._method = method
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        return self._method(self._reader, filters)
