"""A driver that is killed: `python -m support.programs.dying_stream LINES CHECKPOINT ARCHIVE` streams until then.

It dies right after the archive has committed a micro-batch, before Spark can note that.
"""

from __future__ import annotations

import sys
from typing import Any

import psutil

import maxbrod
from maxbrod.table.sink.archive import ArchiveCommitMessage
from maxbrod.table.source import ArchiveSource, SinkStreamWriter
from maxbrod.work.session import open_session

LAST = 3
"""The micro-batch that Spark does not live to note."""


class DyingWriter(SinkStreamWriter):
    def commit(self, messages: list[ArchiveCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        super().commit(messages, batchId)
        if batchId == LAST:
            next(each for each in psutil.Process().parents() if each.name() == "java").kill()


class DyingSource(ArchiveSource):
    def streamWriter(self, schema: Any, overwrite: bool) -> DyingWriter:  # noqa: N802 - Spark's name
        return DyingWriter(super().streamWriter(schema, overwrite)._sink)


def start(session: Any, lines: object, checkpoint: object, archive: object) -> Any:
    """To the end of what is there. One file a micro-batch; each line is a record, where it hashes to."""
    frame = session.readStream.option("maxFilesPerTrigger", 1).text(str(lines)).selectExpr("value as key", "value")
    return (
        frame.writeStream.format("maxbrod")
        .option("checkpointLocation", str(checkpoint))
        .option("topic", "lines")
        .option("partitions", 2)
        .trigger(availableNow=True)
        .start(str(archive))
    )


if __name__ == "__main__":
    with open_session(master="local[2]") as spark:
        maxbrod.register(spark)
        spark.dataSource.register(DyingSource)
        start(spark, *sys.argv[1:]).awaitTermination()
