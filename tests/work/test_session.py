from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from maxbrod.errors import UsageError
from maxbrod.java import find_java
from maxbrod.sandbox.process import wait_for
from maxbrod.work.gateway import find_archive
from maxbrod.work.session import _CLASSIC_CONF, _EVERY_CONF, _collector, _local_master, _sockets_in, open_session
from support.processes import TESTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

pytestmark = pytest.mark.full

DRIVERS = TESTS / "support/programs/sessions.py"

# All that an unlucky shell can hold: another Spark, another Python, a cache that cannot be written, a chatty Java.
HOSTILE = {
    "PYSPARK_PYTHON": "/bin/false",
    "PYSPARK_DRIVER_PYTHON": "/bin/false",
    "PYSPARK_SUBMIT_ARGS": "--master spark://nowhere:7077 pyspark-shell",
    "SPARK_HOME": "/nonexistent",
    "SPARK_CONF_DIR": "/nonexistent",
    "SPARK_REMOTE": "sc://nowhere",
    "SPARK_LOCAL_IP": "192.0.2.1",
    "JAVA_TOOL_OPTIONS": "-Dmaxbrod.test=1",
    "MAXBROD_CACHE": "/proc/maxbrod",
}

# Modules that workers import, from Spark, from Python and from us.
PLANTED = {"pyspark.py", "grp.py", "maxbrod.py"}


def drive(name: str, *, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, DRIVERS, name],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    cwd = tmp_path_factory.mktemp("cwd")
    for module in PLANTED:
        (cwd / module).write_text("raise SystemExit('a file of the current folder was imported')\n")
    # Not below pytest's own folder, whose name may be too long for a socket in it.
    with tempfile.TemporaryDirectory() as temporary:
        ran = drive("describe", cwd=cwd, env={**HOSTILE, "TMPDIR": temporary})
        left = {path.name for folder in (cwd, Path(temporary)) for path in folder.iterdir()}
        return ran, sorted(left - PLANTED)


@pytest.fixture(scope="module")
def facts(hostile_run: tuple[subprocess.CompletedProcess[str], list[str]]) -> dict[str, Any]:
    ran, _ = hostile_run
    assert ran.returncode == 0, ran.stderr
    described: dict[str, Any] = json.loads(ran.stdout)
    return described


def test_spark_writes_nothing_on_the_screen(hostile_run: tuple[subprocess.CompletedProcess[str], list[str]]) -> None:
    ran, _ = hostile_run
    assert ran.stderr == ""
    assert ran.stdout.startswith("{")
    json.loads(ran.stdout)


def test_spark_leaves_no_file_behind(hostile_run: tuple[subprocess.CompletedProcess[str], list[str]]) -> None:
    _, left = hostile_run
    assert left == []


def test_workers_run_the_drivers_interpreter(facts: dict[str, Any]) -> None:
    assert {worker["python"] for worker in facts["workers"]} == {sys.executable}


def test_no_worker_imports_from_the_current_folder(facts: dict[str, Any]) -> None:
    """Who stands in a folder of somebody else runs none of its files."""
    assert facts["workers"]
    for worker in facts["workers"]:
        assert not {"", worker["folder"]} & set(worker["path"])


def test_workers_import_pyspark_as_it_is_installed(facts: dict[str, Any]) -> None:
    # Out of Spark's zip file it would be compiled again for every daemon: half a second.
    assert not any(".zip" in worker["pyspark"] for worker in facts["workers"])


def test_only_loopback_is_listened_on(facts: dict[str, Any]) -> None:
    assert facts["listening"]
    assert all(address in {"127.0.0.1", "::1", "::ffff:127.0.0.1"} for address in facts["listening"])


def test_a_stranger_on_this_machine_is_refused_before_java_deserialises_anything(facts: dict[str, Any]) -> None:
    """The driver's RPC and its block manager are all that have ports, besides the gateway, which wants its token."""
    assert [name for name, _ in facts["ports"]] == ["gateway", "java", "java"]
    assert facts["ports"][0][1] == "token"
    for _, answer in facts["ports"][1:]:
        assert "Unknown challenge message" in answer
        assert "ObjectInputStream" not in answer


def test_python_and_the_jvm_meet_in_a_folder_that_nobody_else_can_enter(facts: dict[str, Any]) -> None:
    """The server of accumulators and that of the workers."""
    assert len(facts["sockets"]) >= 2
    assert {mode for _, mode in facts["sockets"]} == {0o700}


def test_a_folder_whose_name_is_too_long_for_a_socket_has_none(tmp_path: Path) -> None:
    assert _sockets_in(Path("/tmp/maxbrod-spark-abcdefgh"))
    assert _sockets_in(tmp_path / ("x" * 100)) == {}


def test_sessions_of_a_cluster_keep_its_settings() -> None:
    """Whoever runs it has decided on secrets, and a driver with others would be refused."""
    assert not any(
        key.startswith(("spark.authenticate", "spark.network.crypto")) for key in {**_EVERY_CONF, **_CLASSIC_CONF}
    )


def test_every_setting_arrives_and_none_by_a_command_line(facts: dict[str, Any]) -> None:
    """Whatever its name is: those of account keys and private keys have no word that gives them away."""
    # Spark puts options of its own before those of the JVM.
    assert all(facts["settings"].get(name, "").endswith(value) for name, value in facts["given"].items())
    assert facts["java"] == 'hunter2 "its"'
    assert "-Xmx700m" in facts["commands"][0]
    assert len(facts["commands"]) > 1, "the workers are looked at, too"
    words = [argument for command in facts["commands"] for argument in command]
    assert not any("hunter2" in word or "spark.maxbrod" in word or word == "--conf" for word in words)


def test_spark_shows_no_value_of_a_users_setting(facts: dict[str, Any]) -> None:
    """On its pages, in event logs, and in answer to SET, which takes the same way."""
    shown = [row for row in facts["shown"] if any(name in row for name in facts["given"])]
    assert shown
    assert not any("hunter2" in row or "700m" in row for row in facts["shown"])
    assert any("spark.sql.shuffle.partitions" in row and "'2'" in row for row in facts["shown"]), "others are shown"


def test_the_jvm_is_gone_when_the_session_is_closed(facts: dict[str, Any]) -> None:
    assert facts["jvm_gone"]


def test_the_callers_environment_is_left_as_it_was(facts: dict[str, Any]) -> None:
    assert {name: facts["environment"].get(name) for name in HOSTILE} == HOSTILE
    assert "PYSPARK_GATEWAY_SECRET" not in facts["environment"]


def test_a_collector_of_the_users_own_choice_stays_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    assert _collector(own_command=False) == ["-XX:+UseSerialGC"]
    assert _collector(own_command=True) == []
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Xmx2g -XX:+UseParallelGC")
    assert _collector(own_command=False) == []


def test_a_local_master_gets_retries_for_its_tasks() -> None:
    assert _local_master("local", 4) == "local[1,4]"
    assert _local_master("local[*]", 3) == "local[*,3]"
    assert _local_master("local[2, 7]", 4) == "local[2,7]"
    assert _local_master("spark://host:7077", 4) is None
    assert _local_master("local-cluster[2,1,1024]", 4) is None


def test_a_task_whose_worker_dies_runs_again(spark: Any) -> None:
    def die_once(batches: Iterable[Any]) -> Iterator[Any]:
        from pyspark import TaskContext  # noqa: PLC0415

        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            os._exit(1)
        yield from batches

    assert spark.range(0, 10, 1, 2).mapInArrow(die_once, "id long").count() == 10


def test_a_session_that_is_handed_in_stays_open(spark: Any) -> None:
    with open_session(session=spark, master="local[1]") as session:
        assert session is spark
    assert spark.range(3).count() == 3


def test_an_open_session_is_shared_and_not_stopped(spark: Any) -> None:
    with open_session() as session:
        assert session.sparkContext is spark.sparkContext
    assert spark.range(3).count() == 3


def test_a_second_session_with_other_settings_is_refused(spark: Any) -> None:
    with pytest.raises(UsageError, match="only one"), open_session(master="local[1]"):
        pass


@pytest.fixture(scope="module")
def archive() -> Path:
    # In a process of its own, as it starts a Spark of its own.
    subprocess.run([sys.executable, "-m", "maxbrod.work.prepare"], check=True, capture_output=True)
    made = find_archive(find_java())
    if made is None:
        pytest.skip("this Java cannot share classes")
    return made.folder


@pytest.mark.parametrize("damage", ["truncated", "garbled"])
def test_spark_starts_with_a_damaged_archive(damage: str, archive: Path, tmp_path: Path) -> None:
    classes = shutil.copytree(archive, tmp_path / archive.name) / "classes.jsa"
    classes.chmod(0o644)
    with classes.open("r+b") as file:
        middle = classes.stat().st_size // 2
        if damage == "truncated":
            file.truncate(middle)
        else:
            file.seek(middle)
            file.write(random.Random(1).randbytes(1_000_000))
    ran = drive("count", cwd=tmp_path, env={"MAXBROD_CACHE": str(tmp_path)})
    assert (ran.stdout, ran.stderr, ran.returncode) == ("10", "", 0)


def test_no_process_outlives_a_driver_that_is_killed(tmp_path: Path) -> None:
    driver = subprocess.Popen(
        [sys.executable, DRIVERS, "hang"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with driver:
        try:
            assert driver.stdout is not None
            jvm = psutil.Process(int(driver.stdout.readline()))
            # The daemon and the worker that it forked.
            wait_for("the workers", lambda: len(jvm.children(recursive=True)) > 1 or None, timeout_s=300)
            family = [jvm, *jvm.children(recursive=True)]
        finally:
            driver.kill()
    _, alive = psutil.wait_procs(family, timeout=120)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def run_alone(program: str) -> str:
    """What a program prints that must not find the session of the other tests."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_a_jvm_that_cannot_start_is_an_error_with_its_reason() -> None:
    program = """
from maxbrod.errors import UnavailableError
from maxbrod.work.session import open_session
try:
    with open_session(conf={"spark.driver.memory": "1k"}): pass
except UnavailableError as error: print(error.hint)
"""
    assert "Too small maximum heap" in run_alone(program)


def test_spark_connect_without_its_client_says_what_to_install() -> None:
    """Whichever of its packages is missing. One process for all of them: it imports the others only once."""
    program = """
import sys
from maxbrod.errors import EnvironmentMissingError
from maxbrod.work.session import open_session
for missing in ("grpc", "grpc_status", "zstandard"):
    sys.modules[missing] = None  # as if it were not installed
    try:
        with open_session(master="sc://localhost"): pass
    except EnvironmentMissingError as error: print(missing, error.hint)
    del sys.modules[missing]
"""
    said = run_alone(program).splitlines()
    assert [line.split()[0] for line in said] == ["grpc", "grpc_status", "zstandard"]
    assert all("pyspark[connect]" in line for line in said)
