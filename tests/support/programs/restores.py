"""A program that restores, for tests that kill it: `python -m support.programs.restores`

Configuration and request come in as a line of JSON, then a line for each run: the prefix of the target topics and n.
With n of 0 or more the run dies by SIGKILL at the n-th point where a crash could matter. Says for each, in JSON, how it
ended. Forks for each run, so all it does by itself is load the kernels, which takes longer than a run.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from kafka.protocol.api_key import ApiKey

from maxbrod.archive.renames import parse_rename
from maxbrod.config import Config
from maxbrod.errors import MaxbrodError
from maxbrod.kafka.wire.connection import Connection
from maxbrod.prepare import prepare_batches
from maxbrod.restore import run as engine
from maxbrod.restore import target as restore_target
from maxbrod.restore.plan.request import OffsetsMode, RestoreRequest
from maxbrod.storage.local import LocalStorage
from maxbrod.work.work import Work
from support.sparkless import without_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

HARMLESS = {
    "ApiVersions",
    "DescribeAcls",
    "DescribeClientQuotas",
    "DescribeCluster",
    "DescribeConfigs",
    "DescribeGroups",
    "DescribeLogDirs",
    "DescribeProducers",
    "DescribeTopicPartitions",
    "DescribeUserScramCredentials",
    "ConsumerGroupDescribe",
    "ShareGroupDescribe",
    "Fetch",
    "FindCoordinator",
    "InitProducerId",
    "ListGroups",
    "ListOffsets",
    "Metadata",
    "OffsetFetch",
    "OffsetForLeaderEpoch",
}
"""Requests that change nothing which anybody could see. All others are points where a crash could matter."""
REPEATED = {"AddPartitionsToTxn", "EndTxn"}
"""Repeated while the transaction before is being completed, any number of times: only the first few count."""
REPEATED_MAX = 3


def say(out: int, **what: Any) -> None:
    os.write(out, f"{json.dumps(what)}\n".encode())


def requests_in(pieces: Any) -> Iterator[tuple[int, int]]:
    """The API key and the number of every request that is sent at once. A piece may begin one."""
    position = begins = 0
    for piece in (memoryview(each) for each in pieces):
        if position == begins:
            size, key, _, ticket = struct.unpack_from(">ihhi", piece)
            begins += 4 + size
            yield key, ticket
        position += piece.nbytes


class Fate:
    """Counts the moments at which something was put, sent or answered, and ends the process at one of them."""

    def __init__(self, point: int, out: int) -> None:
        self._left = point
        self._out = out
        self._met: Counter[str] = Counter()
        self._asked: dict[tuple[Connection, int], str] = {}
        self._put, self._send, self._receive = LocalStorage.put, Connection._send, Connection.receive

    def meet(self, moment: str) -> None:
        self._met[moment] += 1
        if moment.rpartition(" ")[2] in REPEATED and self._met[moment] > REPEATED_MAX:
            return
        self._left -= 1
        if self._left < 0:
            say(self._out, killed=moment)
            os.kill(os.getpid(), signal.SIGKILL)

    def put(self, storage: LocalStorage, path: str, data: Any) -> None:
        self._put(storage, path, data)
        self.meet(f"put {path.rpartition('/')[2]}")

    def send(self, connection: Connection, pieces: Any, deadline: Any) -> None:
        self._send(connection, pieces, deadline)
        for key, ticket in requests_in(pieces):
            name = next((each.name for each in ApiKey if each.value == key), str(key))
            if name not in HARMLESS:
                self._asked[connection, ticket] = name
                self.meet(f"sent {name}")

    def receive(self, connection: Connection, ticket: int, deadline: Any) -> Any:
        frame = self._receive(connection, ticket, deadline)
        if (name := self._asked.pop((connection, ticket), None)) is not None:
            self.meet(f"answered {name}")
        return frame


def doom(point: int, out: int) -> None:
    fate = Fate(point, out)
    fate.meet("nothing")
    for owner, name, met in (
        (LocalStorage, "put", fate.put),
        (Connection, "_send", fate.send),
        (Connection, "receive", fate.receive),
    ):
        setattr(owner, name, lambda *arguments, met=met: met(*arguments))


def run(config: Config, request: RestoreRequest, point: int, out: int) -> None:
    """In a process of its own; without a point (below 0), to the end."""
    if point >= 0:
        doom(point, out)
    try:
        with without_spark(), engine.Restore(Work(config), request) as work:
            report = work.run(work.plan())
    except MaxbrodError as error:
        say(out, **error.as_dict())
    else:
        say(out, exit_code=report.exit_code, report=report.as_dict())


def main() -> None:
    document = json.loads(sys.stdin.readline())
    config, out = Config.model_validate(document["config"]), sys.stdout.fileno()
    if not document["markers"]:
        setattr(restore_target, "may_write_markers", lambda *_, **__: False)  # noqa: B010 - not its to export
    prepare_batches()
    for line in sys.stdin:
        prefix, point = line.split()
        request = RestoreRequest(
            rename=parse_rename(prefix=prefix), offsets=OffsetsMode(document["mode"]), groups=tuple(document["groups"])
        )
        child = os.fork()
        if child == 0:
            try:
                run(config, request, int(point), out)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.write(out, b".\n")


if __name__ == "__main__":
    main()
