"""maxbrod: backup and restore for Apache Kafka.

    report = maxbrod.backup(bootstrap="broker1:9092", archive="s3://backups/kafka", topics=["orders-*"])
    assert report.complete
    maxbrod.restore(archive="s3://backups/kafka", bootstrap="broker1:9092", topics=["orders-*"], groups=["*"])
    maxbrod.register(spark)
    frame = spark.read.format("maxbrod").load("s3://backups/kafka")
    maxbrod.write(frame.where("topic = 'orders'"), "s3://backups/orders")

Importing this is cheap: Kafka, Arrow and Spark are loaded when something is asked of them.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from maxbrod.backup.report import BackupReport as BackupReport
    from maxbrod.backup.run import backup as backup
    from maxbrod.compact.report import CompactReport as CompactReport
    from maxbrod.compact.verb import compact as compact
    from maxbrod.compare.report import CompareReport as CompareReport
    from maxbrod.compare.run import compare as compare
    from maxbrod.erase.report import EraseReport as EraseReport
    from maxbrod.erase.verb import erase as erase
    from maxbrod.errors import MaxbrodError as MaxbrodError
    from maxbrod.query.run import query as query
    from maxbrod.query.run import views as views
    from maxbrod.restore.functions import restore as restore
    from maxbrod.restore.report import RestoreReport as RestoreReport
    from maxbrod.table.registration import register as register
    from maxbrod.table.registration import write as write

__all__ = [
    "BackupReport",
    "CompactReport",
    "CompareReport",
    "EraseReport",
    "MaxbrodError",
    "RestoreReport",
    "__version__",
    "backup",
    "compact",
    "compare",
    "erase",
    "query",
    "register",
    "restore",
    "views",
    "write",
]

__version__: Final = version("maxbrod")

_HOMES: Final = {
    "BackupReport": "maxbrod.backup.report",
    "CompactReport": "maxbrod.compact.report",
    "CompareReport": "maxbrod.compare.report",
    "EraseReport": "maxbrod.erase.report",
    "MaxbrodError": "maxbrod.errors",
    "RestoreReport": "maxbrod.restore.report",
    "backup": "maxbrod.backup.run",
    "compact": "maxbrod.compact.verb",
    "compare": "maxbrod.compare.run",
    "erase": "maxbrod.erase.verb",
    "query": "maxbrod.query.run",
    "register": "maxbrod.table.registration",
    "restore": "maxbrod.restore.functions",
    "views": "maxbrod.query.run",
    "write": "maxbrod.table.registration",
}

# Whoever wants to read along sets a handler up; without one, a library is silent.
logging.getLogger(__name__).addHandler(logging.NullHandler())


class _Package(ModuleType):
    """Keeps `maxbrod.backup` a function: the import system would bind the folder of that name over it."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any of the names above
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
