"""An OAuth 2 token endpoint of a few lines, on loopback."""

from __future__ import annotations

import base64
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Endpoint:
    """Answers with what `answer` returns: a status and a document. `asked` has the form and the client of each."""

    def __init__(self, answer: Callable[[], tuple[int, Any]]) -> None:
        self.answer = answer
        self.asked: list[tuple[dict[str, list[str]], str]] = []
        self.url = ""


@contextmanager
def serving_tokens(answer: Callable[[], tuple[int, Any]]) -> Iterator[Endpoint]:
    endpoint = Endpoint(answer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            client = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
            endpoint.asked.append((form, client))
            status, document = endpoint.answer()
            body = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint.url = f"http://127.0.0.1:{server.server_port}/token"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
