"""Compiles `.proto` files into descriptor sets, with the compiler of grpcio-tools."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from maxbrod.errors import EnvironmentMissingError, UnsupportedFormatError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_COMPILER: Final = "grpc_tools"
_TIMEOUT_S: Final = 120


def read_descriptors(file: Path) -> bytes:
    """The descriptor set of a `.proto` file, which may import files beside it, or of a file that is one."""
    try:
        if file.suffix != ".proto":
            return file.read_bytes()
        return compile_files({file.name: ""}, main=file.name, folder=file.parent)
    except OSError as error:
        raise UsageError(f"the schema cannot be read: {error.strerror}", object_name=str(file)) from error


def compile_files(files: Mapping[str, str], *, main: str, folder: Path | None = None) -> bytes:
    """The descriptor set of `main` and all that it imports. `files` has texts by name, unless they are in `folder`."""
    with tempfile.TemporaryDirectory(prefix="maxbrod-proto-") as scratch:
        place = Path(scratch) if folder is None else folder
        if folder is None:
            for name, text in files.items():
                _write(place, name, text)
        out = Path(scratch) / "maxbrod.descriptors"
        ran = _run(["--include_imports", f"--descriptor_set_out={out}", f"-I{place}", f"-I{_own_files()}", main])
        if ran.returncode:
            complaints = ran.stderr.decode(errors="replace").strip().splitlines()
            raise UnsupportedFormatError(
                f"this Protobuf schema cannot be compiled: {complaints[0] if complaints else 'no reason is given'}",
                operation="decode",
                object_name=main,
            )
        return out.read_bytes()


def _write(place: Path, name: str, text: str) -> None:
    file = place / name
    if not file.resolve().is_relative_to(place.resolve()):
        raise UnsupportedFormatError(
            "the name of a schema points outside of its folder", operation="decode", object_name=name
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def _run(arguments: list[str]) -> subprocess.CompletedProcess[bytes]:
    # In a process of its own, because the compiler writes errors to the terminal.
    return subprocess.run(
        [sys.executable, "-P", "-m", f"{_COMPILER}.protoc", *arguments],
        capture_output=True,
        timeout=_TIMEOUT_S,
        check=False,
    )


def _own_files() -> Path:
    """Where google/protobuf/timestamp.proto and its like are."""
    spec = find_spec(_COMPILER)
    if spec is None or spec.origin is None:
        raise EnvironmentMissingError(
            "compiling .proto files needs grpcio-tools", operation="decode", hint="pip install 'maxbrod[protobuf]'"
        )
    return Path(spec.origin).parent / "_proto"
