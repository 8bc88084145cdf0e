"""The class-data-sharing archive: Spark's classes as a JVM holds them in memory, mapped instead of loaded.

It halves the start of a session (`maxbrod bench start`), and nothing depends on it: if it cannot be built, is missing,
damaged or of another Java, the JVM loads its classes from the jars. `maxbrod.work.prepare` builds it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maxbrod.cache import cache_dir, cache_path, filled
from maxbrod.errors import RefusedError
from maxbrod.private_files import is_private, refuse_foreign
from maxbrod.work.gateway import spark_home

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from maxbrod.java import Java

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
    if not sys.stderr.isatty() or find_archive(java) is not None or _known_unavailable(java):
        return
    with suppress(OSError):
        subprocess.Popen(
            ["nice", "-n", "19", sys.executable, "-P", "-m", "maxbrod.work.prepare"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _known_unavailable(java: Java) -> bool:
    return (cache_path() / _name(java) / _REASON).exists()


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
