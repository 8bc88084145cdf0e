"""The health of a command, that it is alive and its last run was good: HTTP endpoints, and systemd's watchdog.

`/healthz` fails if nothing has moved for a while: a supervisor should then restart the command. `/readyz` fails until
a run has ended complete, and whenever the last one did not: a restart would not help. Both say why.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

from maxbrod.cli.supervised import supervisor
from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

STALL_S: Final = 900.0
"""Longer than any single wait of ours: each has a deadline, and deadlines are minutes."""
_NEVER: Final = "no run has ended yet"


class Health:
    """Thread-safe. `beat` when something moves, `ended` when a run ends."""

    def __init__(self, *, stall_s: float = STALL_S) -> None:
        self._stall_s = stall_s
        self._moved_at = time.monotonic()
        self._problem: str | None = _NEVER
        self._ended_at: float | None = None

    def beat(self) -> None:
        self._moved_at = time.monotonic()

    def ended(self, problem: str | None) -> None:
        """A run has ended: complete, or with a problem."""
        self.beat()
        self._problem, self._ended_at = problem, time.time()

    def live(self) -> tuple[bool, dict[str, Any]]:
        idle = time.monotonic() - self._moved_at
        alive = idle < self._stall_s
        said = {} if alive else {"reason": f"nothing has moved for {idle:.0f} s"}
        return alive, {"alive": alive, "idle_seconds": round(idle, 1), **said}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        alive, said = self.live()
        problem = said.get("reason") if not alive else self._problem
        ready = problem is None
        return ready, {
            "ready": ready,
            "last_run_ended_at": self._ended_at,
            **({} if ready else {"reason": problem}),
        }


@contextmanager
def serving(
    registry: CollectorRegistry, health: Health | None, port: int, host: str, names: Collection[str] = ()
) -> Iterator[int]:
    """Serve `/metrics`, and `/healthz` and `/readyz` if there is a health; yields the port, which differs from 0.

    A request must name this server as it is named here. So no page of another site can read from a browser what only
    this machine may, by letting its own name point to this one.
    """
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest  # noqa: PLC0415 - not for `--help`

    def answer(path: str, asked: str | None) -> tuple[int, str, bytes]:
        if asked is not None and not is_named(host_name(asked), host, names):
            return 421, "text/plain", b"this is not the server of that name; see --metrics-name\n"
        if path == "/metrics":
            return 200, CONTENT_TYPE_LATEST, generate_latest(registry)
        if health is not None and path in {"/healthz", "/readyz"}:
            good, said = health.live() if path == "/healthz" else health.ready()
            return 200 if good else 503, "application/json", f"{json.dumps(said)}\n".encode()
        others = b"" if health is None else b", /healthz and /readyz"
        return 404, "text/plain", b"not found; there are /metrics%b\n" % others

    class Handler(BaseHTTPRequestHandler):
        timeout = 30
        server_version, sys_version = "maxbrod", ""

        def do_GET(self) -> None:
            status, kind, body = answer(self.path.partition("?")[0], self.headers.get("Host"))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 - the library's name

        def log_message(self, *_: Any) -> None:  # noqa: ANN401 - as the library's
            """Write nothing: probes come every few seconds."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    try:
        server = Server((host, port), Handler)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"metrics cannot be served: {error}", object_name=f"{host}:{port}", hint="choose another --metrics-port"
        ) from error
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def host_name(host: str) -> str:
    """The name or address in a Host header, without its port."""
    found = re.fullmatch(r"\[(?P<address>[^\]]*)\](:\d*)?|(?P<name>[^:]*)(:\d*)?", host.strip())
    return "" if found is None else (found["address"] or found["name"] or "").rstrip(".").lower()


def is_named(name: str, bound: str, names: Collection[str]) -> bool:
    """True if a server that is bound to an address, and has these names, may answer to this one."""
    if name in {"localhost", socket.gethostname().lower(), bound.lower(), *(known.lower() for known in names)}:
        return True
    # Only names can be pointed elsewhere. Elsewhere than on loopback, an address may be one of many, or of a gateway.
    return is_loopback(name) is True or (is_loopback(name) is False and is_loopback(bound) is not True)


def is_loopback(name: str) -> bool | None:
    """True if an address is of this machine alone; None: it is no address."""
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return None


@contextmanager
def watched_by_systemd(health: Health) -> Iterator[None]:
    """Tell systemd that the service has started, and reset its watchdog while the command is alive."""
    # Of several verbs in one process, none is the service: their supervisor is.
    if not os.environ.get("NOTIFY_SOCKET") or supervisor() is not None:
        yield
        return
    over = threading.Event()
    period_s = int(os.environ.get("WATCHDOG_USEC") or 0) / 1e6 / 3

    def watch() -> None:
        while not over.wait(period_s):
            if health.live()[0]:
                notify("WATCHDOG=1")

    notify("READY=1")
    watcher = threading.Thread(target=watch, daemon=True)
    if period_s:
        watcher.start()
    try:
        yield
    finally:
        over.set()
        notify("STOPPING=1")
        if period_s:
            watcher.join()


def notify(state: str) -> None:
    """Send one state to systemd, as sd_notify(3) does. Without systemd nothing happens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    name = f"\0{address[1:]}" if address.startswith("@") else address
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), name)
