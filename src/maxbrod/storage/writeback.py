"""Starts to write a growing file to its disk early, so that the sync at its end has little left to do.

`sync_file_range` only starts the writing and makes nothing durable: the sync at the end does that. Measured with
512 MiB on a busy machine, it took 0.12 to 0.16 s of processor time; syncs in a second thread took 0.15 to 0.26 s.
"""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

WRITEBACK_BYTES: Final = 8 << 20
"""Dirty bytes that are worth a system call; fewer are synced quickly at the end."""
_WRITE: Final = 2  # SYNC_FILE_RANGE_WRITE
_UNABLE: Final = frozenset({errno.ENOSYS, errno.EINVAL, errno.ESPIPE, errno.EOPNOTSUPP, errno.EPERM})
"""The kernel, the file system or a sandbox does not offer it."""


class Writeback:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._started = self._written = 0
        self._able = True

    def wrote(self, size: int) -> None:
        """Count bytes that were written to the end of the file, and start to write them to the disk if it is time.

        OSError: the disk has failed, or is full. The sync at the end would say so too, after more was written.
        """
        self._written += size
        if self._able and self._written - self._started >= WRITEBACK_BYTES:
            self._able = start_writing(self._descriptor, self._started, self._written - self._started)
            self._started = self._written


def start_writing(descriptor: int, start: int, size: int) -> bool:
    """Whether the file system can do so."""
    function = _sync_file_range()
    if function is None:
        return False
    if function(descriptor, start, size, _WRITE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNABLE:
        return False
    raise OSError(code, os.strerror(code))


@cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Python has no name for this call, and only Linux has it."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
        function.restype = ctypes.c_int
    return function
