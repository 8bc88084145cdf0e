from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
import typer

from maxbrod.cli import output
from maxbrod.cli.health import Health, watched_by_systemd
from maxbrod.cli.output import print_json, print_json_line, print_json_with
from maxbrod.cli.progress import progress_bar
from maxbrod.cli.signals import stopping_by_signals
from maxbrod.cli.supervised import Supervisor, run_supervised, supervisor
from maxbrod.work.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CALL: Any = None


def supervised(run: Callable[..., None]) -> tuple[int, list[Any], list[Progress]]:
    documents: list[Any] = []
    steps: list[Progress] = []
    code = run_supervised(run, CALL, Supervisor(on_document=documents.append, on_progress=steps.append))
    return code, documents, steps


def test_documents_go_to_the_supervisor_and_nothing_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    before = (output._Standard.lines, output._Standard.document_printed)

    def verb(_: Any) -> None:
        print_json({"a": 1})
        print_json_line({"b": 2})
        print_json_with({"c": 3, "items": ()}, "items", iter(["1"] * 3))
        print_json([4])
        raise typer.Exit(3)

    code, documents, _ = supervised(verb)
    assert (code, documents) == (3, [{"a": 1}, {"b": 2}, {"c": 3, "items": ()}, {"items": [4]}])
    assert capsys.readouterr().out == ""
    # How the scheduler's own documents are printed has not changed.
    assert (output._Standard.lines, output._Standard.document_printed) == before


def test_progress_goes_to_the_supervisor() -> None:
    def verb(_: Any) -> None:
        with progress_bar(shown=True) as on_progress:
            on_progress(Progress(phase="reading"))

    assert [step.phase for step in supervised(verb)[2]] == ["reading"]


@pytest.mark.parametrize("early", [True, False])
def test_a_stop_reaches_the_verb_whenever_it_comes(early: bool) -> None:
    by = Supervisor(on_document=lambda _: None, on_progress=lambda _: None)
    began, stopped = threading.Event(), threading.Event()
    if early:
        by.stop()

    def verb(_: Any) -> None:
        stop = threading.Event()
        with stopping_by_signals(stop):
            began.set()
            stop.wait()
            stopped.set()

    thread = threading.Thread(target=run_supervised, args=(verb, CALL, by))
    thread.start()
    began.wait()
    by.stop()
    thread.join()
    assert stopped.is_set()


def test_a_verb_does_not_speak_to_systemd_in_place_of_its_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verb(_: Any) -> None:
        with watched_by_systemd(Health()):
            pass

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "notify"))
        server.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        supervised(verb)
        with pytest.raises(BlockingIOError):
            server.recv(100)


def test_what_a_verb_raises_is_raised_and_the_supervisor_is_gone_afterwards() -> None:
    def verb(_: Any, context: Any) -> None:
        assert supervisor() is not None
        assert context.invoked_subcommand is None
        raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        supervised(verb)
    assert supervisor() is None
