"""`maxbrod cluster pack`: packs the packages that maxbrod's tasks need into one archive for `spark.archives`.

A virtual environment cannot be moved: its scripts and its Python contain its own path. So the archive has the packages
and a small launcher that runs the machine's own Python, of the driver's version, with them. Spark brings its pyspark.
"""

from __future__ import annotations

import gzip
import io
import os
import platform
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Annotated, Final

import typer
import yaml

from maxbrod.cli.output import JsonFlag, print_json, print_line
from maxbrod.cli.progress import progress_bar
from maxbrod.errors import EnvironmentMissingError, UsageError
from maxbrod.text import counted, human_bytes
from maxbrod.work.progress import OnProgress, Progress, silent

app = typer.Typer(no_args_is_help=True, help="Prepare a Spark cluster for maxbrod.")

NAME: Final = "environment"
"""The folder that Spark unpacks it into."""
_ROOT: Final = "maxbrod"
_OWN: Final = ("maxbrod", "pyspark_maxbrod")
_OF_SPARK: Final = frozenset({"pyspark", "py4j"})
_LEFT_OUT: Final = frozenset({"__pycache__", "tests", "include"})
_LEVEL: Final = 6
_ENDINGS: Final = (".tar.gz", ".tgz")
"""Spark unpacks these, and it is such a file."""
_MEANINGFUL: Final = ",#%"
"""In `spark.archives`, a list of URLs."""
_LAUNCHER: Final = """\
#!/bin/sh
# Runs this machine's Python {version} with the packages beside this file. Written by 'maxbrod cluster pack'.
here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
PYTHONPATH="$here/packages${{PYTHONPATH:+:$PYTHONPATH}}"
export PYTHONPATH
for python in "${{MAXBROD_PYTHON:-}}" {executable} python{version} /usr/local/bin/python{version} python3; do
  if [ -n "$python" ] && "$python" -c 'import sys; sys.exit(sys.version_info[:2] != {pair})' 2>/dev/null; then
    exec "$python" "$@"
  fi
done
echo "maxbrod: there is no Python {version} on $(hostname); install it, or name it in MAXBROD_PYTHON" >&2
exit 127
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    path: Path
    bytes: int
    packages: dict[str, str]
    """Name and version of each."""
    python: str

    @property
    def settings(self) -> dict[str, str]:
        """What Spark must be told."""
        return {
            "spark.archives": f"{self.path}#{NAME}",
            "spark.pyspark.python": f"./{NAME}/bin/python",
        }


def _default_name() -> str:
    major, minor = sys.version_info[:2]
    machine = f"{platform.system()}-{platform.machine()}".lower()
    return f"maxbrod-{metadata.version(_ROOT)}-py{major}{minor}-{machine}.tar.gz"


def pack(path: Path, *, level: int = _LEVEL, on_progress: OnProgress = silent) -> Packed:
    """Write the archive. A file of that name is replaced when the new one is complete.

    UsageError: Spark would not unpack a file of that name.
    """
    _check_name(path.absolute())
    distributions = _closure()
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError("there is no such folder", operation="pack", object_name=str(folder))
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as raw, gzip.GzipFile("", "wb", level, raw, mtime=0) as packed:
            _write(packed, distributions, on_progress)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    versions = {name: found.version for name, found in sorted(distributions.items())}
    return Packed(path=path.absolute(), bytes=path.stat().st_size, packages=versions, python=_version())


def _check_name(path: Path) -> None:
    """Spark unpacks by the end of the name, and leaves any other file as it is."""
    if not path.name.lower().endswith(_ENDINGS):
        raise UsageError(
            "Spark would not unpack a file of this name",
            operation="pack",
            object_name=str(path),
            hint=f"end it with {' or '.join(_ENDINGS)}",
        )
    odd = sorted(set(str(path)) & set(_MEANINGFUL))
    if odd:
        raise UsageError(
            f"Spark would take {' and '.join(map(repr, odd))} in the name for something else",
            operation="pack",
            object_name=str(path),
            hint="choose another name or folder",
        )


def _write(packed: gzip.GzipFile, distributions: dict[str, metadata.Distribution], on_progress: OnProgress) -> None:
    files = [
        (inside, file, file.stat().st_size)
        for name, found in sorted(distributions.items())
        for inside, file in sorted(_files(name, found))
    ]
    done, total = 0, sum(size for _, _, size in files)
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        pair = tuple(sys.version_info[:2])
        executable = getattr(sys, "_base_executable", sys.executable)
        launcher = _LAUNCHER.format(version=_version(), executable=_quoted(executable), pair=pair).encode()
        archive.addfile(_entry("bin/python", len(launcher), 0o755), io.BytesIO(launcher))
        for inside, file, expected in files:
            on_progress(Progress(phase="packing", bytes_done=done, bytes_total=total))
            with file.open("rb") as content:
                size = os.fstat(content.fileno()).st_size
                archive.addfile(_entry(f"packages/{inside}", size, 0o644), content)
            done += expected
        on_progress(Progress(phase="packing", bytes_done=done, bytes_total=total))


def _entry(name: str, size: int, mode: int) -> tarfile.TarInfo:
    """Without user and time, so that the same packages make the same archive."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, mode
    return entry


def _closure() -> dict[str, metadata.Distribution]:
    """Collect maxbrod and everything that it requires without an extra, as installed here, without Spark's own."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [_ROOT]
    while waiting:
        name = waiting.pop()
        if name in found or name in _OF_SPARK:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            # For another system or Python, or not needed: the preflight names what workers lack.
            continue
        waiting += [_name(require) for require in found[name].requires or () if "extra ==" not in require]
    if _ROOT not in found:
        raise EnvironmentMissingError(
            "maxbrod is not installed as a package here", operation="pack", hint="install it with pip or uv"
        )
    return found


def _name(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]).lower()


def _files(name: str, found: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    own = _source_files() if name == _ROOT else ()
    listed = ((str(file), Path(str(found.locate_file(file)))) for file in found.files or ())
    for inside, file in {**dict(listed), **dict(own)}.items():
        parts = PurePosixPath(inside).parts
        # Scripts lie outside of the packages, and contain the path of this environment.
        unwanted = ".." in parts or _LEFT_OUT.intersection(parts[:-1]) or inside.endswith(".pth")
        if not unwanted and file.is_file():
            yield inside, file


def _source_files() -> Iterable[tuple[str, Path]]:
    """List the modules of maxbrod itself, which an editable installation does not list."""
    for package in _OWN:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            continue
        folder = Path(spec.origin).parent
        for file in folder.rglob("*"):
            yield (PurePosixPath(package) / file.relative_to(folder).as_posix()).as_posix(), file


def _version() -> str:
    return ".".join(map(str, sys.version_info[:2]))


def _quoted(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"


@app.callback()
def cluster() -> None:
    """Prepare a Spark cluster for maxbrod."""


@app.command(name="pack")
def pack_command(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="The archive to write, .tar.gz or .tgz. By default named after version and machine."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Pack this environment into one file for Spark's workers, and print the settings that use it.

    The workers need the same minor version of Python and the same kind of machine as this one.

    For example:

      maxbrod cluster pack /tmp/maxbrod.tar.gz
    """
    with progress_bar(shown=not as_json) as on_progress:
        made = pack(path or Path(_default_name()), on_progress=on_progress)
    if as_json:
        print_json({**asdict(made), "path": str(made.path), "settings": made.settings})
        return
    packages = counted(len(made.packages), "package")
    print_line(f"{made.path}: {packages}, {human_bytes(made.bytes)}, for Python {made.python}")
    print_line("For the configuration file:")
    document = {"spark": {"conf": made.settings}}
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=sys.maxsize)
    # Line by line: what follows a line feed in a text is indented, so that it cannot pass for a line of its own.
    for line in text.splitlines():
        print_line(line)
