"""Kafka's own programs: downloads their jars from Maven Central into the cache, once, and runs its command line tools.

The cache also has a formatted storage to copy, and an archive of classes that lets brokers start fast. Names no host:
PySpark ships Ivy, which knows Maven Central; `mvn` is the fallback and reads the user's own settings.
MAXBROD_IVY_SETTINGS names an Ivy settings file for users with a mirror.
"""

from __future__ import annotations

import base64
import importlib.util
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

from maxbrod.errors import EnvironmentMissingError, MaxbrodError, UnavailableError, UsageError
from maxbrod.java import find_java
from maxbrod.private_files import filled
from maxbrod.sandbox.process import Box, free_ports, launch, wait_for

KAFKA_VERSION: Final = "4.3.1"
CONSOLE_CONSUMER: Final = "org.apache.kafka.tools.consumer.ConsoleConsumer"
CONSUMER_PERFORMANCE: Final = "org.apache.kafka.tools.ConsumerPerformance"
DUMP_LOG_SEGMENTS: Final = "org.apache.kafka.tools.DumpLogSegments"
PRODUCER_PERFORMANCE: Final = "org.apache.kafka.tools.ProducerPerformance"
Module: TypeAlias = tuple[str, str, str]
"""The group, the name and the version of something on Maven Central."""

# slf4j-simple has to match the slf4j-api that Kafka brings.
_MODULES: Final = (("org.apache.kafka", "kafka_2.13"), ("org.apache.kafka", "kafka-tools"))
_LOGGING: Final = ("org.slf4j", "slf4j-simple", "1.7.36")
_OLDEST: Final = (3, 3)
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+(-rc\d+)?")
_CHECKPOINT: Final = "bootstrap.checkpoint"
# kafka-tools also brings the whole of Kafka Connect with two web servers, for one tool that nobody needs here: 40 of 90
# jars, and half of the wait. Releases before 4.0 bring another logger, which would swallow the brokers' output.
_EXCLUDED: Final = (("org.apache.kafka", "connect-runtime"), ("org.slf4j", "slf4j-reload4j"))
_MIRROR_MAKER: Final = ("org.apache.kafka", "connect-mirror")

_RESOLVE_TIMEOUT_S: Final = 900
_BROKER_TIMEOUT_S: Final = 120
_ERROR_LINES: Final = 10
_ARCHIVE: Final = "kafka.jsa"
_HINT: Final = (
    "the first start of a sandbox downloads Kafka from Maven Central: connect once, or name a mirror in "
    "an Ivy settings file by MAXBROD_IVY_SETTINGS (or in Maven's settings.xml, with 'mvn' on PATH), "
    "or copy the maxbrod cache folder of a connected machine and name it by MAXBROD_CACHE"
)

# Time stamps in the brokers' logs: a fault is read from the order of lines in several files.
LOGGING_OPTIONS: Final = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)
# Kafka's tools print their answer to stdout, and their clients' chatter at INFO would bury it.
QUIET_OPTIONS: Final = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",)
# The simple compiler only: a third off the start of a program that runs for a second.
QUICK_OPTIONS: Final = ("-XX:TieredStopAtLevel=1",)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaRelease:
    """A Kafka that is known to run: all its jars exist and its StorageTool has worked."""

    version: str
    home: Path

    @property
    def jars(self) -> tuple[Path, ...]:
        return tuple(sorted((self.home / "jars").glob("*.jar")))

    def format(self, data_dir: Path, *, cluster_id: str, node_id: int) -> None:
        """Format the storage of a node as StorageTool does, which takes 2 to 4 s; only these lines differ."""
        data_dir.mkdir()
        shutil.copy(self.home / _CHECKPOINT, data_dir)
        lines = ("version=1", f"cluster.id={cluster_id}", f"node.id={node_id}", f"directory.id={new_uuid()}")
        (data_dir / "meta.properties").write_text("".join(f"{line}\n" for line in lines))


def new_uuid() -> str:
    """A random id in Kafka's base64 form, which must not begin with a dash."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()).startswith("-"):
        pass
    return text


@cache
def mirror_maker_jars() -> tuple[Path, ...]:
    """MirrorMaker 2 with the whole of Kafka Connect, which it runs in, from the cache. A benchmark needs it."""
    find_java()
    modules = ((*_MIRROR_MAKER, KAFKA_VERSION), _LOGGING)
    what, excluded = f"MirrorMaker {KAFKA_VERSION}", (("org.slf4j", "slf4j-reload4j"),)
    home = filled(
        f"mirror-maker-{KAFKA_VERSION}", lambda home: resolve_jars(home / "jars", modules, what=what, excluded=excluded)
    )
    return tuple(sorted((home / "jars").glob("*.jar")))


@cache
def kafka_release(version: str = KAFKA_VERSION) -> KafkaRelease:
    """The release from the cache. The first time it is downloaded, which takes a minute."""
    if _VERSION.fullmatch(version) is None:
        raise UsageError(f"not a version of Kafka: {version}", hint=f"for example {KAFKA_VERSION}")
    if tuple(map(int, version.split(".")[:2])) < _OLDEST:
        raise UsageError(f"Kafka {version} needs ZooKeeper", hint="the sandbox takes 3.3.0 and later")
    return KafkaRelease(version=version, home=filled(f"kafka-{version}", lambda home: _build(home, version)))


def _build(home: Path, version: str) -> None:
    find_java()  # Its error is clearer than that of a failed download.
    modules = [*((group, name, version) for group, name in _MODULES), _LOGGING]
    resolve_jars(home / "jars", modules, what=f"Apache Kafka {version}", excluded=_EXCLUDED)
    _format(home, version)


def resolve_jars(
    folder: Path, modules: Sequence[Module], *, what: str, excluded: Sequence[tuple[str, str]] = ()
) -> None:
    """Download these modules, and what they need, into a folder. EnvironmentMissingError: there is no way."""
    failures = []
    for resolve in (_resolve_with_ivy, _resolve_with_maven):
        work = folder.with_name("work")
        work.mkdir()
        try:
            resolve(folder, work, modules, excluded)
        except _ResolveError as error:
            failures.append(str(error))
        else:
            return
        finally:
            shutil.rmtree(work)
    raise EnvironmentMissingError(f"cannot get the jars of {what}: {'; '.join(failures)}", hint=_HINT)


class _ResolveError(Exception):
    """One way to download the jars failed; the next may work."""


def _resolve_with_ivy(folder: Path, work: Path, modules: Sequence[Module], excluded: Sequence[tuple[str, str]]) -> None:
    dependencies = "".join(
        f'<dependency org="{group}" name="{name}" rev="{rev}" conf="default->default"/>' for group, name, rev in modules
    )
    exclusions = "".join(f'<exclude org="{group}" module="{name}"/>' for group, name in excluded)
    ivy_file = work / "ivy.xml"
    ivy_file.write_text(
        '<ivy-module version="2.0"><info organisation="maxbrod" module="sandbox"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}{exclusions}</dependencies>"
        "</ivy-module>"
    )
    settings = os.environ.get("MAXBROD_IVY_SETTINGS")
    command = [
        *(str(find_java().executable), "-jar", str(spark_jar("ivy"))),
        *(("-settings", settings) if settings else ()),
        *("-cache", str(work / "cache"), "-ivy", str(ivy_file)),
        *("-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    _run("ivy", command, work)


def spark_jar(name: str) -> Path:
    """A jar that PySpark ships, found without importing PySpark."""
    spec = importlib.util.find_spec("pyspark")
    locations = (spec and spec.submodule_search_locations) or ()
    for location in locations:
        for jar in sorted(Path(location, "jars").glob(f"{name}-[0-9]*.jar")):
            return jar
    raise _ResolveError(f"PySpark ships no {name} jar")


def _resolve_with_maven(
    folder: Path, work: Path, modules: Sequence[Module], excluded: Sequence[tuple[str, str]]
) -> None:
    if shutil.which("mvn") is None:
        raise _ResolveError("no mvn on PATH")
    exclusions = "".join(
        f"<exclusion><groupId>{group}</groupId><artifactId>{name}</artifactId></exclusion>" for group, name in excluded
    )
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{rev}</version>"
        f"<exclusions>{exclusions}</exclusions></dependency>"
        for group, name, rev in modules
    )
    pom = work / "pom.xml"
    pom.write_text(
        "<project><modelVersion>4.0.0</modelVersion>"
        "<groupId>maxbrod</groupId><artifactId>sandbox</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )
    goal = "dependency:copy-dependencies"
    _run("mvn", ["mvn", "-q", "-B", "-f", str(pom), goal, f"-DoutputDirectory={folder}"], work)


def _run(name: str, command: Sequence[str], cwd: Path) -> None:
    try:
        ran = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=_RESOLVE_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise _ResolveError(f"{name}: {error}") from error
    if ran.returncode != 0:
        lines = [
            line.strip()
            for line in (ran.stdout + ran.stderr).splitlines()
            if line.strip(" .:\t") and "VERBOSE" not in line
        ]
        raise _ResolveError(f"{name}: {' / '.join(lines[-3:])}")


def _write_properties(path: Path, data_dir: Path, roles: str, **ports: int) -> str:
    """Write the least that a node needs, with a port for each listener; returns the name of the file."""
    listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
    path.write_text(
        f"process.roles={roles}\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{ports['CONTROLLER']}\n"
        f"listeners={listeners}\ncontroller.listener.names=CONTROLLER\nlog.dirs={data_dir}\n"
    )
    return str(path)


def _format(home: Path, version: str) -> None:
    """Let Kafka format a storage once, which also proves that the jars are complete."""
    jars = sorted((home / "jars").glob("*.jar"))
    work = home / "work"
    work.mkdir()
    properties = _write_properties(work / "server.properties", work / "data", "controller", CONTROLLER=1)
    command = java_command(jars, "kafka.tools.StorageTool", "format", "-t", new_uuid(), "-c", properties)
    try:
        _run("StorageTool", command, work)
    except _ResolveError as error:
        raise EnvironmentMissingError(f"Apache Kafka {version} does not run here: {error}") from error
    shutil.copy(work / "data" / _CHECKPOINT, home)
    shutil.rmtree(work)


def java_command(
    jars: Iterable[Path], main_class: str, *arguments: str, options: Sequence[str] = (*QUIET_OPTIONS, *QUICK_OPTIONS)
) -> list[str]:
    classpath = os.pathsep.join(map(str, jars))
    return [str(find_java().executable), "-XX:-UsePerfData", *options, "-cp", classpath, main_class, *arguments]


def archive_options(release: KafkaRelease) -> tuple[str, ...]:
    """Return the JVM options for a class-data-sharing archive of Kafka's classes; none if there is no archive.

    With it a broker starts in 2 s and not in 6. Measured on 2 busy cores with Java 17: 5.9 to 7.8 s without, 2.4 to
    3.0 s with, and benchmarks keep the full compiler. The archive is only a hint to the JVM: if it cannot be made or
    does not fit, brokers start slowly.
    """
    folder = filled(f"classes-{release.version}-{find_java().identity}", lambda home: _train(release, home))
    archive = folder / _ARCHIVE
    return (f"-XX:SharedArchiveFile={archive}", "-Xshare:auto") if archive.exists() else ()


def _train(release: KafkaRelease, home: Path) -> None:
    """Start one broker and stop it; its JVM writes the archive at the end."""
    with Box(home / "training") as box:
        box.claim()
        node = box.directory / "broker"
        node.mkdir()
        client, controller = free_ports(2)
        properties = _write_properties(
            node / "server.properties", node / "data", "broker,controller", PLAINTEXT=client, CONTROLLER=controller
        )
        release.format(node / "data", cluster_id=new_uuid(), node_id=1)
        options = (f"-XX:ArchiveClassesAtExit={home / _ARCHIVE}", "-Xmx512m")
        output = node / "output.log"
        broker = launch(
            java_command(release.jars, "kafka.Kafka", properties, options=options), home=node, output=output
        )
        with suppress(UnavailableError):
            wait_for(
                "the start of a broker",
                lambda: b"Kafka Server started" in output.read_bytes() or not broker.alive,
                timeout_s=_BROKER_TIMEOUT_S,
            )
            broker.stop(timeout_s=_BROKER_TIMEOUT_S)


def run_tool(
    main_class: str,
    *arguments: str,
    stdin: str = "",
    jvm_options: Sequence[str] = QUICK_OPTIONS,
    timeout_s: float = 120,
) -> str:
    """The standard output of one of Kafka's tools, which are the reference if our result is in doubt.

    By default the JVM starts fast and runs slowly: a benchmark should give `jvm_options=()`. MaxbrodError, with the end
    of its output: the tool failed.
    """
    release = kafka_release()
    options = (*QUIET_OPTIONS, *jvm_options, *archive_options(release))
    command = java_command(release.jars, main_class, *arguments, options=options)
    ran = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False)
    if ran.returncode != 0:
        last = "\n".join((ran.stdout + ran.stderr).splitlines()[-_ERROR_LINES:])
        raise MaxbrodError(f"{main_class} failed:\n{last}", operation="run a tool of Kafka")
    return ran.stdout
