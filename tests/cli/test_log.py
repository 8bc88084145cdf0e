from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
import typer

from maxbrod.cli.main import command_line, run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, each in getattr(command, "commands", {}).items():
        if hasattr(each, "commands"):
            yield from leaves(each, (*path, name))
        else:
            yield (*path, name), each


def test_every_verb_can_log() -> None:
    found = {
        path: {flag for each in command.params for flag in each.opts}
        for path, command in leaves(typer.main.get_command(command_line()))
    }
    assert len(found) > 15
    assert [path for path, flags in found.items() if not {"--verbose", "--log-file", "--log-format"} <= flags] == []


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_file_has_the_beginning_the_error_and_the_end_each_with_the_id_of_the_run(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for _ in range(2):
        assert run(["ls", "-a", str(tmp_path / "none"), "--log-file", str(log), "--log-format", "json"]) == 2
    found = lines(log)
    assert [each["event"] for each in found] == ["begin", "step", "error", "end"] * 2
    assert {each["verb"] for each in found} == {"ls"}
    assert found[2]["level"] == "error"
    assert (found[2]["error"], found[2]["exit_code"]) == ("NoArchiveError", 2)
    assert found[3]["exit_code"] == 2
    assert [len({each["run"] for each in found[:4]}), len({each["run"] for each in found})] == [1, 2]


def test_a_log_file_can_be_read_by_its_owner_alone_unless_its_mode_was_chosen(tmp_path: Path) -> None:
    log, chosen = tmp_path / "log", tmp_path / "chosen"
    chosen.touch()
    chosen.chmod(0o640)
    for file, mode in ((log, 0o600), (chosen, 0o640)):
        run(["ls", "-a", str(tmp_path / "none"), "--log-file", str(file)])
        assert file.read_text()
        assert file.stat().st_mode & 0o777 == mode


def test_a_verb_without_a_configuration_file_logs_as_the_others(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = ["sandbox", "continue", "--dir", str(tmp_path / "none"), "--broker", "1"]
    assert run([*command, "--log-file", str(log), "--log-format", "json"]) == 2
    assert [(each["verb"], each["event"]) for each in lines(log)] == [
        ("sandbox continue", event) for event in ("begin", "error", "end")
    ]


def test_a_text_file_has_the_id_on_every_line_also_where_a_name_has_a_line_feed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run(["ls", "-a", str(tmp_path / "no\nne"), "--log-file", str(log)])
    found = log.read_text().splitlines()
    runs = {line.split()[2] for line in found}
    assert len(found) == 4
    assert len(runs) == 1
    assert found[0].endswith(" ls ls begins")
    assert found[3].endswith(" ls ls ends with exit code 2")


def test_json_on_standard_error_has_nothing_but_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "-a", str(tmp_path / "none"), "--log-format", "json", "--verbose"]) == 2
    printed = capsys.readouterr()
    found = [json.loads(line) for line in printed.err.splitlines()]
    assert [each["event"] for each in found] == ["begin", "step", "error", "end"]
    assert printed.out == ""


def test_the_document_of_json_stays_alone_on_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["ls", "-a", str(tmp_path / "none"), "--json", "--verbose", "--log-format", "json"]) == 2
    printed = capsys.readouterr()
    assert json.loads(printed.out)["error"] == "NoArchiveError"
    assert printed.err == ""


def test_verbose_prints_steps_and_the_error_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "-a", str(tmp_path / "none"), "-v"]) == 2
    printed = capsys.readouterr().err
    assert "ls begins" in printed
    assert printed.count("error: ") == 1
    assert "ends with exit code 2" in printed


def test_without_options_nothing_more_is_printed_and_nothing_stays_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("maxbrod")
    before = (logger.level, list(logger.handlers))
    run(["ls", "-a", str(tmp_path / "none"), "-v", "--log-file", str(tmp_path / "log")])
    capsys.readouterr()
    assert (logger.level, list(logger.handlers)) == before
    assert run(["ls", "-a", str(tmp_path / "none")]) == 2
    assert "begins" not in capsys.readouterr().err


def test_the_file_of_the_configuration_says_the_same(tmp_path: Path) -> None:
    log = tmp_path / "log"
    config = tmp_path / "c.yaml"
    config.write_text(f"archive: {tmp_path / 'none'}\nlog: {{file: {log}, format: json}}\n")
    run(["ls", "-c", str(config)])
    assert lines(log)[-1]["exit_code"] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--log-file", "/nonexistent/x/log"], "log file cannot be written"), (["--log-format", "xml"], "--log-format")],
)
def test_a_log_that_cannot_be_written_is_a_mistake_of_usage(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["ls", "-a", str(tmp_path / "none"), *words]) == 2
    assert said in capsys.readouterr().err
