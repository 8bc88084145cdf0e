"""`maxbrod doctor`: tries what a verb will need, and says of each thing what is missing and how to get it.

It writes one object of a few bytes into the archive and deletes it, and changes nothing else.
"""

from __future__ import annotations

import platform
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import ClassVar, Final

from maxbrod import __version__
from maxbrod.archive.archive import open_archive
from maxbrod.archive.runs import list_runs
from maxbrod.config import Config, StorageConfig
from maxbrod.errors import (
    EXIT_FAILED,
    EXIT_REFUSED,
    AccessDeniedError,
    EnvironmentMissingError,
    MaxbrodError,
    NoArchiveError,
    gravest,
)
from maxbrod.inspect.status import free_bytes
from maxbrod.java import find_java
from maxbrod.model import CLOCKS_APART_MS, now_ms
from maxbrod.notices import Promise
from maxbrod.setup.brokers import try_cluster
from maxbrod.setup.findings import doubtful, failed, failed_with, well
from maxbrod.setup.options import DoctorOptions
from maxbrod.storage.bucket import NO_OBJECT_LOCK
from maxbrod.storage.interface import ObjectInfo, Storage
from maxbrod.storage.stores import open_bucket, open_storage, probe_conditional_puts
from maxbrod.text import counted, human_age, human_bytes, human_time
from maxbrod.work.report import Report
from maxbrod.work.work import Work

_PATIENCE_S: Final = 10.0
_ROOM_BYTES_MIN: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport(Report):
    """The findings, in the order in which things are used."""

    findings: tuple[Promise, ...]

    published: ClassVar[tuple[str, ...]] = ("exit_code",)

    @property
    def exit_code(self) -> int:
        return gravest(finding.exit_code for finding in self.findings)


def doctor(work: Work, options: DoctorOptions) -> DoctorReport:
    """Try everything, one thing after the other: a failure of one hides no other."""
    verbs = options.for_ or ("backup",)
    findings: list[Promise] = [well("maxbrod", f"{__version__} on Python {platform.python_version()}")]
    steps: list[tuple[str, Callable[[], Iterator[Promise]]]] = [("java", lambda: _java(verbs))]
    steps.append(("spark", lambda: _spark(work) if options.start_spark else _installed_spark()))
    steps.append(("room", lambda: _room("room", shutil.disk_usage(tempfile.gettempdir()).free, "for temporary files")))
    config = work.config
    if config.kafka is not None:
        kafka = config.kafka
        steps.append(("cluster", lambda: try_cluster(kafka, verbs, options.topics, min(config.patience, _PATIENCE_S))))
    if config.archive is not None:
        url = config.archive
        writes = {*verbs} != {"query"}
        steps.append(("archive", lambda: _archive(url, config, writes=writes)))
    for name, step in steps:
        work.tell(f"trying {name}")
        try:
            findings += step()
        except MaxbrodError as error:
            findings.append(failed_with(name, error))
    for name, setting, flag in (("cluster", config.kafka, "--bootstrap"), ("archive", config.archive, "--archive")):
        if setting is None:
            hint = f"give {flag}, or write a file with 'maxbrod init'"
            findings.append(doubtful(name, "none is named, so none was tried", hint))
    return DoctorReport(findings=tuple(findings))


def _java(verbs: Sequence[str]) -> Iterator[Promise]:
    try:
        java = find_java()
    except MaxbrodError as error:
        if "query" in verbs:
            raise
        yield doubtful("java", f"{error}: runs of up to 64 MiB need none, larger ones do", error.hint)
        return
    yield well("java", f"{java.version} in {java.home}")


def _spark(work: Work) -> Iterator[Promise]:
    from maxbrod.work.jobs import SparkExecutor  # noqa: PLC0415 - only if it is asked for
    from maxbrod.work.reach import Needs  # noqa: PLC0415

    began = time.monotonic()
    executor = SparkExecutor(work.workers(Needs()).session())
    executor.run(_echo, None, [[1]], name=f"doctor-{uuid.uuid4().hex[:12]}")
    master = work.config.spark.master
    yield well("spark", f"{master} started and ran a task in {time.monotonic() - began:.1f} s")


def _installed_spark() -> Iterator[Promise]:
    version = metadata.version("pyspark")
    yield well("spark", f"PySpark {version} is installed; --start-spark runs a task on it")


def _echo(_context: None, items: Sequence[int]) -> Sequence[int]:
    return items


def _archive(url: str, config: Config, *, writes: bool) -> Iterator[Promise]:
    storage = open_storage(url, config.storage)
    yield from _store(storage, writes=writes)
    yield from _bucket(url, config.storage)
    yield from _room("room", free_bytes(url), "in the archive")
    try:
        runs = list_runs(open_archive(url, config.storage, layout=config.layout))
    except NoArchiveError:
        yield well("archive", "there is none yet: the first backup creates it")
        return
    last = max((run.finished_at for run in runs), default=None)
    yield well("archive", f"{counted(len(runs), 'run')}, the last one at {human_time(last) or 'no time'}")
    if last is not None and last - now_ms() > CLOCKS_APART_MS:
        yield _clock("the end of the last run", last - now_ms())


def _store(storage: Storage, *, writes: bool) -> Iterator[Promise]:
    """Try to list, create, read and delete, one after the other, so that each missing right is named."""
    known = next((info for info in storage.list() if info.size), None)
    allowed, created = ["list"], None
    try:
        created = _create(storage) if writes else None
    except MaxbrodError as error:
        yield failed_with("storage", error, "nothing can be created")
    allowed += [] if created is None else ["create"]
    readable = created or known
    if readable is not None:
        storage.get_range(readable.path, 0, 1)
        allowed.append("read")
    if created is not None:
        held = storage.delete([created.path])
        if not held:
            allowed.append("delete")
        elif storage.creates_only:
            yield well("storage", "storage.create_only: nothing is overwritten or deleted; 'gc' needs another user")
        else:
            text = f"nothing can be deleted, which 'gc' needs; backups do not: {held[0].reason}"
            yield doubtful("storage", text, held[0].hint)
    yield well("storage", f"this user may {_and(allowed)} in {storage.url}")
    if ("delete" in allowed or (created and storage.creates_only)) and not probe_conditional_puts(storage):
        hint = "use another store; or, if nothing else ever writes to this archive, --single-writer"
        text = "it ignores conditional puts: two writers would overwrite each other"
        yield failed("storage", text, hint, EXIT_REFUSED)
    if created is not None:
        yield _clock("the clock of the storage", created.modified_ms - now_ms())


def _bucket(url: str, options: StorageConfig) -> Iterator[Promise]:
    """What a bucket of S3 does against deletion: versions, and locks."""
    wanted = options.lock is not None
    try:
        bucket = open_bucket(url, options)
        if bucket is None:
            return
        versions, locking = bucket.keeps_versions(), bucket.locking()
    except EnvironmentMissingError as error:
        if wanted:
            yield failed_with("lock", error)
        return
    except AccessDeniedError as error:
        text = f"whether the bucket keeps versions and locks objects is not known: {error.message}"
        yield doubtful("lock", text, error.hint) if wanted else well("lock", text)
        return
    kept = "keeps older versions" if versions else "keeps no older versions: what is deleted or overwritten is gone"
    if not locking.enabled:
        text = f"the bucket {kept}, and has no Object Lock"
        yield failed("lock", text, NO_OBJECT_LOCK, EXIT_REFUSED) if wanted else well("lock", text)
        return
    rule = locking.default
    days = "locks nothing by itself"
    if rule is not None:
        days = f"locks new objects for {human_age(rule.period_ms)} ({rule.mode})"
    ours = "" if options.lock is None else f"; backups lock theirs for {human_age(int(options.lock * 1000))}"
    yield well("lock", f"the bucket {kept}; Object Lock is on, and {days}{ours}")


def _create(storage: Storage) -> ObjectInfo:
    name = f"probes/{uuid.uuid4().hex}"
    storage.put(name, b"doctor")
    return storage.head(name)


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def _clock(whose: str, ahead_ms: int) -> Promise:
    if abs(ahead_ms) <= CLOCKS_APART_MS:
        return well("clock", f"{whose} and that of this machine agree")
    text = f"{whose} is {human_age(abs(ahead_ms))} {'ahead of' if ahead_ms > 0 else 'behind'} this machine's"
    return failed("clock", text, "set the clock that is wrong: 'prune' and 'gc' refuse to go by it", EXIT_FAILED)


def _room(name: str, free: int | None, where: str) -> Iterator[Promise]:
    if free is not None:
        text = f"{human_bytes(free)} are free {where}"
        yield well(name, text) if free >= _ROOM_BYTES_MIN else doubtful(name, text, "make room, or use another disk")
