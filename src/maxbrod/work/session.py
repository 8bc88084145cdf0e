"""Opens the Spark session that every job runs in, and closes what it opened.

There are three kinds: a JVM of our own on this machine (`local[*]`, the default), a cluster (any other master, or
`sc://` for Spark Connect), or a session of the caller, which is used as it is and never stopped. A local session
listens on loopback only, accepts no other user there, leaves no file behind and writes nothing to the terminal.
`$MAXBROD_SPARK_LOG` names a file that keeps Spark's log.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from maxbrod.config import SparkConfig
from maxbrod.errors import EnvironmentMissingError, RefusedError, StoppedError, UnavailableError, UsageError
from maxbrod.java import Java, find_java
from maxbrod.private_files import is_private, opened
from maxbrod.work import gateway
from maxbrod.work.gateway import build_archive_later, find_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from maxbrod.work.reach import Needs

Session: TypeAlias = "SparkSession"
"""For modules that pass a session on and do not import pyspark."""

APP_NAME: Final = "maxbrod"
TASK_FAILURES_MAX: Final = 4
"""How often one task may fail before its job does; a cluster has its own setting."""
_PARALLELISM_UNKNOWN: Final = 16

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_SCRATCH: Final = "maxbrod-spark-"
_ABANDONED_SECONDS: Final = 60.0
_SOCKET_PATH_BYTES_MAX: Final = 103
"""The longest path of a socket on every Unix; Linux allows four bytes more."""
_SOCKET_NAME_BYTES: Final = len("/.00000000-0000-0000-0000-000000000000.sock")
_LOG_VARIABLE: Final = "MAXBROD_SPARK_LOG"
_LOG4J: Final = Path(__file__).with_name("log4j2.properties")

_REDACTION: Final = "spark.redaction.regex"
_HIDDEN_BY_SPARK: Final = "(?i)secret|password|token|access[.]?key"
"""Spark's own default."""
_JAVA_VARIABLES: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
"""The variables with a user's own options for every JVM."""

# Changing any of these needs another launcher command than the one stored with the class archive.
_LAUNCH_KEYS: Final = (
    "spark.driver.memory",
    "spark.driver.defaultJavaOptions",
    "spark.driver.extraJavaOptions",
    "spark.driver.extraClassPath",
    "spark.driver.extraLibraryPath",
)

# For every kind of session.
_EVERY_CONF: Final[Mapping[str, str]] = MappingProxyType(
    {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.session.timeZone": "UTC",
    }
)

# Spark Connect always uses Arrow, and warns if it is set.
_CLASSIC_CONF: Final[Mapping[str, str]] = MappingProxyType(
    {
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # The fallback from Arrow would be slow and lossy, without a message.
        "spark.sql.execution.arrow.pyspark.fallback.enabled": "false",
    }
)

_LOCAL_CONF: Final[Mapping[str, str]] = MappingProxyType(
    {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Every user of the machine can reach loopback, and Java would deserialise what they send. For a local session
        # Spark generates the secret itself and writes it nowhere.
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        "spark.network.crypto.saslFallback": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.eventLog.enabled": "false",
        # What a UI would show of past jobs; Spark keeps 1,000 of each in the heap without a UI, too.
        **dict.fromkeys(("spark.ui.retainedJobs", "spark.ui.retainedStages", "spark.sql.ui.retainedExecutions"), "20"),
        "spark.ui.retainedTasks": "1000",
        "spark.python.worker.reuse": "true",
        "spark.sql.catalogImplementation": "in-memory",
        # Jobs are a few tasks over a few rows, so there is nothing to adapt.
        "spark.sql.adaptive.enabled": "false",
    }
)


@contextmanager
def open_session(
    *,
    master: str | None = None,
    conf: Mapping[str, str] = _NOTHING,
    session: SparkSession | None = None,
    jvm_works: bool = False,
) -> Iterator[SparkSession]:
    """A Spark session for the length of a `with` block.

    Args:
        master: `local[N]`, `local[*]` (the default), a cluster's URL, or `sc://…` for Spark Connect.
        conf: Spark settings; they win over ours.
        session: an open session to use instead; no other argument applies, and it stays open.
        jvm_works: the JVM itself will touch the data (SQL, Parquet), so it compiles fully. Otherwise it
            only hands out work to Python, and starts faster with its quick compiler alone.

    Raises:
        EnvironmentMissingError: no Java, or no Spark Connect client.
        UnavailableError: Spark did not start; the hint has the end of its log.
        UsageError: another session is open in this process, and these arguments ask for a different one.
    """
    if session is None:
        session = _open_already(wanted=master is not None or bool(conf))
    if session is not None:
        yield session
        return
    master = master or "local[*]"
    given, conf = frozenset(conf), {**_EVERY_CONF, "spark.app.name": APP_NAME, **conf}
    if master.startswith("sc://"):
        opening = _connect(master, conf)
    elif local := _local_master(master, TASK_FAILURES_MAX):
        opening = _open_local({**_local_conf(local), **conf}, given, jvm_works=jvm_works)
    else:
        opening = _open_cluster({**_CLASSIC_CONF, "spark.master": master, **conf}, given)
    with opening as opened:
        yield opened


class Lender(Protocol):
    """Lends its session to the verbs of this process; see `shared_session`."""

    def borrowed(
        self, config: SparkConfig, stop: threading.Event | None = None
    ) -> AbstractContextManager[SparkSession]: ...


lenders: Final[list[Lender]] = []


@contextmanager
def open_configured(
    config: SparkConfig,
    session: SparkSession | None = None,
    *,
    jvm_works: bool = False,
    needs: Needs | None = None,
    stop: threading.Event | None = None,
) -> Iterator[SparkSession]:
    """The given session, or one as configured. If nothing is configured, an open session is used.

    The workers of a cluster are tested for `needs` first; see `preflight`. `stop` ends the wait for them.
    """
    if session is None and config.engine == "local":
        raise UsageError(
            "this is done by Spark itself, and the engine is set to local", hint="leave out --engine and spark.engine"
        )
    if session is None and lenders:
        opening = lenders[-1].borrowed(config, stop)
    elif session is not None or (config.master, config.conf) == (SparkConfig().master, {}):
        opening = open_session(session=session, jvm_works=jvm_works)
    else:
        opening = open_session(master=config.master, conf=config.conf, jvm_works=jvm_works)
    with opening as opened:
        if needs is not None:
            from maxbrod.work.preflight import check_workers  # noqa: PLC0415 - it needs pyarrow, as tasks do

            check_workers(opened, needs, stop=stop)
        yield opened


def parallelism_of(master: str, session: SparkSession | None = None) -> int:
    """The number of tasks that run at once. For a local master this is known before Spark has started."""
    local = re.fullmatch(r"local(?:\[(\d+|\*)(?:,.*)?\])?", master)
    if session is None and local:
        return os.cpu_count() or 1 if local[1] == "*" else int(local[1] or 1)
    try:
        return int(session.sparkContext.defaultParallelism) if session is not None else _PARALLELISM_UNKNOWN
    except Exception as error:
        # A session of Spark Connect has no context, so the size of its server is unknown. If a JVM died, the job
        # reports it.
        if is_of_spark(error):
            return _PARALLELISM_UNKNOWN
        raise


def is_of_spark(error: Exception) -> bool:
    """Return True if Spark has raised it. If its JVM died, connections to its port are refused."""
    return isinstance(error, ConnectionError) or type(error).__module__.startswith(("pyspark", "py4j"))


def is_local(master: str) -> bool:
    """Return True if the workers of this master run on this machine, from this Python."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def _open_already(*, wanted: bool) -> SparkSession | None:
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext  # noqa: PLC0415  not before the JVM starts, beside which it costs nothing
    from pyspark.sql import SparkSession  # noqa: PLC0415

    if SparkContext._active_spark_context is None:  # noqa: SLF001  the active session is per thread, the context is not
        return None
    if wanted:
        raise UsageError(
            "a Spark session with other settings is open in this process, which can have only one",
            hint="pass it as session=…, or stop it first",
        )
    return SparkSession.builder.getOrCreate()


def _local_master(master: str, task_failures_max: int) -> str | None:
    """`master` with its number of task failures; None: it is not a local one. A given number is kept."""
    found = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\s*(\d+))?\])?", master)
    return found and f"local[{found[1] or 1},{found[2] or task_failures_max}]"


def _local_conf(master: str) -> dict[str, str]:
    threads = re.split(r"[\[,]", master)[1]
    partitions = os.cpu_count() or 1 if threads == "*" else int(threads)
    return {**_CLASSIC_CONF, **_LOCAL_CONF, "spark.master": master, "spark.sql.shuffle.partitions": str(partitions)}


@contextmanager
def _open_local(conf: Mapping[str, str], given: frozenset[str], *, jvm_works: bool) -> Iterator[SparkSession]:
    java = find_java()
    with _scratch_folder() as scratch, ExitStack() as undo:
        own = {"spark.sql.warehouse.dir": str(scratch / "warehouse"), "spark.local.dir": str(scratch)}
        conf = {**own, **_sockets_in(scratch), **conf}
        env = {**_variables(java, conf), "SPARK_LOCAL_IP": "127.0.0.1"}
        with gateway.environment(env):
            jvm = undo.enter_context(closing(_launch_local(java, conf, scratch, jvm_works=jvm_works)))
            session = _attach(jvm, conf, given, undo)
        yield session
    build_archive_later(java)


def _sockets_in(folder: Path) -> dict[str, str]:
    """Settings that let the JVM and Python talk over Unix sockets.

    Their folder has mode 0700, so no other user can connect. Spark would otherwise open loopback ports, which every
    user can reach and which only a secret protects. A path too long for a socket leaves it at the ports.
    """
    if len(os.fsencode(folder)) + _SOCKET_NAME_BYTES > _SOCKET_PATH_BYTES_MAX:
        return {}
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": str(folder)}


def _launch_local(java: Java, conf: Mapping[str, str], scratch: Path, *, jvm_works: bool) -> gateway.Gateway:
    archive = find_archive(java)
    own_command = any(key in conf for key in _LAUNCH_KEYS)
    # The optimizing compiler costs 5 s of processor time at the start. Without it, Parquet takes 1.4 to 2 times longer.
    quick = [] if jvm_works else ["-XX:TieredStopAtLevel=1", *_collector(own_command=own_command)]
    options = [*quick, "-XX:-UsePerfData", f"-Djava.io.tmpdir={scratch}", f"-Dlog4j2.configurationFile={_LOG4J}"]
    log = _log_file(scratch)
    with gateway.settings_file(conf, scratch) as settings:
        command = gateway.launcher_command(java, settings) if archive is None or own_command else archive.command
        submit = [gateway.MAIN_CLASS, *settings]
        if archive is not None:
            try:
                return gateway.launch([*command, *options, *archive.options, *submit], scratch=scratch, log=log)
            except StoppedError:
                raise
            except UnavailableError:
                pass
        jvm = gateway.launch([*command, *options, *submit], scratch=scratch, log=log)
    if archive is not None:
        # The JVM starts without the class archive and did not with it.
        archive.discard()
    return jvm


def _collector(*, own_command: bool) -> list[str]:
    """The option for a collector that keeps the heap small. A JVM refuses a second choice, so a user's one stays alone.

    For a JVM that hands out work it takes no more processor time than G1, and 120 MB less memory.
    """
    chosen = own_command or any("GC" in os.environ.get(name, "") for name in _JAVA_VARIABLES)
    return [] if chosen else ["-XX:+UseSerialGC"]


@contextmanager
def _open_cluster(conf: Mapping[str, str], given: frozenset[str]) -> Iterator[SparkSession]:
    """Start as `spark-submit` does, with the installation, configuration and jars of the cluster's operator."""
    home = os.environ.get("SPARK_HOME") or str(gateway.spark_home())
    configured = {name: os.environ[name] for name in ("SPARK_CONF_DIR",) if name in os.environ}
    with _scratch_folder() as scratch, ExitStack() as undo:
        with gateway.environment({**_variables(find_java(), conf), **configured, "SPARK_HOME": home}):
            with gateway.settings_file(conf, scratch) as settings:
                # A file of settings would otherwise take the place of the operator's.
                command = [f"{home}/bin/spark-submit", "--load-spark-defaults", *settings]
                jvm = undo.enter_context(closing(gateway.launch(command, scratch=scratch, log=_log_file(scratch))))
            session = _attach(jvm, conf, given, undo)
        yield session


@contextmanager
def _connect(url: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    try:
        # Checked here, because PySpark 4.3 exits the whole process with code 0 if one is missing.
        for module in ("grpc", "grpc_status", "google.rpc", "zstandard"):
            importlib.import_module(module)
    except ImportError as error:
        raise EnvironmentMissingError(
            f"Spark Connect needs more Python packages: {error}", hint="pip install 'pyspark[connect]'"
        ) from error
    from pyspark.sql import SparkSession  # noqa: PLC0415

    # PySpark marks the process as a client of Spark Connect by a variable; restoring the environment undoes that.
    with gateway.environment({}):
        session = SparkSession.builder.remote(url).config(map=dict(conf)).getOrCreate()
        try:
            yield session
        finally:
            session.stop()


def _variables(java: Java, conf: Mapping[str, str]) -> dict[str, str]:
    # Workers run the driver's Python, whatever PYSPARK_PYTHON the shell sets: another Python may not have maxbrod.
    return {
        "JAVA_HOME": str(java.home),
        "PYSPARK_PYTHON": conf.get("spark.pyspark.python", sys.executable),
        "PYTHONHASHSEED": "0",
        # Workers start with `python -m`, which would import modules from the current folder first: a file grp.py or
        # pyspark.py in a downloaded archive or a shared folder would run as the user.
        "PYTHONSAFEPATH": "1",
        **({"MAXBROD_SPARK_LOG_LEVEL": "info"} if _LOG_VARIABLE in os.environ else {}),
    }


def _attach(jvm: gateway.Gateway, conf: Mapping[str, str], given: frozenset[str], undo: ExitStack) -> SparkSession:
    """Create the session in `jvm`, with the names of the settings that the user has given.

    `undo` gets the callbacks that remove every trace of it from this process.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    os.environ.update(PYSPARK_GATEWAY_PORT=str(jvm.port), PYSPARK_GATEWAY_SECRET=jvm.secret)
    undo.callback(_disconnect)
    on_interrupt = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread:
        undo.callback(signal.signal, signal.SIGINT, on_interrupt)
    try:
        with gateway.ended_by_signal(jvm):
            session = SparkSession.builder.config(map={**_redaction(given), **conf}).getOrCreate()
    except Py4JError as error:
        # Java's message is one line, followed by its stack.
        reason = next((line for line in str(error).splitlines() if "Exception: " in line), str(error))
        raise UnavailableError(f"Spark did not start: {reason}", object_name=conf["spark.master"]) from error
    if in_main_thread and on_interrupt is not signal.default_int_handler:
        # PySpark has installed its own handler, which cancels all jobs. A caller that has set a handler keeps it.
        signal.signal(signal.SIGINT, on_interrupt)
    # It would print that the connection was closed, at the end or when the JVM dies.
    session.sparkContext._accumulatorServer.handle_error = lambda *_: None  # noqa: SLF001
    undo.callback(_stop, session)
    return session


def _redaction(given: frozenset[str]) -> dict[str, str]:
    """A setting that keeps the values of these settings out of Spark's pages, event logs and `SET`.

    Spark hides what has a word such as "password" in its name; the operator of a cluster may have widened that.
    """
    if not given:
        return {}
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415

    # Connects to the JVM, whose system properties contain spark-defaults.conf.
    SparkContext._ensure_initialized()  # noqa: SLF001
    hidden = SparkConf().get(_REDACTION, _HIDDEN_BY_SPARK)
    return {_REDACTION: f"{hidden}|^(?:{'|'.join(map(re.escape, sorted(given)))})$"}


def _stop(session: SparkSession) -> None:
    from py4j.protocol import Py4JError  # noqa: PLC0415
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    context = session.sparkContext
    # Its thread polls once a second, and stop() would wait for that: 0.9 s of every command. So a thread of its own
    # shuts it down.
    counters, context._accumulatorServer = context._accumulatorServer, None  # noqa: SLF001
    try:
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
            session.stop()
    except (OSError, Py4JError):
        # The JVM has exited already; only PySpark's own references are left.
        SparkContext._active_spark_context = None  # noqa: SLF001
        SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001
    threading.Thread(target=counters.shutdown, daemon=True).start()


def _disconnect() -> None:
    from pyspark import SparkContext  # noqa: PLC0415

    # PySpark keeps one JVM for the life of the process. A later session needs a JVM with its own settings.
    opened, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None  # noqa: SLF001
    if opened is not None:
        opened.shutdown()


def _log_file(scratch: Path) -> Path:
    return Path(os.environ.get(_LOG_VARIABLE) or scratch / "spark.log")


@contextmanager
def _scratch_folder() -> Iterator[Path]:
    """A folder for everything that Spark writes. If this process is killed, a later session removes it."""
    for abandoned in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*/lock"):
        _remove_if_abandoned(abandoned)
    folder = Path(tempfile.mkdtemp(prefix=_SCRATCH))
    try:
        with opened(folder / "lock", create=True) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_if_abandoned(lock: Path) -> None:
    # Any user can create a folder of this name in the temporary one, so only locks of this user are touched.
    with suppress(OSError, RefusedError), opened(lock, create=False) as file:
        if lock.parent.is_symlink() or not is_private(lock.parent):
            return
        # OSError: the lock is held, so that session runs. A fresh one may be about to take its lock.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if time.time() - os.fstat(file).st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(lock.parent, ignore_errors=True)
