"""`maxbrod sandbox`, by its command line: what it prints, what it refuses, what it leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
import psutil
import pytest
from obstore.store import S3Store

from maxbrod.cli.main import run
from maxbrod.errors import EXIT_DONE, EXIT_REFUSED, EXIT_USAGE
from maxbrod.sandbox.cluster import Cluster
from maxbrod.sandbox.jars import run_tool
from maxbrod.sandbox.process import Process, wait_for
from maxbrod.sandbox.spec import STATE_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A sandbox whose starter has long ended."""
    folder = tmp_path_factory.mktemp("cli") / "box"
    command = [sys.executable, "-m", "maxbrod", "sandbox", "up", "--dir", str(folder), "--json"]
    options = ["--brokers", "2", "--listener", "sasl_ssl", "--config", "num.io.threads=5", "--store", "s3"]
    started = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    document = json.loads(started.stdout)
    assert document["state"] == "running"
    assert document["bootstrap"] == document["listeners"]["PLAINTEXT"]
    assert [node["name"] for node in document["nodes"]] == ["controller-1000", "broker-1", "broker-2"]
    yield folder
    if (folder / STATE_FILE).exists():
        Cluster.attach(folder).dismantle()


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    """The exit code, and the one document on standard output."""
    code = run(["sandbox", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def states(document: dict[str, Any]) -> dict[str, str]:
    return {node["name"]: node["state"] for node in document["nodes"]}


def test_a_sandbox_outlives_its_shell(capsys: pytest.CaptureFixture[str], box: Path) -> None:
    code, document = call(capsys, "status", "--dir", str(box))
    assert code == EXIT_DONE
    assert set(states(document).values()) == {"running"}
    assert "num.io.threads=5" in (box / "broker-1" / "server.properties").read_text()


def test_the_client_files_let_kafkas_own_tools_in(capsys: pytest.CaptureFixture[str], box: Path) -> None:
    _, document = call(capsys, "status", "--dir", str(box))
    (config,) = [path for path in document["client_files"] if path.endswith("sasl_ssl-alice.properties")]
    address = document["listeners"]["SASL_SSL"]
    tool = "org.apache.kafka.tools.TopicCommand"
    assert run_tool(tool, "--bootstrap-server", address, "--command-config", config, "--list").strip() == ""


def test_the_s3_server_takes_the_keys_of_its_file(capsys: pytest.CaptureFixture[str], box: Path) -> None:
    _, document = call(capsys, "status", "--dir", str(box))
    (variables,) = [path for path in document["client_files"] if path.endswith("s3.env")]
    assert Path(variables).stat().st_mode & 0o077 == 0
    lines = Path(variables).read_text().splitlines()
    given = dict(line.removeprefix("export ").split("=", 1) for line in lines)
    assert given["AWS_ENDPOINT_URL"] == document["store"]["endpoint"]
    store = S3Store(
        document["store"]["url"].removeprefix("s3://"),
        endpoint=given["AWS_ENDPOINT_URL"],
        region=given["AWS_REGION"],
        access_key_id=given["AWS_ACCESS_KEY_ID"],
        secret_access_key=given["AWS_SECRET_ACCESS_KEY"],
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    obstore.put(store, "a/b", b"c")
    assert bytes(obstore.get(store, "a/b").bytes()) == b"c"
    assert given["AWS_SECRET_ACCESS_KEY"] not in str(document)


def test_no_password_is_printed(capsys: pytest.CaptureFixture[str], box: Path) -> None:
    run(["sandbox", "status", "--dir", str(box)])
    run(["sandbox", "status", "--dir", str(box), "--json"])
    printed = capsys.readouterr()
    for password in Cluster.attach(box).spec.users.values():
        assert password not in printed.out + printed.err


def test_a_second_sandbox_in_the_same_folder_is_refused(capsys: pytest.CaptureFixture[str], box: Path) -> None:
    code, document = call(capsys, "up", "--dir", str(box))
    assert code == EXIT_REFUSED
    assert document["error"] == "RefusedError"
    assert "sandbox down" in document["hint"]
    assert set(states(call(capsys, "status", "--dir", str(box))[1]).values()) == {"running"}


def test_a_folder_with_foreign_files_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    code, document = call(capsys, "up", "--dir", str(tmp_path))
    assert (code, document["error"]) == (EXIT_REFUSED, "RefusedError")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_topic_can_be_filled_read_and_lost_from_a_shell(capsys: pytest.CaptureFixture[str], box: Path) -> None:
    where = ["--dir", str(box), "--topic", "orders"]
    assert call(capsys, "fill", *where, "--records", "10")[1]["end_offset"] == 10
    assert call(capsys, "fill", *where, "--records", "5")[1]["end_offset"] == 15, "it goes on where it ended"
    assert call(capsys, "read", *where, "--group", "billing", "--records", "4")[1]["offsets"] == [0, 1, 2, 3]
    assert call(capsys, "read", *where, "--group", "billing")[1]["offsets"] == list(range(4, 15))
    code, document = call(capsys, "delete", "--dir", str(box), "--topic", "ordres")
    assert (code, document["hint"]) == (EXIT_USAGE, "did you mean orders?")
    assert call(capsys, "delete", *where) == (EXIT_DONE, {"topic": "orders", "deleted": True})
    assert call(capsys, "read", *where, "--group", "billing")[0] == EXIT_USAGE, "it is gone"


def test_a_broker_is_killed_paused_continued_stopped_and_restarted(
    capsys: pytest.CaptureFixture[str], box: Path
) -> None:
    broker = ("--dir", str(box), "--broker", "2")
    for verb, expected in (
        ("kill", "stopped"),
        ("restart", "running"),
        ("pause", "paused"),
        ("continue", "running"),
        ("stop", "stopped"),
        ("restart", "running"),
    ):
        code, document = call(capsys, verb, *broker)
        assert (verb, code, states(document)["broker-2"]) == (verb, EXIT_DONE, expected)
        assert states(document)["broker-1"] == "running"


@pytest.mark.parametrize("arguments", [("kill", "--broker", "7"), ("restart", "--broker", "1", "--config", "nonsense")])
def test_wrong_arguments_change_nothing(
    capsys: pytest.CaptureFixture[str], box: Path, arguments: tuple[str, ...]
) -> None:
    code, document = call(capsys, *arguments, "--dir", str(box))
    assert (code, document["error"]) == (EXIT_USAGE, "UsageError")
    assert set(states(call(capsys, "status", "--dir", str(box))[1]).values()) == {"running"}


@pytest.mark.parametrize("verb", ["status", "down"])
def test_a_folder_without_a_sandbox_is_no_sandbox(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, verb: str
) -> None:
    assert call(capsys, verb, "--dir", str(tmp_path / "nowhere"))[0] == EXIT_USAGE


def test_down_removes_what_the_sandbox_made_and_nothing_else(capsys: pytest.CaptureFixture[str], box: Path) -> None:
    (box / "mine").touch()
    pids = [node["pid"] for node in call(capsys, "status", "--dir", str(box))[1]["nodes"]]
    pids.append(Process(box / "s3" / "server" / "pid").pid)
    assert all(psutil.pid_exists(pid) for pid in pids)
    code, document = call(capsys, "down", "--dir", str(box))
    assert (code, document["left"]) == (EXIT_DONE, ["mine"])
    assert [path.name for path in box.iterdir()] == ["mine"]
    # Whoever inherited the brokers has to bury them, in its own time.
    wait_for("no pid to be left", lambda: not any(psutil.pid_exists(pid) for pid in pids), timeout_s=60)
