"""The memory of a mount is bounded by its options, not by the number of its threads."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, threading
from maxbrod.mount.heap import share_one_heap
share_one_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
together = threading.Barrier(8)
def use():
    together.wait()
    libc.malloc(1000)
    together.wait()
threads = [threading.Thread(target=use) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library has no heap for each thread")
def test_threads_of_a_mount_share_one_heap() -> None:
    def heaps(environment: dict[str, str]) -> int:
        ran = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, env=environment)
        return ran.stdout.count(b"<heap nr=")

    given = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    assert heaps(given) == 1
    assert heaps({**given, "MALLOC_ARENA_MAX": "4"}) > 1  # what the environment says counts more
