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
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from maxbrod.api.compare_report import CompareReport as CompareReport
    from maxbrod.api.functions import backup as backup
    from maxbrod.api.functions import compare as compare
    from maxbrod.api.querying import query as query
    from maxbrod.api.querying import views as views
    from maxbrod.api.reports import BackupReport as BackupReport
    from maxbrod.api.restore_report import RestoreReport as RestoreReport
    from maxbrod.api.restoring import restore as restore
    from maxbrod.datasource.registering import register as register
    from maxbrod.datasource.writing import write as write
    from maxbrod.errors import MaxbrodError as MaxbrodError

__all__ = [
    "BackupReport",
    "CompareReport",
    "MaxbrodError",
    "RestoreReport",
    "__version__",
    "backup",
    "compare",
    "query",
    "register",
    "restore",
    "views",
    "write",
]

__version__: Final = version("maxbrod")

_HOMES: Final = {
    "BackupReport": "maxbrod.api.reports",
    "CompareReport": "maxbrod.api.compare_report",
    "MaxbrodError": "maxbrod.errors",
    "RestoreReport": "maxbrod.api.restore_report",
    "backup": "maxbrod.api.functions",
    "compare": "maxbrod.api.functions",
    "query": "maxbrod.api.querying",
    "register": "maxbrod.datasource.registering",
    "restore": "maxbrod.api.restoring",
    "views": "maxbrod.api.querying",
    "write": "maxbrod.datasource.writing",
}

# Whoever wants to read along sets a handler up; without one, a library is silent.
logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any of the names above
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
