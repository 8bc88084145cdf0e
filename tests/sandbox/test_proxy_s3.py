"""Each fault does to a real S3 client and a real S3 server what its name says, and is counted."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.proxy.faults import (
    AnswerError,
    Blackhole,
    CutAnswer,
    CutRequest,
    FlipAnswerBit,
    FlipRequestBit,
    HttpMatch,
    Latency,
    LoseAnswer,
    ProxyFault,
    Refuse,
    Stall,
    Throttle,
    TruncateAnswer,
    Watch,
)
from support.s3 import no_retries

if TYPE_CHECKING:
    from maxbrod.sandbox.proxy.server import FaultProxy
    from maxbrod.sandbox.s3 import S3Server

pytestmark = pytest.mark.usefixtures("no_proxy_thread_left")

MIB = 1024 * 1024
GET = HttpMatch("GET")
PUT = HttpMatch("PUT")


def test_without_faults_every_byte_passes(proxied_store: S3Store, s3_proxy: FaultProxy) -> None:
    data = os.urandom(MIB) * 20
    obstore.put(proxied_store, "big", data, use_multipart=True, chunk_size=6 * MIB)
    obstore.put(proxied_store, "dir/with space/ü", b"")
    assert bytes(obstore.get(proxied_store, "big").bytes()) == data
    assert bytes(obstore.get_range(proxied_store, "big", start=5 * MIB, length=7)) == data[5 * MIB :][:7]
    assert obstore.head(proxied_store, "big")["size"] == len(data)
    assert len(obstore.list(proxied_store).collect()) == 2
    obstore.delete(proxied_store, "big")
    assert [found["path"] for found in obstore.list(proxied_store).collect()] == ["dir/with space/ü"]
    assert s3_proxy.requests == {"PUT": 5, "POST": 3, "GET": 4, "HEAD": 1}
    assert s3_proxy.fired.total() == 0


def test_many_clients_at_once_get_their_own_answers(proxied_store: S3Store) -> None:
    def there_and_back(number: int) -> bool:
        data = b"%d" % number * (number * 1000 + 1)
        obstore.put(proxied_store, f"n{number}", data)
        return bytes(obstore.get(proxied_store, f"n{number}").bytes()) == data

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(there_and_back, range(100)))


def test_conditional_puts_are_refused_through_the_proxy(proxied_store: S3Store) -> None:
    obstore.put(proxied_store, "once", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(proxied_store, "once", b"x" * 5 * MIB, mode="create", use_multipart=False)


def test_latency_holds_a_request_or_its_answer(proxied_store: S3Store, s3_proxy: FaultProxy) -> None:
    obstore.put(proxied_store, "x", b"x")
    for fault in (Latency(request_s=0.3), Latency(answer_s=0.3)):
        with s3_proxy.fault(fault):
            began = time.monotonic()
            obstore.get(proxied_store, "x")
            assert time.monotonic() - began >= 0.3
        assert s3_proxy.fired[fault] == 1


def test_a_throttle_slows_each_direction(proxied_store: S3Store, s3_proxy: FaultProxy) -> None:
    data = os.urandom(MIB)
    up = Throttle(request_bytes_per_second=2 * MIB)
    down = Throttle(answer_bytes_per_second=2 * MIB)
    for fault in (up, down):
        with s3_proxy.fault(fault):
            began = time.monotonic()
            obstore.put(proxied_store, "x", data)
            between = time.monotonic()
            assert bytes(obstore.get(proxied_store, "x").bytes()) == data
            ended = time.monotonic()
        assert (between - began if fault is up else ended - between) >= 0.45
        assert s3_proxy.fired[fault] == 2


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("after_bytes", [0, 1, 200, 3000])
def test_a_request_that_is_cut_leaves_no_object(
    proxied_store: S3Store, s3_store: S3Store, s3_proxy: FaultProxy, after_bytes: int, *, reset: bool
) -> None:
    fault = s3_proxy.add(CutRequest(on=PUT, after_bytes=after_bytes, reset=reset))
    with pytest.raises(BaseError):
        obstore.put(proxied_store, "x", os.urandom(4000))
    assert s3_proxy.fired[fault] == 1
    assert obstore.list(s3_store).collect() == []


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("after_bytes", [0, 10, 100_000])
def test_an_answer_that_is_cut_is_never_taken_for_the_object(
    proxied_store: S3Store, s3_proxy: FaultProxy, after_bytes: int, *, reset: bool
) -> None:
    obstore.put(proxied_store, "x", os.urandom(MIB))
    fault = s3_proxy.add(CutAnswer(on=GET, after_bytes=after_bytes, reset=reset))
    with pytest.raises(BaseError):
        obstore.get(proxied_store, "x").bytes()
    assert s3_proxy.fired[fault] >= 1  # the client asks again for the part that it misses


def test_an_answer_lost_after_the_put_leaves_the_object_written(
    proxied_store: S3Store, s3_store: S3Store, s3_proxy: FaultProxy
) -> None:
    fault = s3_proxy.add(LoseAnswer(on=PUT, times=1))
    with pytest.raises(BaseError):
        obstore.put(proxied_store, "x", b"bytes", mode="create")
    assert s3_proxy.fired[fault] == 1
    assert bytes(obstore.get(s3_store, "x").bytes()) == b"bytes"
    with pytest.raises(AlreadyExistsError):
        obstore.put(proxied_store, "x", b"bytes", mode="create")


@pytest.mark.parametrize("fault", [AnswerError(on=PUT), AnswerError(on=PUT, status=500, code="InternalError")])
def test_an_error_answered_by_the_proxy_never_reaches_the_store(
    proxied_store: S3Store, s3_store: S3Store, s3_proxy: FaultProxy, fault: AnswerError
) -> None:
    with s3_proxy.fault(fault), pytest.raises(BaseError, match=rf"(?s){fault.status} .*<Code>{fault.code}</Code>"):
        obstore.put(proxied_store, "x", os.urandom(MIB))
    assert s3_proxy.fired[fault] == 1
    assert obstore.list(s3_store).collect() == []
    obstore.put(proxied_store, "x", b"bytes")  # and the connection is still good


def test_a_request_may_be_carried_out_and_yet_answered_with_500(
    proxied_store: S3Store, s3_store: S3Store, s3_proxy: FaultProxy
) -> None:
    fault = s3_proxy.add(AnswerError(on=PUT, status=500, code="InternalError", carried_out=True, times=1))
    with pytest.raises(BaseError, match="InternalError"):
        obstore.put(proxied_store, "x", b"bytes")
    assert s3_proxy.fired[fault] == 1
    assert bytes(obstore.get(s3_store, "x").bytes()) == b"bytes"
    assert obstore.head(proxied_store, "x")["size"] == 5


def test_a_client_that_retries_gets_through_a_store_that_is_busy(s3: S3Server, s3_proxy: FaultProxy) -> None:
    patient = S3Store(
        **s3.store_options(endpoint=s3_proxy.endpoint),
        retry_config={"max_retries": 5, "backoff": {"init_backoff": timedelta(milliseconds=10)}},
    )
    busy = s3_proxy.add(AnswerError(on=PUT, retry_after_s=1, after=1, times=2))
    for number in range(3):
        obstore.put(patient, f"n{number}", b"bytes")
    assert s3_proxy.fired[busy] == 2
    assert s3_proxy.requests["PUT"] == 5


@pytest.mark.parametrize("keep_bytes", [0, 1, 500_000, -1])
def test_a_body_that_ends_before_its_length_is_noticed_by_the_client(
    proxied_store: S3Store, s3_proxy: FaultProxy, keep_bytes: int
) -> None:
    obstore.put(proxied_store, "x", os.urandom(MIB))
    fault = s3_proxy.add(TruncateAnswer(on=GET, keep_bytes=keep_bytes))
    with pytest.raises(BaseError):
        obstore.get(proxied_store, "x").bytes()
    assert s3_proxy.fired[fault] >= 1


@pytest.mark.parametrize(("keep_bytes", "kept"), [(0, 0), (1, 1), (500_000, 500_000), (-1, MIB - 1)])
def test_a_body_truncated_with_its_length_is_taken_for_whole(
    proxied_store: S3Store, s3_proxy: FaultProxy, keep_bytes: int, kept: int
) -> None:
    data = os.urandom(MIB)
    obstore.put(proxied_store, "x", data)
    fault = s3_proxy.add(TruncateAnswer(on=GET, keep_bytes=keep_bytes, consistent=True, times=1))
    assert bytes(obstore.get(proxied_store, "x").bytes()) == data[:kept]
    assert s3_proxy.fired[fault] == 1
    assert bytes(obstore.get(proxied_store, "x").bytes()) == data


@pytest.mark.parametrize(("at", "hit"), [(0, 0), (700_000, 700_000), (-1, MIB - 1), (-MIB, 0)])
def test_one_bit_of_the_answer_is_flipped_and_no_other(
    proxied_store: S3Store, s3_proxy: FaultProxy, at: int, hit: int
) -> None:
    data = os.urandom(MIB)
    obstore.put(proxied_store, "x", data)
    fault = s3_proxy.add(FlipAnswerBit(on=GET, at=at, bit=5))
    got = bytes(obstore.get(proxied_store, "x").bytes())
    assert got == data[:hit] + bytes([data[hit] ^ 32]) + data[hit + 1 :]
    assert s3_proxy.fired[fault] == 1


def test_a_bit_flipped_in_a_signed_request_is_refused_by_the_store(
    proxied_store: S3Store, s3_store: S3Store, s3_proxy: FaultProxy
) -> None:
    fault = s3_proxy.add(FlipRequestBit(on=PUT, at=2))
    with pytest.raises(BaseError, match="XAmzContentSHA256Mismatch"):
        obstore.put(proxied_store, "x", b"bytes")
    assert s3_proxy.fired[fault] == 1
    assert obstore.list(s3_store).collect() == []


def test_a_bit_flipped_in_an_unsigned_request_is_stored(s3: S3Server, s3_store: S3Store, s3_proxy: FaultProxy) -> None:
    fault = s3_proxy.add(FlipRequestBit(on=PUT, at=-1))
    unsigned = S3Store(**no_retries(s3.store_options(endpoint=s3_proxy.endpoint)), unsigned_payload=True)
    obstore.put(unsigned, "x", b"bytes")
    assert s3_proxy.fired[fault] == 1
    assert bytes(obstore.get(s3_store, "x").bytes()) == b"byter"


def test_a_fault_beyond_the_end_of_a_short_body_waits_for_a_longer_one(
    proxied_store: S3Store, s3_proxy: FaultProxy
) -> None:
    obstore.put(proxied_store, "short", b"0")
    obstore.put(proxied_store, "long", b"0000")
    flip = s3_proxy.add(FlipAnswerBit(on=GET, at=2, times=1))
    assert bytes(obstore.get(proxied_store, "short").bytes()) == b"0"
    assert s3_proxy.fired[flip] == 0
    assert bytes(obstore.get(proxied_store, "long").bytes()) == b"0010"
    assert s3_proxy.fired[flip] == 1


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_stalled_request_is_never_answered(
    s3: S3Server, s3_store: S3Store, s3_proxy: FaultProxy, *, carried_out: bool
) -> None:
    fault = s3_proxy.add(Stall(on=PUT, times=1, carried_out=carried_out))
    impatient = S3Store(**no_retries(s3.store_options(endpoint=s3_proxy.endpoint), timeout_s=1))
    with pytest.raises(BaseError):
        obstore.put(impatient, "x", b"bytes")
    s3_proxy.wait_for(fault)
    if carried_out:
        # The store may be slower than the client is patient.
        wait_for("the object", lambda: obstore.list(s3_store).collect(), timeout_s=60)
    else:
        assert not obstore.list(s3_store).collect()


def test_a_refusing_proxy_refuses_and_comes_back_on_the_same_port(proxied_store: S3Store, s3_proxy: FaultProxy) -> None:
    obstore.put(proxied_store, "x", b"bytes")
    with s3_proxy.fault(Refuse()) as fault, pytest.raises(BaseError):
        obstore.get(proxied_store, "x")
    assert s3_proxy.fired[fault] == 1
    assert bytes(obstore.get(proxied_store, "x").bytes()) == b"bytes"


def test_a_blackhole_holds_everything_until_it_is_removed(proxied_store: S3Store, s3_proxy: FaultProxy) -> None:
    obstore.put(proxied_store, "x", b"bytes")
    with ThreadPoolExecutor(1) as pool:
        fault = s3_proxy.add(Blackhole())
        asked = pool.submit(lambda: bytes(obstore.get(proxied_store, "x").bytes()))
        s3_proxy.wait_for(fault)
        time.sleep(0.2)
        assert not asked.done()
        s3_proxy.remove(fault)
        assert asked.result(timeout=60) == b"bytes"


@pytest.mark.parametrize(
    ("match", "hits"),
    [
        (HttpMatch(), 5),
        (HttpMatch("PUT"), 2),
        (HttpMatch(path=r"/a/"), 2),
        (HttpMatch("GET", r"/a/1$"), 1),
        (HttpMatch("GET", r"list-type=2"), 1),
        (HttpMatch("DELETE"), 0),
    ],
)
def test_a_fault_hits_the_requests_it_matches_and_no_others(
    proxied_store: S3Store, s3_proxy: FaultProxy, match: HttpMatch, hits: int
) -> None:
    watch = s3_proxy.add(Watch(on=match))
    obstore.put(proxied_store, "a/1", b"1")
    obstore.put(proxied_store, "b/1", b"1")
    obstore.get(proxied_store, "a/1").bytes()
    obstore.get(proxied_store, "b/1").bytes()
    obstore.list(proxied_store).collect()
    assert s3_proxy.fired[watch] == hits


@pytest.mark.parametrize("fault", [LoseAnswer(on=PUT, after=2, times=3), CutRequest(on=PUT, after=2, times=3)])
def test_after_and_times_say_exactly_which_requests_are_hit(
    proxied_store: S3Store, s3_proxy: FaultProxy, fault: ProxyFault
) -> None:
    s3_proxy.add(fault)
    fates = []
    for number in range(8):
        try:
            obstore.put(proxied_store, f"n{number}", b"x")
            fates.append("ok")
        except BaseError:
            fates.append("hit")
    assert fates == ["ok", "ok", "hit", "hit", "hit", "ok", "ok", "ok"]
    assert s3_proxy.fired[fault] == 3


def test_a_server_that_dies_and_comes_back_is_followed(
    s3: S3Server, proxied_store: S3Store, s3_proxy: FaultProxy
) -> None:
    obstore.put(proxied_store, "x", b"bytes")
    s3.kill()
    with pytest.raises(BaseError):
        obstore.get(proxied_store, "x")
    s3.restart()
    assert bytes(obstore.get(proxied_store, "x").bytes()) == b"bytes"
