"""The process of a command ends with the command's exit code, whatever the interpreter's end would do."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ABORTS_AT_THE_END = """
import atexit, os, sys
from maxbrod.cli import main

class Late:
    def __del__(self, abort=os.abort):
        abort()  # as Arrow's threads do when the interpreter is taken apart

late = Late()
run = main.run

def registering(arguments):
    atexit.register(print, "tidied")
    return run(arguments)

main.run = registering
sys.argv[1:] = {arguments}
main.main()
"""


def ended(*arguments: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    program = ABORTS_AT_THE_END.format(arguments=list(arguments))
    return subprocess.run(
        [sys.executable, "-c", program], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize(("arguments", "code"), [(("--version",), 0), (("nonsense",), 2)])
def test_the_exit_code_is_the_commands_although_taking_the_interpreter_apart_would_abort(
    arguments: tuple[str, ...], code: int
) -> None:
    ran = ended(*arguments)
    assert ran.returncode == code, ran.stderr


def test_output_and_what_was_to_be_done_at_the_end_are_not_lost() -> None:
    ran = ended("--version")
    assert ran.stdout.startswith("maxbrod ")
    assert ran.stdout.endswith("tidied\n")


def test_output_that_cannot_be_written_is_not_a_success() -> None:
    with Path("/dev/full").open("w") as full:
        ran = ended("--version", stdout=full.fileno())
    assert ran.returncode != 0
    assert "No space left" in ran.stderr


LOADING = """
import os, signal, sys, types
loaded = types.ModuleType("maxbrod.cli.main")
sys.modules["maxbrod.cli.main"] = loaded
from maxbrod.cli.process import raising_interrupt

def interrupt():
    try:
        with {within}:
            os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        sys.exit(7)

loaded.main = interrupt
from maxbrod.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("within", "code"), [("open(os.devnull)", -signal.SIGINT), ("raising_interrupt()", 7)], ids=["loads", "asks"]
)
def test_an_interrupt_ends_a_command_that_still_loads_without_a_traceback_and_a_question_hears_it(
    within: str, code: int
) -> None:
    program = LOADING.format(within=within)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (code, "")
