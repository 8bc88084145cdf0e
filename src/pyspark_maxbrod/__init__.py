"""Lets Spark find the format `maxbrod` by itself.

When a session meets a format that it does not know for the first time, Spark imports every top-level module whose name
begins with `pyspark_` and registers its `DefaultSource`. It does so for any unknown format, so this module imports
nothing that could fail or take time: the source itself is imported when an archive is opened.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):  # type: ignore[misc]  # pyspark is not typed
    """Creates a `maxbrod.table.source.ArchiveSource`."""

    def __new__(cls, options: MutableMapping[str, str]) -> Any:  # noqa: ANN401 - the source, not one of this class
        from maxbrod.table.source import ArchiveSource  # noqa: PLC0415 - Arrow, storage, catalog

        return ArchiveSource(options)

    @classmethod
    def name(cls) -> str:
        return "maxbrod"
