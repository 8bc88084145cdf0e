"""Makes later starts of Spark faster: `python -m maxbrod.work.prepare`, run by `make setup`.

It runs Spark once, does what every job does, and stores the loaded classes (see `gateway`). If this fails, Spark
starts as slowly as before, and nothing else changes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from maxbrod.errors import MaxbrodError
from maxbrod.java import find_java
from maxbrod.work.gateway import ClassArchive, build_archive, find_archive, launcher_command
from maxbrod.work.session import Session, open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def prepare() -> ClassArchive | None:
    """Return the class archive for this Java and this PySpark, built if it is missing. None: it cannot be built."""
    java = find_java()
    return find_archive(java) or build_archive(java, launcher_command(java), train)


def train(classes: Path) -> None:
    """Run what every job runs, in a JVM that writes its classes to `classes` when it exits."""
    options = f"-XX:ArchiveClassesAtExit={classes} -Xlog:disable"
    with open_session(conf={"spark.driver.extraJavaOptions": options}) as session:
        items = session.createDataFrame([(number, b"work") for number in range(4)], "id long, item binary")
        items.repartition(2).mapInArrow(_same, items.schema).collect()
        items.mapInArrow(_same, items.schema).toArrow()
        items.groupBy("id").count().orderBy("id").collect()
        session.range(4).selectExpr("id % 2 AS k", "id AS v").createOrReplaceTempView("numbers")
        session.sql("SELECT k, sum(v) FROM numbers WHERE v > 0 GROUP BY k").collect()
        _train_queries(session)


def _train_queries(session: Session) -> None:
    """Do what `maxbrod query` does: a plan over empty Parquet tables, small tables and a Python task, shown as text."""
    import pyarrow as pa  # noqa: PLC0415 - beside the JVM's start

    with TemporaryDirectory(prefix="maxbrod-prepare-") as folder:
        empty = session.read.schema("id long, item binary").parquet(Path(folder).as_uri())
        empty.createOrReplaceTempView("empty")
        planned = session.sql("SELECT count(*), max(item) FROM (SELECT * FROM empty) WHERE id > 1")
        planned._jdf.queryExecution().executedPlan()  # noqa: SLF001 - as `table.scans` does
    own = session.newSession()
    counts = own.createDataFrame(pa.table({"k": ["a", "b"], "n": [1, 2]}))
    counts.selectExpr("k", "explode(array_repeat(0, int(n))) AS each").select("k").createOrReplaceTempView("counts")
    _show(own.sql("SELECT k, count(*) AS n, max(k) AS item FROM counts WHERE k > 'a' GROUP BY k ORDER BY k"))
    own.conf.set("spark.sql.execution.arrow.localRelationThreshold", "0")
    own.createDataFrame(
        pa.table({"k": ["a", "b"], "n": [1, 2], "item": [b"1", b"2"], "h": [[{"key": "a", "value": b"b"}], None]})
    ).coalesce(1).createOrReplaceTempView("held")
    _show(own.sql("SELECT * FROM (SELECT k, count(*) AS n, max(item) AS item FROM held WHERE n > 0 GROUP BY k)"))
    _show(own.sql("SELECT k, n, item FROM held WHERE n BETWEEN 1 AND 7 ORDER BY n DESC LIMIT 3"))
    _show(own.sql("SELECT 'a' AS k, count(*) AS n, max(item) AS item FROM held WHERE n = 1"))
    read = own.range(0, 2, 1, 2).mapInArrow(_same, "id long")
    read.selectExpr("id", "cast(cast(id AS string) AS binary) AS item").createOrReplaceTempView("items")
    _show(own.sql("SELECT id % 2 AS k, count(*) AS n, max(item) AS item FROM items GROUP BY id % 2 ORDER BY k"))
    _show(own.sql("SELECT id AS k, id AS n, item FROM items WHERE id = 1"))


def _show(found: DataFrame) -> None:
    found.selectExpr("cast(k AS string)", "cast(n AS string)", "make_valid_utf8(cast(item AS string))").limit(
        3
    ).toArrow()


def _same(batches: Iterable[Any]) -> Iterable[Any]:
    return batches


def main() -> int:
    try:
        archive = prepare()
    except (MaxbrodError, OSError) as error:
        sys.stdout.write(f"Spark will start without a class archive: {error}\n")
        return 1
    sys.stdout.write(f"Spark starts from {archive.folder}\n" if archive else "This Java cannot share classes.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
