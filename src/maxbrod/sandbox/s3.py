"""A real S3 server in a box: one process on loopback, with its objects as plain files in a folder.

`S3Server` is versitygw, which keeps S3's promises, including conditional puts. `LyingS3Server` is rclone, which
answers a conditional put with 200 and overwrites: such a store must never hold an archive. Each server has random keys.
They are in its environment and in a file that only its owner can read, never in a command line, a log or a repr.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import secrets
import sys
import tempfile
from abc import ABC, abstractmethod
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from maxbrod.errors import UnavailableError, UsageError
from maxbrod.sandbox import programs
from maxbrod.sandbox.node import PortTakenError, claim, write_private
from maxbrod.sandbox.process import Process, Reaper, launch, reap, wait_for
from maxbrod.sandbox.spec import HOST, free_ports

if TYPE_CHECKING:
    from types import TracebackType

_BUCKET_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_START_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 10.0
_ANSWER_TIMEOUT_S: Final = 2.0
_PORT_TRIES: Final = 5
_OUTPUT_TAIL_CHARACTERS: Final = 1000
_STATE_FILE: Final = "s3.json"


class _Server(ABC):
    """What both servers share: a folder, a process, keys, and faults.

    `objects_dir/<bucket>/<key>` is the object itself, which tests can read and damage.
    """

    region: Final = "us-east-1"

    def __init__(self, directory: Path, bucket: str, *, reaper: Reaper | None, keep: bool) -> None:
        self.directory = directory
        self.bucket = bucket
        self.access_key = secrets.token_hex(10)
        self.secret_key = secrets.token_hex(20)
        self.port = 0
        self._reaper = reaper
        self._keep = keep
        self._home = directory / "server"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.endpoint}/{self.bucket})"

    @staticmethod
    @abstractmethod
    def _program() -> Path:
        """The executable; the first call installs it into the cache, which may take minutes."""

    @abstractmethod
    def _arguments(self) -> list[str]: ...

    @abstractmethod
    def _environment(self) -> dict[str, str]: ...

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
        cls._program()  # Builds, the first time: before there is anything to clean up.
        folder = claim(Path(directory or tempfile.mkdtemp(prefix="maxbrod-s3-")))
        reaper = None if detached else Reaper.start(folder, keep=keep)
        server = cls(folder, bucket, reaper=reaper, keep=keep)
        try:
            server._create(timeout_s)
        except BaseException:
            server.close()
            raise
        return server

    @classmethod
    def attach(cls, directory: Path) -> Self:
        """The server that another process started in this folder with `detached`."""
        state = json.loads((directory / _STATE_FILE).read_text())
        server = cls(directory, state["bucket"], reaper=None, keep=False)
        server.access_key, server.secret_key, server.port = state["access_key"], state["secret_key"], state["port"]
        return server

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the server at once, and remove the folder unless `keep`."""
        reap(self.directory, keep=self._keep)
        if self._reaper is not None:
            self._reaper.close()

    # Where things are

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self.port

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}"

    @property
    def objects_dir(self) -> Path:
        return self.directory / "objects"

    @property
    def _metadata_dir(self) -> Path:
        return self.directory / "metadata"

    @property
    def output(self) -> Path:
        """The output of the server since its first start."""
        return self._home / "output.log"

    def object_path(self, key: str) -> Path:
        """The file that is the object."""
        return self.objects_dir / self.bucket / key

    def store_options(self, *, endpoint: str | None = None) -> dict[str, Any]:
        """Keyword arguments of `obstore.store.S3Store`; `endpoint` leads through a proxy."""
        return {
            "bucket": self.bucket,
            "endpoint": endpoint or self.endpoint,
            "region": self.region,
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
            "virtual_hosted_style_request": False,
            "client_options": {"allow_http": True},
        }

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

    def restart(self, *, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Start the server, after stopping it if it runs: same port, keys and objects."""
        self.stop()
        # Another process may have taken the port while it was free, and may release it.
        for _ in range(_PORT_TRIES):
            try:
                self._launch(timeout_s)
            except PortTakenError:
                continue
            return
        raise UnavailableError(
            f"another process holds the port of the S3 server: {self._output_tail()}", operation="restart"
        )

    # How it is made

    @property
    def _process(self) -> Process:
        return Process(self._home / "pid")

    def _create(self, timeout_s: float) -> None:
        self._home.mkdir(mode=0o700)
        (self.objects_dir / self.bucket).mkdir(parents=True)
        self._metadata_dir.mkdir()
        for _ in range(_PORT_TRIES):
            (self.port,) = free_ports(1)
            try:
                self._launch(timeout_s)
            except PortTakenError:
                continue
            self._save()
            return
        raise UnavailableError("cannot find a port that stays free", operation="start")

    def _save(self) -> None:
        keys = {"access_key": self.access_key, "secret_key": self.secret_key}
        write_private(self.directory / _STATE_FILE, json.dumps({"bucket": self.bucket, "port": self.port, **keys}))

    def _launch(self, timeout_s: float) -> None:
        # Not our environment: neither the user's AWS keys nor settings for these programs.
        environment = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        process = launch(
            [str(self._program()), *self._arguments()],
            home=self._home,
            output=self.output,
            environment={**environment, **self._environment()},
        )
        wait_for("the S3 server to answer", lambda: self._answers(process), timeout_s=timeout_s)

    def _answers(self, process: Process) -> bool:
        """Whether our process answers, and not another one on our port."""
        answered = _answers_http(self.port)
        if process.alive:
            return answered
        tail = self._output_tail()
        if "address already in use" in tail:
            raise PortTakenError
        raise UnavailableError(f"the S3 server ended at once: {tail}", operation="start")

    def _output_tail(self) -> str:
        try:
            return self.output.read_text(errors="replace")[-_OUTPUT_TAIL_CHARACTERS:].strip() or "(no output)"
        except OSError:
            return "(no output)"


class S3Server(_Server):
    """versitygw: conditional puts, multipart uploads and checksums as in S3."""

    @staticmethod
    def _program() -> Path:
        return programs.versitygw()

    def _arguments(self) -> list[str]:
        # An extended attribute becomes visible together with its object, a sidecar file does not, which matters under
        # `kill -9`. But not every file system has attributes.
        sidecar = [] if _has_attributes(self.directory) else ["--sidecar", str(self._metadata_dir)]
        return ["--quiet", "posix", *sidecar, str(self.objects_dir)]

    def _environment(self) -> dict[str, str]:
        return {
            "ROOT_ACCESS_KEY_ID": self.access_key,
            "ROOT_SECRET_ACCESS_KEY": self.secret_key,
            "VGW_PORT": f"{HOST}:{self.port}",
            "VGW_REGION": self.region,
            "VGW_KEEP_ALIVE": "true",
        }


class LyingS3Server(_Server):
    """rclone: silently ignores If-None-Match and If-Match on a put."""

    @staticmethod
    def _program() -> Path:
        return programs.rclone()

    def _arguments(self) -> list[str]:
        return ["serve", "s3", "--addr", f"{HOST}:{self.port}", str(self.objects_dir)]

    def _environment(self) -> dict[str, str]:
        return {
            "RCLONE_CONFIG": os.devnull,
            # A CSV list with one entry, which contains a comma: hence the quotes.
            "RCLONE_AUTH_KEY": f'"{self.access_key},{self.secret_key}"',
        }


def _has_attributes(folder: Path) -> bool:
    if sys.platform != "linux":
        return False
    try:
        os.setxattr(folder, "user.maxbrod", b"1")
    except OSError:
        return False
    return True


def _answers_http(port: int) -> bool:
    """Any answer counts; without keys it is a refusal."""
    with closing(http.client.HTTPConnection(HOST, port, timeout=_ANSWER_TIMEOUT_S)) as connection:
        try:
            connection.request("GET", "/")
            return connection.getresponse().status > 0
        except (OSError, http.client.HTTPException):
            return False
