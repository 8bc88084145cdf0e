"""Servers on loopback that receive messages: a web server whose answers can be chosen, and a mail server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


@dataclass
class WebServer:
    url: str
    requests: list[Request] = field(default_factory=list)
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """Statuses and headers of the next answers; 200 when there are none left."""

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.requests]


@contextmanager
def web_server() -> Iterator[WebServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            kept.requests.append(Request(self.command, self.path, dict(self.headers), body))
            status, headers = kept.answers.pop(0) if kept.answers else (200, {})
            self.send_response(status)
            for name, value in {"Content-Length": "0", **headers}.items():
                self.send_header(name, value)
            self.end_headers()

        do_GET = do_POST  # noqa: N815 - the library's name

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    kept = WebServer(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield kept
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class MailServer:
    port: int = 0
    mails: list[Message] = field(default_factory=list)
    recipients: list[list[str]] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    """Answers instead of acceptance, one for each of the next mails."""


@contextmanager
def mail_server(**options: Any) -> Iterator[MailServer]:
    """`options` are those of aiosmtpd's controller."""
    kept = MailServer()

    class Handler:
        async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802 - the library's
            if kept.refusals:
                return kept.refusals.pop(0)
            kept.mails.append(message_from_bytes(envelope.content))
            kept.recipients.append(list(envelope.rcpt_tos))
            return "250 accepted"

    class AnyPort(Controller):
        def _trigger_server(self) -> None:
            # It connects to see whether the server answers: to the port that the system has chosen.
            server: Any = self.server
            self.port = kept.port = server.sockets[0].getsockname()[1]
            super()._trigger_server()  # type: ignore[no-untyped-call] # the library's own

    controller = AnyPort(Handler(), hostname="127.0.0.1", port=0, **options)
    controller.start()
    try:
        yield kept
    finally:
        controller.stop()


def eventually(true: Callable[[], bool]) -> None:
    """Wait until it is true; the test's own timeout ends a wait that is in vain."""
    while not true():
        threading.Event().wait(0.02)
