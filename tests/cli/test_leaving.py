"""The process of a command ends with the command's exit code, whatever the interpreter's end would do."""

from __future__ import annotations

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
