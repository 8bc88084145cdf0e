"""Tests the workers of a Spark cluster before the first task: their Python, and what they reach.

Without it, a missing package or key is reported once for each task, by whatever fails first, and without a host. The
workers of a local session are this very Python on this very machine, so nothing is tested there.
"""

from __future__ import annotations

import json
import logging
import pickle
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from maxbrod.config import Config, StorageConfig
from maxbrod.errors import EnvironmentMissingError, MaxbrodError, UnavailableError, error_of
from maxbrod.storage.interface import Storage
from maxbrod.storage.stores import open_storage
from maxbrod.work.jobs import collect, context_of, errors_of_spark
from maxbrod.work.reach import Needs, Place, is_folder
from maxbrod.work.session import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_ROUNDS_MAX: Final = 5
_TASKS_MAX: Final = 512
_TASKS_UNKNOWN: Final = 16
"""For Spark Connect, which does not tell the size of its cluster."""
_HOSTS_NAMED_MAX: Final = 5
_DRIVER_ONLY: Final = frozenset({"prometheus-client", "pyspark", "rich", "typer"})
"""Spark brings its own pyspark into workers; the others serve the command line and the sandbox."""
_FOLDER: Final = "probes"
_LOG: Final = logging.getLogger(__name__)
PAGE: Final = "'maxbrod help cluster' says how"

_passed: set[tuple[str, bytes]] = set()


def needs_of(config: Config, *, writes: bool = False) -> Needs:
    """The needs of most verbs: the configured archive and cluster. `writes`: tasks write to the archive."""
    known = (config.kafka,) if config.kafka is not None else ()
    places = () if config.archive is None else (Place(url=config.archive, storage=config.storage, writes=writes),)
    return Needs(clusters=known, places=places, patience_s=config.patience)


def needs_storage(url: str, storage: StorageConfig, *, writes: bool = False) -> Needs:
    return Needs(places=(Place(url=url, storage=storage, writes=writes),))


def check_workers(session: SparkSession, needs: Needs, *, stop: threading.Event | None = None) -> None:
    """EnvironmentMissingError: the workers' Python lacks something. Other errors: what they cannot reach, and where.

    A cluster without free executors makes it wait, until `stop` is set: UnavailableError.
    A session is tested once for the same needs. Executors that start later are not covered.
    """
    context = context_of(session)
    if context is not None and is_local(str(context.master)):
        return
    key = (str(session.session_id) if context is None else str(context.applicationId), pickle.dumps(needs))
    if key in _passed:
        return
    with _witnessed(needs) as witnessed:
        try:
            found = _probe(session, context, witnessed, stop)
        except UnavailableError as error:
            if stop is None or not stop.is_set():
                raise
            message = "stopped while the executors of Spark were waited for"
            raise UnavailableError(message, operation=error.operation, hint="run it again") from error
    _judge(found)
    _passed.add(key)


def _probe(
    session: SparkSession,
    context: Any,  # noqa: ANN401 - a SparkContext
    needs: Needs,
    stop: threading.Event | None,
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    slots = 0
    for _ in range(_ROUNDS_MAX):
        # Executors register while the session starts. One task for each core reaches all that have.
        now = _TASKS_UNKNOWN if context is None else min(int(context.defaultParallelism), _TASKS_MAX)
        if now <= slots:
            break
        slots = now
        found += _run(session, needs, tasks=now, stop=stop)
    return found


def _run(
    session: SparkSession, needs: Needs, *, tasks: int, stop: threading.Event | None = None
) -> list[dict[str, Any]]:
    from pyspark.sql.functions import udf  # noqa: PLC0415 - after the session has started

    # Not with Arrow, which the Python of a worker may lack as well.
    function = udf(prober(metadata.version("maxbrod"), _packages(), pickle.dumps(needs)), "string", useArrow=False)
    with errors_of_spark():
        probes = session.range(0, tasks, 1, tasks).select(function("id").alias("found"))
    table = collect(session, probes, name=f"preflight-{uuid.uuid4().hex}", stop=stop)
    return [json.loads(text) for text in table["found"].to_pylist()]


def _judge(found: Sequence[dict[str, Any]]) -> None:
    lacking = [worker for worker in found if worker["lacks"]]
    if lacking:
        what = ", ".join(sorted({name for worker in lacking for name in worker["lacks"]}))
        pythons = ", ".join(sorted({worker["python"] for worker in lacking}))
        raise EnvironmentMissingError(
            f"the Python of the Spark workers on {_hosts(lacking)} lacks {what}",
            operation="preflight",
            object_name=pythons,
            hint=f"install the driver's versions there, or send an environment ('maxbrod cluster pack'); {PAGE}",
        )
    for worker in found:
        if worker["errors"]:
            raise _located(worker["errors"][0], found)


def _located(document: dict[str, Any], found: Sequence[dict[str, Any]]) -> MaxbrodError:
    same = [worker for worker in found if document["message"] in {error["message"] for error in worker["errors"]}]
    error = error_of(document)
    error.message = f"from the Spark workers on {_hosts(same)}: {error.message}"
    error.args = (error.message,)
    own = f"{error.hint}; " if error.hint else ""
    error.hint = f"{own}workers have neither the driver's environment nor its files; {PAGE}"
    error.operation = "preflight"
    return error


def _hosts(found: Sequence[dict[str, Any]]) -> str:
    hosts = sorted({worker["host"] for worker in found})
    more = len(hosts) - _HOSTS_NAMED_MAX
    return ", ".join(hosts[:_HOSTS_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


@contextmanager
def _witnessed(needs: Needs) -> Iterator[Needs]:
    """The same needs, each place with an object that workers must see. An empty folder gets one for the time being.

    A place to which tasks write also gets the name of an object that workers try to write.
    """
    places: list[Place] = []
    made: list[tuple[Storage, str]] = []
    try:
        for place in needs.places:
            storage = open_storage(place.url, place.storage)
            seen = next((info for info in storage.list() if info.size), None)
            witness = None if seen is None else seen.path
            if witness is None and is_folder(place.url):
                witness = _name()
                storage.put(witness, b"preflight")
                made.append((storage, witness))
            draft = _name() if place.writes else None
            if draft is not None:
                made.append((storage, draft))
            places.append(replace(place, witness=witness, draft=draft))
        yield replace(needs, places=tuple(places))
    finally:
        for storage, name in made:
            _remove(storage, name)


def _name() -> str:
    return f"{_FOLDER}/{uuid.uuid4().hex}"


def _remove(storage: Storage, name: str) -> None:
    # A key that may write but not delete is enough for a backup. What is left has a few bytes.
    why: object = None
    try:
        why = next((held.reason for held in storage.delete([name])), None)
    except MaxbrodError as error:
        why = error
    if why is not None:
        _LOG.warning("the object %s of the preflight is left to 'maxbrod gc': %s", storage.name_of(name), why)


def _packages() -> tuple[str, ...]:
    """List maxbrod and what it requires in a worker."""
    required = [require for require in metadata.requires("maxbrod") or () if "extra ==" not in require]
    names = [re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0] for requirement in required]
    return ("maxbrod", *(name for name in names if name not in _DRIVER_ONLY))


def prober(version: str, packages: tuple[str, ...], needs: bytes) -> Callable[[int], str]:
    """The function that a task calls. `needs` stays pickled until the worker is known to have maxbrod."""

    def probe(_: int) -> str:
        import json  # noqa: PLC0415 - see above, as all that follow
        import pickle  # noqa: PLC0415
        import socket  # noqa: PLC0415
        import sys  # noqa: PLC0415
        from importlib import metadata  # noqa: PLC0415

        found: dict[str, Any] = {"host": socket.gethostname(), "python": sys.executable, "lacks": [], "errors": []}
        for name in packages:
            try:
                there = metadata.version(name)
            except metadata.PackageNotFoundError:
                found["lacks"].append(name)
                continue
            if name == "maxbrod" and there != version:
                found["lacks"].append(f"maxbrod {version} (it has {there})")
        if not found["lacks"]:
            from maxbrod.work.reach import reach  # noqa: PLC0415

            found["errors"] = reach(pickle.loads(needs))  # noqa: S301 - the driver has pickled it
        return json.dumps(found)

    return probe
