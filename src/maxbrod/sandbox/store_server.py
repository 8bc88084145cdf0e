"""A server of objects in a box: one process on loopback, with its objects in a folder, and random keys.

The keys are in its environment and in a file that only its owner can read, never in a command line, a log or a repr.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import secrets
import tempfile
from abc import ABC, abstractmethod
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from maxbrod.errors import UnavailableError, UsageError
from maxbrod.sandbox.process import (
    HOST,
    Box,
    PortTakenError,
    Process,
    free_ports,
    launch,
    retry_ports,
    wait_for,
    write_private,
)

_BUCKET_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_START_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 10.0
_ANSWER_TIMEOUT_S: Final = 5.0
_OUTPUT_TAIL_CHARACTERS: Final = 1000


class StoreServer(Box, ABC):
    """A folder, a process, keys, and faults. A subclass says which program, and how clients reach it."""

    kind: ClassVar[str]
    """The name of the store in the sandbox, which is also the name of its folder there."""
    scheme: ClassVar[str]

    def __init__(self, directory: Path, bucket: str, *, keep: bool = False) -> None:
        super().__init__(directory, keep=keep)
        self.bucket = bucket
        self.access_key, self.secret_key = self._new_keys()
        self.port = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.endpoint}/{self.bucket})"

    @staticmethod
    @abstractmethod
    def _command() -> list[str]:
        """The program; the first call installs it into the cache, which may take minutes."""

    @abstractmethod
    def _arguments(self) -> list[str]: ...

    @abstractmethod
    def _environment(self) -> dict[str, str]: ...

    @abstractmethod
    def store_options(self, *, endpoint: str | None = None) -> dict[str, Any]:
        """Keyword arguments of obstore's class for this store; `endpoint` leads through a proxy."""

    @abstractmethod
    def storage_section(self, *, endpoint: str | None = None) -> dict[str, Any]:
        """The section `storage` of a configuration that reaches the server, with its keys."""

    @abstractmethod
    def variables(self) -> dict[str, str]:
        """The environment in which maxbrod, and the tools of that cloud, reach the server."""

    @staticmethod
    def _new_keys() -> tuple[str, str]:
        """What clients log in with: a public and a secret part."""
        return secrets.token_hex(10), secrets.token_hex(20)

    def _prepare(self) -> None:
        """Make ready what the program expects in its folder before it starts."""

    def _fill(self) -> None:
        """Make the bucket once the server answers, if it was not made as a folder."""

    @classmethod
    def start(
        cls,
        directory: Path | str | None = None,
        *,
        bucket: str = "maxbrod-test",
        keep: bool = False,
        detached: bool = False,
        timeout_s: float = _START_TIMEOUT_S,
    ) -> Self:
        """Start a server in a folder that is new or empty (None: a temporary one) and wait until it answers.

        The server ends with this process, even by SIGKILL, and its folder is removed unless `keep`. A `detached` server
        lives on, and `attach` finds it again.
        """
        if not _BUCKET_NAME.fullmatch(bucket):
            raise UsageError(f"{bucket!r} is not a valid bucket name", hint="3 to 63 of a-z, 0-9, '.' and '-'")
        cls._command()  # Builds, the first time: before there is anything to clean up.
        server = cls(Path(directory or tempfile.mkdtemp(prefix=f"maxbrod-{cls.kind}-")), bucket, keep=keep)
        server.claim(detached=detached)
        try:
            server._create(timeout_s)
        except BaseException:
            server.close()
            raise
        return server

    @classmethod
    def attach(cls, directory: Path) -> Self:
        """The server that another process started in this folder with `detached`."""
        state = json.loads((directory / f"{cls.kind}.json").read_text())
        server = cls(directory, state["bucket"])
        server.access_key, server.secret_key, server.port = state["access_key"], state["secret_key"], state["port"]
        return server

    # Where things are

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self.port

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.bucket}"

    @property
    def objects_dir(self) -> Path:
        return self.directory / "objects"

    @property
    def output(self) -> Path:
        """The output of the server since its first start."""
        return self._home / "output.log"

    # Faults

    @property
    def alive(self) -> bool:
        """Whether the process exists, running or suspended."""
        return self._process.alive

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    def stop(self) -> None:
        """SIGTERM. The objects stay; `restart` serves them again."""
        self._process.stop(timeout_s=_STOP_TIMEOUT_S)

    def suspend(self) -> None:
        """SIGSTOP: connections stay open, the kernel accepts new ones, and there are no answers."""
        self._process.suspend()

    def resume(self) -> None:
        self._process.resume()

    def restart(self) -> None:
        """Start the server, after stopping it if it runs: same port, keys and objects."""
        self.stop()
        # Another process may have taken the port while it was free, and may release it.
        retry_ports(
            lambda: self._launch(_START_TIMEOUT_S),
            lambda: f"another process holds the port of the {self.kind} server: {self._output_tail()}",
            operation="restart",
        )

    # How it is made

    @property
    def _home(self) -> Path:
        return self.directory / "server"

    @property
    def _process(self) -> Process:
        return Process(self._home / "pid")

    def _create(self, timeout_s: float) -> None:
        self._home.mkdir(mode=0o700)
        self.objects_dir.mkdir()
        self._prepare()

        def start() -> None:
            (self.port,) = free_ports(1)
            self._launch(timeout_s)

        retry_ports(start, lambda: "cannot find a port that stays free", operation="start")
        self._fill()
        keys = {"access_key": self.access_key, "secret_key": self.secret_key}
        write_private(
            self.directory / f"{self.kind}.json", json.dumps({"bucket": self.bucket, "port": self.port, **keys})
        )

    def _launch(self, timeout_s: float) -> None:
        # Not our environment: neither the user's keys nor settings for these programs.
        environment = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        process = launch(
            [*self._command(), *self._arguments()],
            home=self._home,
            output=self.output,
            environment={**environment, **self._environment()},
        )
        wait_for(f"the {self.kind} server to answer", lambda: self._answers(process), timeout_s=timeout_s)

    def _answers(self, process: Process) -> bool:
        """Whether our process answers, and not another one on our port."""
        answered = self._responds()
        if process.alive:
            return answered
        tail = self._output_tail()
        if "address already in use" in tail or "EADDRINUSE" in tail:
            raise PortTakenError
        raise UnavailableError(f"the {self.kind} server ended at once: {tail}", operation="start")

    def _responds(self) -> bool:
        """Any answer counts; without keys it is a refusal."""
        with closing(self._connection()) as connection:
            try:
                connection.request("GET", "/")
                return connection.getresponse().status > 0
            except (OSError, http.client.HTTPException):
                return False

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(HOST, self.port, timeout=_ANSWER_TIMEOUT_S)

    def _output_tail(self) -> str:
        try:
            return self.output.read_text(errors="replace")[-_OUTPUT_TAIL_CHARACTERS:].strip() or "(no output)"
        except OSError:
            return "(no output)"
