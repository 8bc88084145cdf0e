"""A driver of its own for tests that kill it: a stream of text files into a topic, until all files are written.

python -m support.programs.kafka_stream BOOTSTRAP TOPIC INPUT CHECKPOINT
"""

from __future__ import annotations

import sys
from typing import Any

import maxbrod
from maxbrod.work.session import open_session


def stream(session: Any, bootstrap: str, topic: str, folder: str, checkpoint: str) -> None:
    maxbrod.register(session)
    lines = session.readStream.schema("value string").option("maxFilesPerTrigger", "1").text(folder)
    query = (
        lines.writeStream.format("maxbrod")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    with open_session(master="local[2]") as opened:
        stream(opened, *sys.argv[1:])
