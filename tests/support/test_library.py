"""Libraries lose sockets and coroutines: that fails no test. Those of maxbrod and of the tests do."""

from __future__ import annotations

import gc
import socket
import ssl
import sys
import warnings
from typing import Any

import pytest

from support.library import LIBRARIES, unless_of_a_library

LIBRARY = f"{LIBRARIES[0]}library.py"
"""A file that a library could have."""


def made(source: str, file: str, **names: Any) -> Any:
    """The value of `found`, made by code of that file."""
    exec(compile(source, file, "exec"), names)
    return names["found"]


def test_a_socket_that_the_library_loses_is_closed_without_a_warning() -> None:
    import kafka.net.inet as plain  # noqa: PLC0415 - as tests use it

    lost = plain.KafkaNetSocket().socket(socket.AF_INET)
    number = lost.fileno()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del lost
        gc.collect()
    assert not caught
    with pytest.raises(OSError, match="Bad file descriptor"):
        socket.socket(fileno=number)


def test_tls_sockets_that_the_library_loses_are_closed_without_a_warning() -> None:
    context = ssl.create_default_context()
    ours, theirs = socket.socketpair()
    source = "found = context.wrap_socket(ours, server_hostname='broker', do_handshake_on_connect=False)"
    with theirs, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lost = made(source, LIBRARY, context=context, ours=ours)
        assert isinstance(lost, ssl.SSLSocket)
        del lost, ours
        gc.collect()
        assert theirs.recv(1) == b""
    assert not caught


def test_a_socket_that_a_test_loses_is_told() -> None:
    for file, count in ((LIBRARY, 0), (__file__, 1)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            lost = made("import socket; found = socket.socket()", file)
            assert type(lost) is socket.socket or count == 0
            del lost
            gc.collect()
        assert len(caught) == count, file


@pytest.mark.parametrize("ours", [True, False])
def test_a_coroutine_that_nobody_awaits_is_told_if_it_is_ours(monkeypatch: pytest.MonkeyPatch, *, ours: bool) -> None:
    told: list[type] = []
    monkeypatch.setattr(sys, "unraisablehook", unless_of_a_library(lambda lost: told.append(lost.exc_type)))
    lost = made("async def work(): pass\nfound = work()", __file__ if ours else LIBRARY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del lost
        gc.collect()
    assert told == [RuntimeWarning] * ours
