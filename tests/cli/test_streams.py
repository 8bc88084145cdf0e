"""Standard output and standard error may be full, closed or unread: no traceback, and no exit code that lies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.cli.process import _Messages, _Output, refuse_lost_output
from maxbrod.errors import OutputError
from support.full_archive import fill

if TYPE_CHECKING:
    from support.archives import Place

PROGRAM = "import sys; from maxbrod.cli.main import main; sys.argv[1:] = {arguments}; main()"


def ran(*arguments: str, **streams: Any) -> subprocess.CompletedProcess[str]:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **streams}
    program = [sys.executable, "-c", PROGRAM.format(arguments=list(arguments))]
    return subprocess.run(program, check=False, timeout=120, **options)


@pytest.mark.parametrize("form", [[], ["--json"]], ids=str)
def test_a_full_standard_output_is_an_error_and_no_traceback(local_place: Place, form: list[str]) -> None:
    fill(local_place)
    with Path("/dev/full").open("w") as full:
        ended = ran("ls", *form, *local_place.arguments, stdout=full)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: the output cannot be written: No space left on device\nhint:  ")
    assert "Traceback" not in ended.stderr


def test_an_error_that_cannot_be_written_as_json_is_told_as_text(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        ended = ran("ls", "--json", "-a", str(tmp_path), stdout=full)
    assert (ended.returncode, "Traceback" in ended.stderr) == (1, False)
    assert "the output cannot be written" in ended.stderr


def test_a_full_standard_error_changes_neither_output_nor_exit_code(local_place: Place) -> None:
    fill(local_place)
    with Path("/dev/full").open("w") as full:
        listed = ran("ls", "-v", *local_place.arguments, stderr=full)
        assert (listed.returncode, "orders" in listed.stdout) == (0, True)
        assert ran("ls", "-a", str(local_place.folder / "nothing"), stderr=full).returncode == 2


def test_output_that_nobody_reads_any_more_ends_the_command_without_a_word(local_place: Place) -> None:
    fill(local_place)
    read, write = os.pipe()
    os.close(read)
    for form in ([], ["--json"]):
        ended = ran("ls", *form, *local_place.arguments, stdout=write)
        assert (ended.returncode, ended.stderr) == (1, "")
    os.close(write)


def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    program = "from maxbrod.cli.process import guard_streams; guard_streams(); print(open({!r}, 'w').fileno() > 2)"
    file = tmp_path / "file"
    subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', sys.executable, "-c", program.format(str(file))], check=True
    )
    assert file.read_text() == ""


def test_a_log_file_that_is_full_is_told_once_and_changes_nothing_else(local_place: Place) -> None:
    fill(local_place)
    ended = ran("ls", "--log-file", "/dev/full", *local_place.arguments)
    assert (ended.returncode, "orders" in ended.stdout) == (0, True)
    assert ended.stderr.splitlines() == [
        "the log file cannot be written: [Errno 28] No space left on device (/dev/full)"
    ]


def test_bytes_are_guarded_as_text_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Output, "lost", None)
    with Path("/dev/full").open("w") as full:
        output = _Output(full)
        output.buffer.write(b"rows")
        with pytest.raises(OutputError, match="No space left"):
            output.buffer.flush()
        output.write("more")  # goes nowhere
        output.flush()
    # Whoever passes over the error does not make a success of it.
    with pytest.raises(OutputError, match="No space left"):
        refuse_lost_output()
    with Path("/dev/full").open("w") as full:
        messages = _Messages(full)
        messages.writelines(["a", "b"])
        messages.flush()
