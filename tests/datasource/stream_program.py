"""A driver that is killed: `python -m datasource.stream_program LINES CHECKPOINT ARCHIVE` streams until then."""

from __future__ import annotations

import sys
from typing import Any

import maxbrod
from maxbrod.spark.session import open_session


def start(session: Any, lines: object, checkpoint: object, archive: object, **trigger: Any) -> Any:
    """One file a micro-batch; each line is a record, in the partition that it hashes to."""
    maxbrod.register(session)
    frame = session.readStream.option("maxFilesPerTrigger", 1).text(str(lines)).selectExpr("value as key", "value")
    return (
        frame.writeStream.format("maxbrod")
        .option("checkpointLocation", str(checkpoint))
        .option("topic", "lines")
        .option("partitions", 2)
        .trigger(**trigger or {"processingTime": "0 seconds"})
        .start(str(archive))
    )


if __name__ == "__main__":
    with open_session(master="local[2]") as spark:
        start(spark, *sys.argv[1:]).awaitTermination()
