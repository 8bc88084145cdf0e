"""MirrorMaker 2, as a process of its own beside us."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from maxbrod.config import KafkaConfig
from maxbrod.errors import UnavailableError
from maxbrod.kafka.fetch.offsets import log_ends
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.model import TopicPartition
from maxbrod.sandbox.cluster import Cluster
from maxbrod.sandbox.jars import java_command, mirror_maker_jars
from maxbrod.sandbox.process import wait_for
from maxbrod_bench.race import Lap, cpu_seconds_of
from maxbrod_bench.stage import Load

BATCH_BYTES: Final = 32_768
"""The batches of the source, and of MirrorMaker's producer."""
START_TIMEOUT_S: Final = 180.0
_RUN_TIMEOUT_S: Final = 900.0
_MAIN: Final = "org.apache.kafka.connect.mirror.MirrorMaker"
# One broker cannot have three replicas, which is the default of each of these.
_INTERNAL: Final = ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic", "offset.storage", "status.storage")


@contextmanager
def mirror_maker(
    source: str,
    target: Cluster,
    topic: str,
    alias: str,
    tasks: int,
    disk: Path,
    settings: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """MirrorMaker 2 as its own program does it, for one topic, for the length of a `with`. `source` is an address."""
    properties = {
        "clusters": f"{alias},target",
        f"{alias}.bootstrap.servers": source,
        "target.bootstrap.servers": target.bootstrap,
        f"{alias}->target.enabled": "true",
        f"{alias}->target.topics": topic,
        f"target->{alias}.enabled": "false",
        "tasks.max": str(tasks),
        "replication.factor": "1",
        "sync.topic.acls.enabled": "false",
        "target.producer.compression.type": "lz4",
        # As large as the source's: its own default, half of that, would make it pay for twice as many.
        "target.producer.batch.size": str(BATCH_BYTES),
        "config.storage.replication.factor": "1",
        **{f"{each}.replication.factor": "1" for each in _INTERNAL},
        **(settings or {}),
    }
    home = disk / alias
    home.mkdir()
    file = home / "mm2.properties"
    file.write_text("".join(f"{name} = {value}\n" for name, value in properties.items()))
    options = ("-Xms256M", "-Xmx2G", "-server", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")  # as Kafka's script
    with (home / "log").open("wb") as log:
        command = java_command(mirror_maker_jars(), _MAIN, str(file), options=options)
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=home)
        try:
            yield process
        except UnavailableError as error:
            end = (home / "log").read_text(errors="replace")[-800:]
            raise UnavailableError(str(error), operation="bench", hint=end) from error
        finally:
            process.kill()
            process.wait()


def time_process(process: subprocess.Popen[bytes], target: Cluster, topic: str, load: Load) -> Lap:
    """From the moment at which half of the records are there to the last one, as if it had been all of them."""
    places = [TopicPartition(topic=topic, partition=number) for number in range(load.partitions)]
    with KafkaClient(KafkaConfig(bootstrap=target.bootstrap)) as client:

        def arrived() -> int:
            if process.poll() is not None:
                raise UnavailableError("MirrorMaker has ended", operation="bench")
            known = client.metadata([topic]).topics.get(topic)
            ready = known is not None and len(known.partitions) == len(places)
            return sum(log_ends(client, places).values()) if ready else 0

        wait_for("the first records of MirrorMaker", arrived, timeout_s=START_TIMEOUT_S)
        half = load.records // 2
        first = wait_for(
            "half of the records", lambda: reached if (reached := arrived()) >= half else 0, timeout_s=_RUN_TIMEOUT_S
        )
        began, used = time.perf_counter(), cpu_seconds_of(frozenset({process.pid}))
        wait_for("all records", lambda: arrived() >= load.records, timeout_s=_RUN_TIMEOUT_S)
        took, cost = time.perf_counter() - began, cpu_seconds_of(frozenset({process.pid})) - used
    share = load.records / max(load.records - first, 1)
    return Lap(seconds=took * share, cpu_seconds=cost * share)
