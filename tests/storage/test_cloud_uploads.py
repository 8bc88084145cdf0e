"""Large objects on their way into a store that fails: whole in the end, or nothing visible, in little memory."""

from __future__ import annotations

import json
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
    FlipRequestBit,
    HttpMatch,
    LoseAnswer,
    ProxyFault,
    Refuse,
    Stall,
    Throttle,
)
from maxbrod.sandbox.s3 import S3Server
from maxbrod.storage.uploads import PART_BYTES
from support.clouds import KINDS, Cloud, Kind
from support.gcs import GcsDouble

if TYPE_CHECKING:
    from collections.abc import Callable

    from maxbrod.sandbox.proxy.server import FaultProxy
    from maxbrod.storage.interface import Storage

pytestmark = pytest.mark.usefixtures("no_proxy_thread_left")

MIB = 1024 * 1024
PARTS = {
    "s3": HttpMatch("PUT", r"partNumber="),
    "azure": HttpMatch("PUT", r"comp=block&"),
    "gcs": HttpMatch("PUT", r"partNumber="),
}
COMPLETE = {
    "s3": HttpMatch("POST", r"uploadId="),
    "azure": HttpMatch("PUT", r"comp=blocklist"),
    "gcs": HttpMatch("POST", r"uploadId="),
}
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


def killed_after(cloud: Cloud, mebibytes: int, *, endpoint: str | None = None) -> int:
    """A process that writes so much of `big` and dies by SIGKILL; by how many KiB its memory had grown."""
    options = json.dumps(cloud.section(endpoint=endpoint))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPTIONS": options}
    command = [sys.executable, "-c", PROGRAM, cloud.url, str(mebibytes)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        grown = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
    return grown


def write(storage: Storage, name: str, data: bytes) -> None:
    with storage.create(name) as writer:
        for start in range(0, len(data), MIB):
            writer.write(data[start : start + MIB])


def faults(*made: Callable[[HttpMatch, HttpMatch], ProxyFault]) -> list[tuple[Kind, ProxyFault]]:
    """The faults for each store: which requests send a part, and which one completes the object."""
    return [(kind, make(PARTS[kind], COMPLETE[kind])) for kind in KINDS for make in made]


S3_FAULTS: list[ProxyFault] = [
    AnswerError(times=2),
    CutRequest(on=PARTS["s3"], after_bytes=MIB, times=1),
    Stall(on=PARTS["s3"], times=1),
    LoseAnswer(on=PARTS["s3"], times=1),
]


@pytest.mark.parametrize(
    ("cloud", "fault"),
    [
        *(("s3", fault) for fault in S3_FAULTS),
        *faults(
            lambda part, _: AnswerError(on=part, status=500, code="InternalError", times=2),
            lambda _, complete: LoseAnswer(on=complete, times=1),
            lambda _, complete: AnswerError(on=complete, status=429, code="SlowDown", times=1),
            lambda _, complete: AnswerError(on=complete, status=500, code="InternalError", times=1, carried_out=True),
        ),
    ],
    indirect=["cloud"],
    ids=repr,
)
def test_an_upload_in_parts_outlives_what_passes(
    proxied_storage: Storage, direct_storage: Storage, cloud_proxy: FaultProxy, fault: ProxyFault
) -> None:
    data = os.urandom(20 * MIB)
    cloud_proxy.add(fault)
    write(proxied_storage, "big", data)
    assert cloud_proxy.fired[fault] == fault.times
    assert bytes(direct_storage.get("big")) == data


@pytest.mark.parametrize(
    ("cloud", "fault"),
    [
        *faults(lambda part, _: AnswerError(on=part), lambda _, complete: AnswerError(on=complete)),
        ("s3", Stall(on=PARTS["s3"])),
        ("s3", FlipRequestBit(on=PARTS["s3"], at=MIB)),
    ],
    indirect=["cloud"],
    ids=repr,
)
def test_an_upload_that_cannot_end_leaves_nothing_visible(
    hasty_storage: Storage, direct_storage: Storage, cloud_proxy: FaultProxy, cloud: Cloud, fault: ProxyFault
) -> None:
    with cloud_proxy.fault(fault), pytest.raises(UnavailableError):
        write(hasty_storage, "big", bytes(20 * MIB))
    assert names(direct_storage) == []
    # Azure knows no end of an upload: it drops blocks that no blob has after a week.
    assert cloud.kind == "azure" or parts(cloud) == []


@pytest.mark.parametrize(
    ("cloud", "fault"),
    faults(
        lambda _, complete: LoseAnswer(on=complete),
        lambda _, complete: AnswerError(on=complete, status=500, code="InternalError", carried_out=True),
    ),
    indirect=["cloud"],
    ids=repr,
)
def test_an_upload_whose_every_answer_is_lost_knows_its_own_object(
    hasty_storage: Storage, direct_storage: Storage, cloud_proxy: FaultProxy, fault: ProxyFault
) -> None:
    data = os.urandom(20 * MIB)
    with cloud_proxy.fault(fault):
        write(hasty_storage, "big", data)
        assert cloud_proxy.fired[fault] >= 1
    assert bytes(direct_storage.get("big")) == data


@pytest.mark.parametrize("cloud", ["s3", "gcs"], indirect=True)
def test_an_aborted_upload_leaves_no_parts_to_pay_for(cloud: Cloud, direct_storage: Storage) -> None:
    writer = direct_storage.create("big")
    for _ in range(40):
        writer.write(bytes(MIB))
    # A part that is still under way may arrive after the end of its upload: no store promises otherwise.
    wait_for("all parts", lambda: len(parts(cloud)) == 40 * MIB // PART_BYTES, timeout_s=60)
    writer.abort()
    assert parts(cloud) == []
    assert names(direct_storage) == []


@pytest.mark.parametrize("cloud", ["azure"], indirect=True)
def test_blocks_of_an_upload_that_was_given_up_get_into_no_other_blob(direct_storage: Storage) -> None:
    writer = direct_storage.create("big")
    writer.write(b"old" * 7 * MIB)
    writer.abort()
    write(direct_storage, "big", b"new" * 7 * MIB)
    assert bytes(direct_storage.get("big")) == b"new" * 7 * MIB


def test_aborting_never_raises_even_when_nobody_answers(hasty_storage: Storage, cloud_proxy: FaultProxy) -> None:
    writer = hasty_storage.create("big")
    for _ in range(20):
        writer.write(bytes(MIB))
    with cloud_proxy.fault(Refuse()):
        writer.abort()
    assert names(hasty_storage) == []


def parts(cloud: Cloud) -> list[str]:
    """What the server keeps of uploads that are not complete."""
    if isinstance(cloud.server, S3Server):
        folders = cloud.server.objects_dir.glob("*/.sgwtmp/multipart/**/*")
        return [str(path) for path in folders if path.is_file()]
    assert isinstance(cloud.server, GcsDouble)
    prefix = cloud.url.removeprefix(f"{cloud.server.url}/")
    ours = [upload for upload in cloud.server.uploads.values() if upload.name.startswith(prefix)]
    return [f"{upload.name}/{number}" for upload in ours for number in upload.parts]


@pytest.mark.parametrize("cloud", ["s3", "azure"], indirect=True)
def test_a_writer_killed_in_the_middle_leaves_nothing_visible(cloud: Cloud, direct_storage: Storage) -> None:
    killed_after(cloud, 40)
    assert cloud.kind == "azure" or parts(cloud) != []
    assert names(direct_storage) == ["small"]
    write(direct_storage, "big", b"whole" * 4 * MIB)
    assert direct_storage.head("big").size == 20 * MIB


@pytest.mark.parametrize("cloud", ["s3"], indirect=True)
def test_a_store_slower_than_its_writer_does_not_fill_the_memory(cloud: Cloud, cloud_proxy: FaultProxy) -> None:
    cloud_proxy.add(Throttle(request_bytes_per_second=20 * MIB))
    assert killed_after(cloud, 200, endpoint=cloud_proxy.endpoint) < 80 * 1024
