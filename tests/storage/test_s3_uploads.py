"""Large objects on their way into an S3 that fails: whole in the end, or nothing visible, in little memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from maxbrod.errors import UnavailableError
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.proxy.faults import (
    AnswerError,
    CutRequest,
    Fault,
    FlipRequestBit,
    HttpMatch,
    LoseAnswer,
    Refuse,
    Stall,
    Throttle,
)
from maxbrod.storage.remote import PART_BYTES

if TYPE_CHECKING:
    from maxbrod.sandbox.proxy.server import FaultProxy
    from maxbrod.sandbox.s3 import S3Server
    from maxbrod.storage.interface import Storage

pytestmark = pytest.mark.usefixtures("no_proxy_thread_left")

MIB = 1024 * 1024
PUT = HttpMatch("PUT")
COMPLETE = HttpMatch("POST", r"uploadId=")
PROGRAM = """
import os, resource, sys, time
from maxbrod.config import StorageConfig
from maxbrod.storage.stores import open_storage

def memory_kib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

storage = open_storage(sys.argv[1], StorageConfig.model_validate_json(os.environ["OPTIONS"]))
storage.put("small", b"x")
writer = storage.create("big")
piece = os.urandom(2 ** 20)
before = memory_kib()
for _ in range(int(sys.argv[2])):
    writer.write(piece)
print(memory_kib() - before, flush=True)
time.sleep(60)
"""


def names(storage: Storage) -> list[str]:
    return [info.path for info in storage.list()]


def killed_after(s3: S3Server, mebibytes: int, *, endpoint: str) -> int:
    """A process that writes so much of `big` and dies by SIGKILL; by how many KiB its memory had grown."""
    keys = f'"access_key_id": "{s3.access_key}", "secret_access_key": "{s3.secret_key}"'
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OPTIONS": f'{{"s3": {{"endpoint": "{endpoint}", {keys}}}}}',
    }
    command = [sys.executable, "-c", PROGRAM, s3.url, str(mebibytes)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        grown = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
    return grown


def write(storage: Storage, name: str, data: bytes) -> None:
    with storage.create(name) as writer:
        for start in range(0, len(data), MIB):
            writer.write(data[start : start + MIB])


@pytest.mark.parametrize(
    "fault",
    [
        AnswerError(times=2),
        AnswerError(on=PUT, status=500, code="InternalError", times=2),
        CutRequest(on=PUT, after_bytes=MIB, times=1),
        Stall(on=PUT, times=1),
        LoseAnswer(on=PUT, times=1),
        LoseAnswer(on=COMPLETE, times=1),
        AnswerError(on=COMPLETE, status=500, code="InternalError", times=1),
        AnswerError(on=COMPLETE, status=500, code="InternalError", times=1, carried_out=True),
    ],
    ids=repr,
)
def test_an_upload_in_parts_outlives_what_passes(
    proxied_storage: Storage, s3_storage: Storage, s3_proxy: FaultProxy, fault: Fault
) -> None:
    data = os.urandom(20 * MIB)
    s3_proxy.add(fault)
    write(proxied_storage, "big", data)
    assert s3_proxy.fired[fault] == fault.times
    assert bytes(s3_storage.get("big")) == data


@pytest.mark.parametrize(
    "fault", [AnswerError(on=PUT), Stall(on=PUT), FlipRequestBit(on=PUT, at=MIB), AnswerError(on=COMPLETE)], ids=repr
)
def test_an_upload_that_cannot_end_leaves_nothing_visible(
    hasty_storage: Storage, s3_storage: Storage, s3_proxy: FaultProxy, s3: S3Server, fault: Fault
) -> None:
    with s3_proxy.fault(fault), pytest.raises(UnavailableError):
        write(hasty_storage, "big", bytes(20 * MIB))
    assert names(s3_storage) == []
    assert parts(s3) == []


@pytest.mark.parametrize(
    "fault",
    [LoseAnswer(on=COMPLETE), AnswerError(on=COMPLETE, status=500, code="InternalError", carried_out=True)],
    ids=repr,
)
def test_an_upload_whose_every_answer_is_lost_knows_its_own_object(
    hasty_storage: Storage, s3_storage: Storage, s3_proxy: FaultProxy, fault: Fault
) -> None:
    data = os.urandom(20 * MIB)
    with s3_proxy.fault(fault):
        write(hasty_storage, "big", data)
        assert s3_proxy.fired[fault] > 1
    assert bytes(s3_storage.get("big")) == data


def test_an_aborted_upload_leaves_no_parts_to_pay_for(s3: S3Server, s3_storage: Storage) -> None:
    writer = s3_storage.create("big")
    for _ in range(40):
        writer.write(bytes(MIB))
    # A part that is still under way may arrive after the end of its upload: no store promises otherwise.
    wait_for("all parts", lambda: len(parts(s3)) == 40 * MIB // PART_BYTES, timeout_s=60)
    writer.abort()
    assert parts(s3) == []
    assert names(s3_storage) == []


def test_aborting_never_raises_even_when_nobody_answers(hasty_storage: Storage, s3_proxy: FaultProxy) -> None:
    writer = hasty_storage.create("big")
    for _ in range(20):
        writer.write(bytes(MIB))
    with s3_proxy.fault(Refuse()):
        writer.abort()
    assert names(hasty_storage) == []


def parts(s3: S3Server) -> list[str]:
    """What the server keeps of uploads that are not complete."""
    return [str(path) for path in s3.objects_dir.glob("*/.sgwtmp/multipart/**/*") if path.is_file()]


def test_a_writer_killed_in_the_middle_leaves_nothing_visible(s3: S3Server, s3_storage: Storage) -> None:
    killed_after(s3, 40, endpoint=s3.endpoint)
    assert parts(s3) != []
    assert names(s3_storage) == ["small"]
    write(s3_storage, "big", b"whole" * 4 * MIB)
    assert s3_storage.head("big").size == 20 * MIB


def test_a_store_slower_than_its_writer_does_not_fill_the_memory(s3: S3Server, s3_proxy: FaultProxy) -> None:
    s3_proxy.add(Throttle(request_bytes_per_second=20 * MIB))
    assert killed_after(s3, 200, endpoint=s3_proxy.endpoint) < 80 * 1024
