"""Ctrl-C ends every long verb within seconds, also while a store does not answer. Real signals to real processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import yaml

from maxbrod.cli.main import run
from maxbrod.layouts.kafka.format import SegmentLimits
from maxbrod.sandbox.proxy.faults import HttpMatch, Stall
from support.native_logs import data_batch
from support.table_archives import write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.sandbox.proxy.server import FaultProxy
    from maxbrod.sandbox.s3 import S3Server

DATA = HttpMatch("GET", r"segments/.*\.log")
SMALL = ("--min-segment-age", "0s", "--min-segment-count", "2", "--min-segment-size", "1", "--max-segment-size", "4000")


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command, in a group of its own, as a shell starts it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "maxbrod", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        with process:
            yield process
    finally:
        if process.poll() is None:
            process.kill()


@pytest.fixture
def archive(s3: S3Server, tmp_path: Path) -> str:
    """An archive of ten segments in the store of `s3`."""
    batches = [data_batch(offset, 10, value=bytes(100)) for offset in range(0, 100, 10)]
    write(tmp_path / "archive", batches, limits=SegmentLimits(records_max=10))
    shutil.copytree(tmp_path / "archive", s3.object_path("kafka"))
    return f"{s3.url}/kafka"


def config_of(s3: S3Server, endpoint: str, file: Path) -> str:
    """A configuration whose requests are given up after ten minutes: nothing but a stop ends them in time."""
    options = s3.store_options(endpoint=endpoint)
    keys = {name: options[name] for name in ("endpoint", "region", "access_key_id", "secret_access_key")}
    storage = {"s3": {**keys, "path_style": True}, "request_timeout_s": 600, "deadline_s": 600}
    file.write_text(yaml.safe_dump({"storage": storage}))
    return str(file)


@pytest.mark.parametrize("verb", ["check", "compact", "convert", "repair"])
def test_ctrl_c_ends_a_verb_whose_store_does_not_answer_and_the_same_command_does_the_rest(
    s3: S3Server, s3_proxy: FaultProxy, archive: str, tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {
        "check": ("check", "--deep", "-a", archive),
        "compact": ("compact", "-a", archive, *SMALL),
        "convert": ("convert", archive, str(tmp_path / "converted"), "--to", "kafka"),
        "repair": ("repair", "--deep", "-a", archive),
    }[verb]
    # One object arrives; every further one never does.
    stall = s3_proxy.add(Stall(on=DATA, after=1))
    slow = config_of(s3, s3_proxy.endpoint, tmp_path / "slow.yaml")
    with started(*arguments, "-c", slow, "--engine", "local") as process:
        s3_proxy.wait_for(stall, timeout_s=120)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 3, err
    assert "stopping" in err
    assert "Traceback" not in err
    fast = config_of(s3, s3.endpoint, tmp_path / "fast.yaml")
    assert run([*arguments, "-c", fast, "--engine", "local"]) == 0, capsys.readouterr()


@pytest.mark.parametrize("verb", ["ls", "status", "check"])
def test_ctrl_c_ends_a_look_at_once_even_if_no_answer_ever_comes(
    s3: S3Server, s3_proxy: FaultProxy, archive: str, tmp_path: Path, verb: str
) -> None:
    stall = s3_proxy.add(Stall())
    slow = config_of(s3, s3_proxy.endpoint, tmp_path / "slow.yaml")
    with started(verb, "-a", archive, "-c", slow) as process:
        s3_proxy.wait_for(stall, timeout_s=120)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert "Traceback" not in err


def test_ctrl_c_ends_the_planning_of_a_verb_though_no_answer_ever_comes(
    s3: S3Server, s3_proxy: FaultProxy, archive: str, tmp_path: Path
) -> None:
    stall = s3_proxy.add(Stall())
    slow = config_of(s3, s3_proxy.endpoint, tmp_path / "slow.yaml")
    with started("prune", "-a", archive, "--older-than", "1d", "-c", slow) as process:
        s3_proxy.wait_for(stall, timeout_s=120)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert "stopped on request" in err


def test_a_second_signal_ends_a_verb_at_once_that_waits_for_its_store(
    s3: S3Server, s3_proxy: FaultProxy, archive: str, tmp_path: Path
) -> None:
    stall = s3_proxy.add(Stall(on=DATA, after=1))
    slow = config_of(s3, s3_proxy.endpoint, tmp_path / "slow.yaml")
    with started("compact", "-a", archive, *SMALL, "-c", slow, "--engine", "local") as process:
        s3_proxy.wait_for(stall, timeout_s=120)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert any("stopping" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == -signal.SIGINT
