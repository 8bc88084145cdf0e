from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry

from maxbrod.cli import health as module
from maxbrod.cli.health import Health, serving, watched_by_systemd
from maxbrod.sandbox.process import wait_for
from support.clocks import set_time

if TYPE_CHECKING:
    from pathlib import Path


def ask(port: int, path: str, host: str | None = None) -> tuple[int, str]:
    headers = {} if host is None else {"Host": host}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
        ) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    set_time(monkeypatch, "maxbrod.cli.health", monotonic=lambda: now[0])
    return now


def test_only_three_paths_answer() -> None:
    with serving(CollectorRegistry(), Health(), 0, "127.0.0.1") as port:
        assert {path: ask(port, path)[0] for path in ("/metrics", "/healthz", "/metrics?x=1")} == {
            "/metrics": 200,
            "/healthz": 200,
            "/metrics?x=1": 200,
        }
        assert {ask(port, path)[0] for path in ("/", "/metric", "/healthz/", "/favicon.ico")} == {404}


@pytest.mark.parametrize(
    ("bound", "names", "answered", "refused"),
    [
        ("127.0.0.1", (), ["localhost", "LOCALHOST:1", "localhost.", "127.0.0.1:9464", "[::1]:9464"], ["10.0.0.7"]),
        ("127.0.0.1", ("Metrics.example.com",), ["metrics.example.com:443"], ["example.com"]),
        # Kubernetes probes name the address of the pod.
        ("0.0.0.0", (), ["10.0.0.7:9464", "[fd00::7]", socket.gethostname()], ["localhost.evil.example"]),
        ("0", (), ["10.0.0.7:9464"], []),
        ("localhost", (), ["10.0.0.7:9464"], []),
    ],
)
def test_only_who_names_this_server_is_answered(
    bound: str, names: tuple[str, ...], answered: list[str], refused: list[str]
) -> None:
    """A page whose name was pointed to this machine meanwhile still sends its own name."""
    with serving(CollectorRegistry(), Health(), 0, bound, names) as port:
        for path in ("/metrics", "/healthz"):
            assert {host: ask(port, path, host)[0] for host in answered} == dict.fromkeys(answered, 200)
            for host in (*refused, "evil.example", "evil.example:9464", "127.0.0.1.evil.example", "a:b:c", "[", ""):
                status, said = ask(port, path, host)
                assert (status, "--metrics-name" in said) == (421, True), host
        with socket.create_connection(("127.0.0.1", port)) as browserless:
            browserless.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert browserless.recv(12) == b"HTTP/1.0 200", "no browser leaves the name out"


def test_metrics_without_health_have_the_same_guard() -> None:
    with serving(CollectorRegistry(), None, 0, "127.0.0.1") as port:
        assert (ask(port, "/metrics")[0], ask(port, "/healthz")[0]) == (200, 404)
        assert ask(port, "/metrics", "evil.example")[0] == 421


def test_a_command_is_ready_only_after_a_complete_run_and_while_the_last_one_was() -> None:
    health = Health()
    with serving(CollectorRegistry(), health, 0, "127.0.0.1") as port:

        def ready() -> tuple[int, Any]:
            status, body = ask(port, "/readyz")
            return status, json.loads(body).get("reason")

        assert ready() == (503, "no run has ended yet")
        health.ended(None)
        assert ready() == (200, None)
        health.ended("the broker is away")
        assert ready() == (503, "the broker is away")
        # The command works and will try again: a restart would not help.
        assert ask(port, "/healthz")[0] == 200
        health.ended(None)
        assert ready() == (200, None)


def test_a_command_in_which_nothing_moves_is_neither_alive_nor_ready(clock: list[float]) -> None:
    health = Health(stall_s=60)
    health.ended(None)
    clock[0] += 59
    assert (health.live()[0], health.ready()[0]) == (True, True)
    clock[0] += 2
    assert health.live() == (False, {"alive": False, "idle_seconds": 61.0, "reason": "nothing has moved for 61 s"})
    assert health.ready()[0] is False
    health.beat()
    assert (health.live()[0], health.ready()[0]) == (True, True)


def test_systemd_hears_of_the_start_of_life_and_of_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "30000")
        with watched_by_systemd(Health()):
            assert systemd.recv(100) == b"READY=1"
            assert systemd.recv(100) == b"WATCHDOG=1"
        heard = b""
        while heard != b"STOPPING=1":
            heard = systemd.recv(100)


def test_a_stalled_command_leaves_the_watchdog_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    health = Health(stall_s=60)
    clock[0] += 61
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "3000")
        asked = 0
        live = health.live

        def counted() -> Any:
            nonlocal asked
            asked += 1
            return live()

        monkeypatch.setattr(health, "live", counted)
        with watched_by_systemd(health):
            assert systemd.recv(100) == b"READY=1"
            wait_for("the watcher", lambda: asked >= 3, timeout_s=60)
        assert systemd.recv(100) == b"STOPPING=1"


def test_without_systemd_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    with watched_by_systemd(Health()):
        module.notify("READY=1")
