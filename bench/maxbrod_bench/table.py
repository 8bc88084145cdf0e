"""`maxbrod bench table`: an archive as a Spark table beside the live topic, beside Parquet, and what queries open.

Every race takes one minute in one warm session. The live topic is read by a plain PySpark job, record by record in
Python. The log directory of the sandbox's broker is backed up at the end, when the broker has stopped.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from maxbrod.config import Config
from maxbrod.convert.verb import Conversion, logdir_options
from maxbrod.errors import MaxbrodError
from maxbrod.table.read.counts import count_records
from maxbrod.table.read.options import parse_options
from maxbrod.table.read.splits import find_slices, open_table
from maxbrod.table.registration import register
from maxbrod.work.session import Session
from maxbrod.work.work import Work
from maxbrod_bench.race import (
    Figure,
    Lap,
    TableGroup,
    at_most,
    race_laps,
    rate,
    require,
    seconds,
    share,
    speed,
    time_lap,
)
from maxbrod_bench.stage import B_RECORDS, Load, Stage, open_stage, write_load

OBJECTS_WANTED: Final = 2
_POINT_RECORDS: Final = 9000
_POINT_BATCH_BYTES: Final = 9500
"""The partition then has 1,000 batches, and more bytes than are packed with others."""
_AGGREGATE: Final = ("count(*)", "count(key)", "sum(octet_length(value))", "max(offset)")
_COLUMNS: Final = "key,value,offset"
_LIVE_SCHEMA: Final = "key binary, value binary, partition int, offset bigint, timestampMs bigint"
_FETCH_BYTES: Final = 8 << 20
_POLL_RECORDS: Final = 5000

_READERS: Final = 2
"""The number of cores of this benchmark's machine."""


def measure(
    *,
    scale: float,
    rounds: int,
    only: Collection[TableGroup] = (),
    on_stage: Callable[[str], None] = lambda _: None,
) -> list[Figure]:
    """Every figure of the chosen groups, or of all."""
    on_stage("starting a cluster and Spark")
    # The JVM works on records here: with its full compiler, for all contenders alike.
    with open_stage(scale=scale, rounds=rounds, jvm_works=True) as stage:
        return measure_on(stage, frozenset(only or TableGroup), on_stage)


def measure_on(stage: Stage, chosen: frozenset[TableGroup], on_stage: Callable[[str], None]) -> list[Figure]:
    """The chosen groups, log directories at the end: they stop the broker."""
    register(stage.session)
    found: list[Figure] = []
    load = None
    if chosen != {TableGroup.POINT}:
        on_stage("writing data B")
        load = stage.write("table-b", B_RECORDS, json=True)
    if load is not None and chosen & {TableGroup.SCAN, TableGroup.COUNT}:
        on_stage("racing over data B")
        url = _archive(stage, load.topic)
        found += _race_scan(stage, load, url) if TableGroup.SCAN in chosen else []
        found += _race_count(stage, load, url) if TableGroup.COUNT in chosen else []
    if TableGroup.POINT in chosen:
        on_stage("asking 1,000 segments")
        found += _ask_points(stage)
    if load is not None and TableGroup.LOGDIR in chosen:
        on_stage("backing the stopped broker's log directory up")
        broker = stage.cluster.broker_ids[0]
        stage.cluster.stop(broker)
        source = LogDirectory(path=stage.cluster.log_dir(broker), topic=load.topic)
        found += race_logdir(stage.session, source, stage.disk, rounds=stage.rounds)
    return found


def _archive(stage: Stage, topic: str, **request: Any) -> str:  # noqa: ANN401 - fields of `BackupOptions`
    """Back a topic up; returns the archive's URL."""
    archive = stage.disk / f"archive-{topic}"
    stage.run_backup(stage.config(topic, archive, **request))
    return str(archive)


def _table(stage: Stage, url: str, **options: str) -> Any:  # noqa: ANN401 - a DataFrame
    return stage.session.read.format("maxbrod").options(**options).load(url)


def _race_scan(stage: Stage, load: Load, url: str) -> list[Figure]:
    parquet = str(stage.disk / "parquet")
    _table(stage, url).write.mode("overwrite").option("compression", "zstd").parquet(parquet)
    frames: dict[str, Callable[[], Any]] = {
        "table": lambda: _table(stage, url, columns=_COLUMNS),
        "all columns": lambda: _table(stage, url),
        "parquet": lambda: stage.session.read.parquet(parquet),
        "live": lambda: _live_frame(stage.session, stage.cluster.bootstrap, load),
    }

    def aggregate(frame: Callable[[], Any]) -> None:
        (found,) = frame().selectExpr(*_AGGREGATE).collect()
        require(found[0] == load.records, f"{found[0]} of {load.records} records were read", object_name=load.topic)

    laps = stage.race({name: partial(aggregate, frame) for name, frame in frames.items()})
    ours = laps["table"]
    note = rate(load.records, ours)
    return [
        speed("scan of B over the live topic, per record", ours, laps["live"], wanted=3.0, note=note),
        share("scan of B, time over zstd Parquet", ours, laps["parquet"], wanted=2.5, note="the columns named"),
        share("scan of all columns of B, time over Parquet", laps["all columns"], laps["parquet"]),
    ]


def _race_count(stage: Stage, load: Load, url: str) -> list[Figure]:
    def catalog() -> None:
        counts = count_records(parse_options({"path": url}))
        records = None if counts is None else sum(count.records for count in counts)
        require(records == load.records, "the catalog has another count", object_name=load.topic)

    laps = stage.race({"catalog": catalog, "spark": lambda: _table(stage, url, columns="partition").count()})
    return [
        seconds("count by the catalog alone", laps["catalog"], note="no object read"),
        seconds("count by Spark, no column of records", laps["spark"], note="no object read"),
    ]


def _ask_points(stage: Stage) -> list[Figure]:
    """A plain backup of small batches, each a segment of its own, whose times rise: those of B overlap by a minute."""
    load = write_load(
        stage.cluster, "table-points", _POINT_RECORDS, partitions=1, batch_bytes=_POINT_BATCH_BYTES, json=False
    )
    url = _archive(stage, load.topic, segment_records=1)
    everything = _portions(url)
    middle = everything[len(everything) // 2].stored
    at = middle.max_timestamp or 0
    asked = {
        "offset": {"startingOffset": str(middle.base_offset + 1), "endingOffset": str(middle.base_offset + 2)},
        "millisecond": {"since": str(at), "until": str(at + 1)},
    }
    note = f"of {len({segment.stored.path for segment in everything})} segments"
    return [
        at_most(
            f"objects that a query for one {what} reads",
            len({portion.stored.path for portion in _portions(url, **options)}),
            "objects",
            OBJECTS_WANTED,
            note=note,
        )
        for what, options in asked.items()
    ]


def _portions(url: str, **given: str) -> list[Any]:
    options = parse_options({"path": url, **given})
    return find_slices(open_table(options), options)


def _live_frame(session: Session, bootstrap: str, load: Load) -> Any:  # noqa: ANN401 - a DataFrame
    """A task for each partition with kafka-python's own consumer in it. Spark does not verify the rows."""
    numbers = session.sparkContext.parallelize(range(load.partitions), load.partitions)
    end = load.records // load.partitions
    rows = numbers.mapPartitions(partial(_read_partitions, bootstrap, load.topic, end))
    return session.createDataFrame(rows, _LIVE_SCHEMA, verifySchema=False)


def _read_partitions(bootstrap: str, topic: str, end: int, numbers: Iterable[int]) -> Iterator[tuple[Any, ...]]:
    from kafka import KafkaConsumer, TopicPartition  # noqa: PLC0415 - of the worker

    for number in numbers:
        consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            enable_auto_commit=False,
            fetch_max_bytes=_FETCH_BYTES,
            max_partition_fetch_bytes=_FETCH_BYTES,
            max_poll_records=_POLL_RECORDS,
        )
        place = TopicPartition(topic, number)
        consumer.assign([place])
        consumer.seek(place, 0)
        for record in consumer:
            yield record.key, record.value, record.partition, record.offset, record.timestamp
            if record.offset + 1 >= end:
                break
        consumer.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectory:
    """The log directory of a stopped broker; only one topic is read."""

    path: Path
    topic: str

    @property
    def logs(self) -> list[str]:
        return sorted(map(str, self.path.glob(f"{self.topic}-*/*.log")))

    @property
    def bytes(self) -> int:
        return sum(Path(log).stat().st_size for log in self.logs)


def race_logdir(session: Session, source: LogDirectory, disk: Path, *, rounds: int) -> list[Figure]:
    """The files are in the page cache for all contenders alike: the first round does not count."""
    logs = source.logs
    contenders: dict[str, Callable[[], object]] = {
        "maxbrod": partial(_back_up, session, source, disk / "archive-logdir"),
        "cache": partial(_cat, logs, ["/dev/null"] * _READERS),
        "copying": partial(copy_files, logs, disk),
    }
    # Some file systems, such as those in memory, have no disk to read from.
    if _dd(logs[0]):

        def read_direct() -> None:
            """Past the page cache."""
            with ThreadPoolExecutor(_READERS) as pool:
                require(all(pool.map(_dd, logs)), "dd failed")

        contenders["disk"] = read_direct
    laps = race_laps(contenders, rounds=rounds)
    ours, size = laps["maxbrod"], source.bytes
    rates = {name: rate(size, contender, "MB/s") for name, contender in laps.items()}
    found = [
        speed("log directory over reading the page cache", ours, laps["cache"], note=rates["cache"]),
        speed("log directory over copying", ours, laps["copying"], note=f"{rates['copying']}, synced"),
    ]
    if "disk" in laps:
        note = f"{rates['maxbrod']}, the disk {rates['disk']}"
        found.insert(0, speed("log directory over the disk", ours, laps["disk"], wanted=0.8, note=note))
    return found


def _back_up(session: Session, source: LogDirectory, target: Path) -> Lap:
    """Into a new archive. What the last round wrote is removed before: that is as much work for the file system."""
    shutil.rmtree(target, ignore_errors=True)
    options = replace(logdir_options(str(source.path), str(target)), topics=(source.topic,))

    def convert() -> None:
        with Work(Config(), session=session) as work:
            report = Conversion(work, options).run()
        require(not report.exit_code, "the log directory was not backed up whole", object_name=str(source.path))

    return time_lap(convert)


def _dd(log: str) -> bool:
    command = ["dd", f"if={log}", "of=/dev/null", "bs=8M", "iflag=direct"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def copy_files(logs: Sequence[str], folder: Path) -> Lap:
    """Copy files with `cat` into new ones, and sync."""
    targets = [str(folder / f"copy-{number}") for number in range(_READERS)]
    for target in targets:
        Path(target).unlink(missing_ok=True)

    def work() -> None:
        _cat(logs, targets)
        subprocess.run(["sync", *targets], check=True)

    return time_lap(work)


def _cat(logs: Sequence[str], targets: Sequence[str]) -> None:
    """Every file once, from beginning to end."""
    running = []
    for number, target in enumerate(targets):
        with Path(target).open("wb") as out:
            running.append(subprocess.Popen(["cat", *logs[number::_READERS]], stdout=out))
    ended = [process.wait() for process in running]
    if any(ended):
        raise MaxbrodError("cat failed", operation="bench")
