"""Schedulers in a thread of the test's own process, on a real archive and with real verbs."""

from __future__ import annotations

import json
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from maxbrod.board import Stop
from maxbrod.config import Config, load_config
from maxbrod.schedule.state import ScheduleState, read_state
from maxbrod.schedule.verb import Reload, run_jobs
from maxbrod.storage.stores import open_storage
from maxbrod.work.work import Work
from support.message_servers import eventually


@dataclass
class Running:
    """A scheduler, and the runs of jobs that have ended so far."""

    file: Path
    stop: Stop = field(default_factory=Stop)
    inbox: queue.Queue[object] = field(default_factory=queue.Queue)
    ended: list[tuple[str, int, int | None]] = field(default_factory=list)
    """Of each run, the job, the exit code and the slot."""
    errors: list[BaseException] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    """The port of its metrics and its health, once it serves."""

    def write(self, **document: Any) -> None:
        self.file.write_text(yaml.safe_dump(document))

    def reload(self) -> None:
        self.inbox.put(Reload())

    def runs(self, job: str) -> list[int]:
        """The exit codes of the runs of a job."""
        return [code for name, code, _ in self.ended if name == job]

    def wait(self, true: Callable[[], bool]) -> None:
        def ended_or_true() -> bool:
            assert not self.errors, self.errors
            return true()

        eventually(ended_or_true)

    def ask(self, path: str) -> tuple[int, str]:
        """The status and the text of an answer."""
        self.wait(lambda: bool(self.ports))
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[0]}{path}") as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def reasons(self) -> list[str]:
        """Why it is not ready; nothing if it is."""
        status, text = self.ask("/readyz")
        found: list[str] = json.loads(text).get("reasons", [])
        assert (status == 200) == (not found)
        return found

    def state(self) -> ScheduleState:
        found = read_state(open_storage(load_config(self.file).archive_url))
        assert found is not None
        return found


@contextmanager
def running(file: Path, *, while_stopping: Callable[[], object] = lambda: None) -> Iterator[Running]:
    """Run the scheduler of a configuration file within the block; its end stops it in order."""
    kept = Running(file)

    def run() -> None:
        config: Config = load_config(file)
        try:
            with Work(config, stop=kept.stop) as work:
                run_jobs(
                    work,
                    reload=lambda: load_config(file),
                    inbox=kept.inbox,
                    on_serving=kept.ports.append,
                    on_run=lambda job, outcome: kept.ended.append((job.name, outcome.exit_code, outcome.slot_ms)),
                )
        except BaseException as error:  # noqa: BLE001 - the test raises it
            kept.errors.append(error)

    thread = threading.Thread(target=run, name="scheduler")
    thread.start()
    try:
        yield kept
    finally:
        kept.stop.set()
        while_stopping()
        thread.join()
    for error in kept.errors:
        raise error
