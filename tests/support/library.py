"""Keeps what other libraries leave to the garbage collector from failing tests.

Warnings are errors here, and the collector raises those of a library in the midst of any other test. kafka-python, with
which tests look at clusters, loses sockets of clients that are closed while they connect or wait, and coroutines that
nobody awaits any more. What maxbrod and the tests leave open still warns.
"""

from __future__ import annotations

import _socket
import os
import socket
import ssl
import sys
import sysconfig
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

LIBRARIES: Final = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("purelib", "platlib")})
_STANDARD: Final = f"{sysconfig.get_path('stdlib')}{os.sep}"


class _ReleasedSocket(socket.socket):
    """A socket that nobody closed is closed without a warning when nobody refers to it any more."""

    def __del__(self) -> None:
        self.close()


class _ReleasedTlsSocket(ssl.SSLSocket):
    def __del__(self) -> None:
        self.close()


_RELEASED: Final[dict[type, type]] = {socket.socket: _ReleasedSocket, ssl.SSLSocket: _ReleasedTlsSocket}


def pytest_configure() -> None:
    """Every socket that a library makes is a released one, whichever way it makes it."""

    def make(cls: type, *_arguments: Any, **_options: Any) -> Any:
        chosen = _RELEASED.get(cls, cls) if _made_by_a_library() else cls
        return _socket.socket.__new__(chosen)

    socket.socket.__new__ = make  # type: ignore[method-assign]


def pytest_sessionstart() -> None:
    """When pytest has set its own hook, which makes a failure of what could not be raised."""
    sys.unraisablehook = unless_of_a_library(sys.unraisablehook)


def unless_of_a_library(tell: Callable[[sys.UnraisableHookArgs], Any]) -> Callable[[sys.UnraisableHookArgs], Any]:
    def hook(lost: sys.UnraisableHookArgs) -> None:
        code = _code_of(lost.object)
        if code is None or not code.co_filename.startswith(LIBRARIES):
            tell(lost)

    return hook


def _made_by_a_library() -> bool:
    """Of the callers, the nearest that is not of Python's own library decides."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(LIBRARIES):
            return True
        if not file.startswith((_STANDARD, "<frozen")):
            return False
        frame = frame.f_back
    return False


def _code_of(lost: Any) -> CodeType | None:
    """The code of a coroutine, a generator or a finalizer; None: of anything else."""
    for name in ("cr_code", "gi_code", "ag_code", "__code__"):
        code: CodeType | None = getattr(lost, name, None)
        if code is not None:
            return code
    return None
