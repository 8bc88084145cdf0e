"""Starts and stops the JVM of Spark: the one place that knows how PySpark connects to its JVM.

PySpark would use three shell scripts and a helper JVM, with whatever JAVA_HOME, SPARK_HOME and PYSPARK_SUBMIT_ARGS the
environment holds, and let the JVM write to the terminal. Here the JVM is started directly, with all its output in a log
file, while Python imports what it needs meanwhile. The JVM exits when its standard input is closed, so it cannot
outlive a driver that is killed.

A class-data-sharing archive has Spark's classes as a JVM holds them in memory, mapped instead of loaded. It halves the
start of a session (`maxbrod bench start`), and nothing depends on it: if it cannot be built, is missing, damaged or of
another Java, the JVM loads its classes from the jars. `maxbrod.work.prepare` builds it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import platform
import shlex
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from maxbrod.board import is_process_stopped
from maxbrod.errors import EnvironmentMissingError, RefusedError, StoppedError, UnavailableError, UsageError
from maxbrod.private_files import cache_dir, cache_path, filled, is_private, private_opener, refuse_foreign

if TYPE_CHECKING:
    from maxbrod.java import Java


START_SECONDS_MAX: Final = 180.0
STOP_SECONDS_MAX: Final = 60.0
_POLL_S: Final = 0.2
_ARCHIVING: Final = "-XX:ArchiveClassesAtExit"
_ARCHIVING_SECONDS_MAX: Final = 900.0
"""A JVM that writes its classes when it exits takes a quarter of a minute, and minutes on a busy machine."""

MAIN_CLASS: Final = "org.apache.spark.deploy.SparkSubmit"
_LAUNCHER_CLASS: Final = "org.apache.spark.launcher.Main"
# In place of a program: Spark then waits for Python to connect.
_SHELL: Final = "pyspark-shell"

# These would connect PySpark to another Spark: that of a shell, of a notebook, or another installation.
FOREIGN_VARIABLES: Final = (
    "PYSPARK_DRIVER_PYTHON",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_CONF_DIR",
    "SPARK_CONNECT_MODE_ENABLED",
    "SPARK_HOME",
    "SPARK_REMOTE",
)

# Only Spark's linear algebra uses it. A Java without this module would not start; others print a warning and start
# slower.
_VECTOR_MODULE: Final = "--add-modules=jdk.incubator.vector"

_JAVA_OPTIONS: Final = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")
"""In this order Spark puts them on the command line of its JVM."""
_OPTIONS: Final = "options"
"""The file in the scratch folder that has them instead."""
_OF_THE_VM: Final = ("-D", "-XX:", "-javaagent:", "-agentlib:", "-agentpath:")
"""How the options begin that may contain anything. Others, such as `--add-opens X` in two words, `@file` and `-cp`, are
for the program `java`, which reads them on its command line alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """A running JVM, and what PySpark needs to connect to it."""

    process: subprocess.Popen[bytes]
    port: int
    secret: str
    stop_seconds_max: float = STOP_SECONDS_MAX

    def close(self) -> None:
        """Stop the JVM by closing its standard input, as the end of this process would, and wait for it."""
        try:
            self.process.communicate(timeout=self.stop_seconds_max)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()


def spark_home() -> Path:
    """The folder of the installed PySpark with its jars, found without importing it."""
    spec = find_spec("pyspark")
    home = Path(spec.origin).parent if spec is not None and spec.origin is not None else None
    if home is None or not (home / "jars").is_dir():
        raise EnvironmentMissingError(
            "PySpark is not installed with its jars", hint="pip install 'pyspark>=4.2,<5' (not pyspark-client)"
        )
    return home


def launcher_command(java: Java, settings: Sequence[str] = (_SHELL,)) -> list[str]:
    """The command up to the main class, as Spark's own launcher builds it: class path, heap and module options.

    `settings` are the arguments of `settings_file`.
    """
    home = spark_home()
    own = {name: value for name, value in os.environ.items() if name not in FOREIGN_VARIABLES}
    ran = subprocess.run(
        [java.executable, "-Xmx128m", "-cp", home / "jars" / "*", _LAUNCHER_CLASS, MAIN_CLASS, *settings],
        capture_output=True,
        env={**own, "JAVA_HOME": str(java.home), "SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13"},
        check=False,
    )
    if ran.returncode != 0:
        raise EnvironmentMissingError(
            "Spark's launcher failed", object_name=str(java.home), hint=ran.stderr.decode(errors="replace").strip()
        )
    # The output: lines for people, a line with a NUL, then the command with a NUL after each argument.
    command = ran.stdout.decode().partition("\0\n")[2].split("\0")
    command = [argument for argument in command[: command.index(MAIN_CLASS)] if argument != _VECTOR_MODULE]
    class_path = command.index("-cp") + 1
    command[class_path] = _plain_class_path(command[class_path])
    return command


@contextmanager
def settings_file(conf: Mapping[str, str], scratch: Path) -> Iterator[list[str]]:
    """The arguments for a JVM that starts within the block, which give it all settings in a private file.

    Every user of the machine can read a command line, and no list of words tells which settings are secret. A setting
    that contains options of the JVM itself would reach its command line, so those have a file of their own.
    """
    properties, options = scratch / "settings", scratch / _OPTIONS
    given = [option for name in _JAVA_OPTIONS for option in _java_options(name, conf.get(name, ""))]
    if given:
        shown = [option for option in given if not option.startswith(_OF_THE_VM)]
        _write(options, shlex.join(option for option in given if option.startswith(_OF_THE_VM)))
        # The other setting may have a value of the cluster's operator, which stays.
        first, *more = (name for name in _JAVA_OPTIONS if name in conf)
        conf = {**conf, first: shlex.join([*shown, f"-XX:VMOptionsFile={options}"]), **dict.fromkeys(more, "")}
    _write(properties, "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in conf.items()))
    try:
        yield ["--properties-file", str(properties), _SHELL]
    finally:
        for file in (properties, options):
            file.unlink(missing_ok=True)


def launch(command: Sequence[str], *, scratch: Path, log: Path) -> Gateway:
    """Start the JVM and wait until it listens.

    Raises:
        UnavailableError: it does not. The hint has the end of its log.
        StoppedError: a signal came meanwhile.
    """
    connection = scratch / "gateway"
    with open(log, "ab", opener=private_opener) as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            # A process group of its own, so that Ctrl-C reaches only Python, which then cancels the jobs.
            process_group=0,
            env={**os.environ, "SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection)},
        )
    imports = threading.Thread(target=_import_early, daemon=True)
    imports.start()
    try:
        _wait_for(connection, process, log)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    imports.join()
    port, secret = _read_connection(connection.read_bytes())
    options = scratch / _OPTIONS
    archiving = any(_ARCHIVING in text for text in (*command, options.read_text() if options.exists() else ""))
    stop_seconds_max = _ARCHIVING_SECONDS_MAX if archiving else STOP_SECONDS_MAX
    return Gateway(process=process, port=port, secret=secret, stop_seconds_max=stop_seconds_max)


@contextmanager
def ended_by_signal(jvm: Gateway) -> Iterator[None]:
    """Within the block, which waits for an answer of the JVM, a signal kills the JVM: StoppedError."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_POLL_S):
            if is_process_stopped():
                jvm.process.kill()
                return

    watcher = threading.Thread(target=watch, name="spark start", daemon=True)
    watcher.start()
    try:
        yield
    except Exception:
        _refuse_stopped()
        raise
    finally:
        over.set()
        watcher.join()
    # The JVM may be dead already, although the answer came.
    _refuse_stopped()


def _refuse_stopped() -> None:
    if is_process_stopped():
        raise StoppedError("stopped while Spark was starting", hint="run it again")


@contextmanager
def environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Set our variables and unset foreign ones while PySpark reads the environment."""
    before = {name: os.environ.get(name) for name in (*FOREIGN_VARIABLES, *changes)}
    for name in FOREIGN_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _plain_class_path(class_path: str) -> str:
    """Every file once, in a fixed order. Java 21 rejects a class archive if a file is missing or named twice."""
    entries = [Path(entry) for entry in class_path.split(os.pathsep)]
    files = [
        file for entry in entries for file in (sorted(entry.parent.glob("*.jar")) if entry.name == "*" else [entry])
    ]
    return os.pathsep.join(dict.fromkeys(str(file) for file in files if file.exists()))


def _java_options(name: str, value: str) -> list[str]:
    """The options in a setting. UsageError, as Spark's launcher refuses them; the value may be secret."""
    try:
        options = shlex.split(value)
    except ValueError as error:
        raise UsageError(f"the options of the JVM cannot be read: {error}", object_name=name) from None
    if any(option.startswith("-Xmx") for option in options):
        raise UsageError("the heap is not an option of the JVM", object_name=name, hint="set spark.driver.memory")
    return options


def _write(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8", opener=private_opener) as file:
        file.write(text)


def _escaped(text: str) -> str:
    """A name or a value for a file of Java properties: every character by its number, so that none means anything."""
    return "".join(f"\\u{unit:04x}" for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be")))


def _import_early() -> None:
    # Python is idle while the JVM starts. PySpark imports pandas at the first call of the JVM: 0.4 s, and 1.5 s if no
    # bytecode is stored. If a module cannot be imported, the code that needs it reports that.
    for module in ("pyspark.sql", "pandas", "pyarrow"):
        with suppress(ImportError):
            importlib.import_module(module)


def _wait_for(connection: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    # The JVM renames the file into place when it is complete.
    while not connection.exists():
        _refuse_stopped()
        if process.poll() is not None:
            raise UnavailableError(f"Spark's JVM exited with code {process.returncode} while starting", hint=_tail(log))
        if time.monotonic() > deadline:
            raise UnavailableError(f"Spark's JVM did not start within {START_SECONDS_MAX:.0f} s", hint=_tail(log))
        time.sleep(0.02)


def _read_connection(info: bytes) -> tuple[int, str]:
    port, length = struct.unpack_from("!ii", info)
    return port, info[8 : 8 + length].decode()


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    # Lines of Java's stack are indented; the message stands above them.
    messages = [line for line in lines if line.strip() and not line.startswith("\t")]
    return "Spark's log ends with: " + (" | ".join(messages[-5:]) or "nothing")


UNUSED_DAYS_MAX: Final = 30

_TRAINING: Final = "held tables"
"""Changes whenever `prepare` trains with other work, so that archives with fewer classes are built again."""
_CLASSES: Final = "classes.jsa"
_COMMAND: Final = "command.json"
_REASON: Final = "unavailable.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassArchive:
    """A complete class archive, and the launcher command that it was built with."""

    folder: Path
    command: list[str]

    @property
    def options(self) -> list[str]:
        # Verifying the checksum costs 0.2 s. Without it, a damaged archive crashes the JVM instead of being ignored.
        return ["-Xshare:auto", f"-XX:SharedArchiveFile={self.folder / _CLASSES}", "-XX:+VerifySharedSpaces"]

    def discard(self) -> None:
        """Delete it, because a JVM failed with it: the next session must not try it again."""
        shutil.rmtree(self.folder, ignore_errors=True)


def find_archive(java: Java) -> ClassArchive | None:
    folder = cache_path() / _name(java)
    try:
        # The stored command is executed, so nothing that others own or can write to is trusted: Spark starts without.
        if not is_private(folder.parent):
            return None
        refuse_foreign(folder)
        command = json.loads((folder / _COMMAND).read_text())
    except (OSError, ValueError, RefusedError):
        return None
    if not os.access(folder / _CLASSES, os.R_OK):
        return None
    # Marks it as used, so that it is not removed as unused. The cache may be read-only.
    with suppress(OSError):
        os.utime(folder)
    return ClassArchive(folder=folder.resolve(), command=command)


def build_archive(java: Java, command: list[str], train: Callable[[Path], None]) -> ClassArchive | None:
    """Build it by `train`, which runs a JVM that writes its classes to the given file. None: it cannot be built."""

    def fill(folder: Path) -> None:
        classes = folder / _CLASSES
        train(classes)
        if _usable(command, classes):
            (folder / _COMMAND).write_text(json.dumps(command))
        else:
            classes.unlink(missing_ok=True)
            (folder / _REASON).write_text(f"{java.home} made no archive that it can read\n")

    if find_archive(java) is None:
        # Not to be built then, or not to be trusted: files from the days when a umask could let a group write.
        shutil.rmtree(cache_dir() / _name(java), ignore_errors=True)
    filled(_name(java), fill)
    _remove_unused()
    return find_archive(java)


def build_archive_later(java: Java) -> None:
    """Build it in a process that outlives this one, at the lowest priority and without output.

    Only for a person at a terminal, whose next command becomes faster. Scheduled commands gain little, and a pipe, a
    test or a container should leave no process behind.
    """
    if not sys.stderr.isatty() or find_archive(java) is not None:
        return
    if (cache_path() / _name(java) / _REASON).exists():
        return  # it is known that none can be built
    with suppress(OSError):
        subprocess.Popen(
            ["nice", "-n", "19", sys.executable, "-P", "-m", "maxbrod.work.prepare"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _name(java: Java) -> str:
    jars = spark_home() / "jars"
    # The JVM refuses an archive whose jars have moved or changed. So the name depends on the jars, and such an archive
    # is built again under another name instead of being refused at every start.
    made_of = (java.identity, platform.machine(), str(jars), str(jars.stat().st_mtime_ns), _TRAINING)
    return f"spark-{hashlib.sha256(chr(0).join(made_of).encode()).hexdigest()[:16]}"


def _usable(command: list[str], classes: Path) -> bool:
    # With -Xshare:on an unusable archive is an error instead of a slow start.
    ran = subprocess.run(
        [*command, "-Xshare:on", f"-XX:SharedArchiveFile={classes}", "-XX:+VerifySharedSpaces", "-version"],
        capture_output=True,
        check=False,
    )
    return ran.returncode == 0


def _remove_unused() -> None:
    # 165 MB each, one for each combination of Java and PySpark.
    oldest = time.time() - UNUSED_DAYS_MAX * 86_400
    for folder in cache_dir().glob("spark-*/"):
        if folder.stat().st_mtime < oldest:
            shutil.rmtree(folder, ignore_errors=True)
