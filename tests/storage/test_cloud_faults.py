"""A store that fails: what happened is found out, retries end, and nothing is taken for what it is not.

S3 meets every fault; Azure and Google those whose answers or requests differ from its own.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from maxbrod.errors import (
    AccessDeniedError,
    MaxbrodError,
    ObjectExistsError,
    RefusedError,
    TruncatedDataError,
    UnavailableError,
    UsageError,
)
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
    TruncateAnswer,
    Watch,
)
from maxbrod.storage.stores import open_storage, probe_conditional_puts
from support.clouds import KINDS, Cloud
from support.storages import delete_all, s3_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from maxbrod.sandbox.proxy.server import FaultProxy
    from maxbrod.sandbox.s3 import LyingS3Server, S3Server
    from maxbrod.storage.interface import Storage

pytestmark = pytest.mark.usefixtures("no_proxy_thread_left")

MIB = 1024 * 1024
PUT = HttpMatch("PUT")
GET = HttpMatch("GET")
COMPLETE = HttpMatch("POST", r"uploadId=")

PASSING: list[ProxyFault] = [
    AnswerError(status=500, code="InternalError", times=2),
    AnswerError(status=503, times=2),
    AnswerError(status=429, code="TooManyRequests", times=1),
    Stall(times=1),
    CutRequest(after_bytes=0, times=1),
    CutRequest(after_bytes=100, times=1, reset=True),
    CutAnswer(after_bytes=0, times=1),
    CutAnswer(after_bytes=20, times=1, reset=True),
    LoseAnswer(times=1),
    AnswerError(status=500, code="InternalError", carried_out=True, times=1),
]
ANSWERED = AnswerError | LoseAnswer
LASTING: list[ProxyFault] = [
    AnswerError(status=500, code="InternalError"),
    AnswerError(status=503),
    Stall(),
    CutAnswer(),
    Refuse(),
    Blackhole(),
]
OPERATIONS: dict[str, Callable[[Storage], object]] = {
    "put": lambda storage: storage.put("new", b"new"),
    "get": lambda storage: storage.get("old"),
    "get_range": lambda storage: storage.get_range("old", 1, 2),
    "head": lambda storage: storage.head("old"),
    "list": lambda storage: list(storage.list()),
    "delete": lambda storage: delete_all(storage, ["old"]),
}
CHANGES = {"put", "delete"}


def names(storage: Storage) -> list[str]:
    return [info.path for info in storage.list()]


@pytest.mark.parametrize(
    ("cloud", "fault"),
    [
        (kind, fault)
        for kind in KINDS
        for fault in PASSING
        if kind == "s3" or isinstance(fault, AnswerError | LoseAnswer)
    ],
    indirect=["cloud"],
    ids=repr,
)
def test_what_passes_is_waited_out(
    proxied_storage: Storage, direct_storage: Storage, cloud_proxy: FaultProxy, fault: ProxyFault
) -> None:
    direct_storage.put("old", b"old!")
    for operation, act in OPERATIONS.items():
        expected = act(direct_storage) if operation not in CHANGES else None
        with cloud_proxy.fault(fault):
            assert act(proxied_storage) == expected
        assert cloud_proxy.fired[fault] == fault.times, operation
    assert names(direct_storage) == ["new"]


@pytest.mark.parametrize(
    ("cloud", "fault"),
    [(kind, fault) for kind in KINDS for fault in LASTING if kind == "s3" or fault == AnswerError(status=503)],
    indirect=["cloud"],
    ids=repr,
)
def test_what_lasts_ends_in_an_error_that_a_retry_may_help_and_never_hangs(
    cloud: Cloud, cloud_proxy: FaultProxy, fault: ProxyFault
) -> None:
    storage = cloud.open(endpoint=cloud_proxy.endpoint, request_timeout_s=0.3, deadline_s=0.4)
    with cloud_proxy.fault(fault):
        for act in OPERATIONS.values():
            began = time.monotonic()
            with pytest.raises(UnavailableError) as caught:
                act(storage)
            # The deadline, and the request under way at that moment; the rest is for a busy machine.
            assert time.monotonic() - began < 60
            assert caught.value.operation
            assert caught.value.hint


@pytest.mark.parametrize("carried", [LoseAnswer(on=PUT, times=1), Stall(on=PUT, times=1, carried_out=True)], ids=repr)
def test_a_put_whose_answer_was_lost_knows_its_own_object(
    proxied_storage: Storage, direct_storage: Storage, cloud_proxy: FaultProxy, carried: ProxyFault
) -> None:
    fault = cloud_proxy.add(carried)
    puts = cloud_proxy.add(Watch(on=PUT))
    proxied_storage.put("x", b"mine")
    assert (cloud_proxy.fired[fault], cloud_proxy.fired[puts]) == (1, 2)
    assert bytes(direct_storage.get("x")) == b"mine"


@pytest.mark.parametrize("theirs", [b"theirs", b"mine"])
def test_a_put_that_failed_before_somebody_else_put_is_refused(
    proxied_storage: Storage, direct_storage: Storage, cloud_proxy: FaultProxy, theirs: bytes
) -> None:
    """Equal bytes are no proof: two writers who both believe that they were first is what a lock must prevent."""
    direct_storage.put("x", theirs)
    fault = cloud_proxy.add(AnswerError(on=PUT, times=1))
    with pytest.raises(ObjectExistsError):
        proxied_storage.put("x", b"mine")
    assert cloud_proxy.fired[fault] == 1
    assert bytes(direct_storage.get("x")) == theirs


@pytest.mark.parametrize("cloud", ["s3"], indirect=True)  # the others check nothing that obstore sends
def test_a_flipped_bit_on_the_way_in_is_noticed_by_the_store(
    proxied_storage: Storage, direct_storage: Storage, cloud_proxy: FaultProxy
) -> None:
    fault = cloud_proxy.add(FlipRequestBit(on=PUT, at=3, times=1))
    proxied_storage.put("x", b"0123456789")
    assert cloud_proxy.fired[fault] == 1
    assert bytes(direct_storage.get("x")) == b"0123456789"


@pytest.mark.parametrize("consistent", [False, True])
def test_a_truncated_answer_is_asked_for_again(
    proxied_storage: Storage, cloud_proxy: FaultProxy, *, consistent: bool
) -> None:
    proxied_storage.put("x", b"0123456789")
    whole, part = partial(proxied_storage.get, "x", size=10), partial(proxied_storage.get_range, "x", 0, 10)
    for read in (whole, part):
        fault = TruncateAnswer(on=GET, keep_bytes=4, consistent=consistent, times=1)
        with cloud_proxy.fault(fault):
            assert bytes(read()) == b"0123456789"
            assert cloud_proxy.fired[fault] >= 1


def test_an_answer_that_stays_too_short_is_an_error(hasty_storage: Storage, cloud_proxy: FaultProxy) -> None:
    hasty_storage.put("x", b"0123456789")
    cloud_proxy.add(TruncateAnswer(on=GET, keep_bytes=4, consistent=True))
    with pytest.raises(TruncatedDataError, match="4 bytes where 10"):
        hasty_storage.get("x", size=10)
    with pytest.raises(TruncatedDataError, match="4 bytes where 5"):
        hasty_storage.get_range("x", 2, 5)


CONFLICTS = ["BlobAlreadyExists", "BlobImmutableDueToPolicy", "BlobImmutableDueToLegalHold"]


@pytest.mark.parametrize("cloud", ["azure"], indirect=True)
@pytest.mark.parametrize(
    "fault",
    [
        AnswerError(status=412, code="ConditionNotMet"),
        AnswerError(status=403, code="UnauthorizedBlobOverwrite"),
        *(AnswerError(status=409, code=code) for code in CONFLICTS),
    ],
    ids=repr,
)
def test_every_word_of_azure_for_a_name_that_is_taken_is_understood(
    proxied_storage: Storage, cloud_proxy: FaultProxy, fault: AnswerError
) -> None:
    with cloud_proxy.fault(fault), pytest.raises(ObjectExistsError):
        proxied_storage.put("x", b"x")


@pytest.mark.parametrize("cloud", ["azure"], indirect=True)
def test_a_conflict_about_something_else_is_not_taken_for_a_name_that_is_taken(
    proxied_storage: Storage, cloud_proxy: FaultProxy
) -> None:
    other = AnswerError(status=409, code="BlockCountExceedsLimit")
    with cloud_proxy.fault(other), pytest.raises(MaxbrodError, match="409 BlockCountExceedsLimit") as caught:
        proxied_storage.put("x", b"x")
    assert type(caught.value) is MaxbrodError
    immutable = AnswerError(status=409, code="BlobImmutableDueToPolicy")
    with cloud_proxy.fault(immutable), pytest.raises(AccessDeniedError, match="a policy or a legal hold"):
        proxied_storage.replace("x", b"x")


def test_a_flipped_bit_on_the_way_out_is_left_to_the_digests_of_callers(
    proxied_storage: Storage, cloud_proxy: FaultProxy
) -> None:
    """Not a promise, but the reason for one that callers make."""
    proxied_storage.put("x", b"0123456789")
    cloud_proxy.add(FlipAnswerBit(on=GET, at=0))
    assert bytes(proxied_storage.get("x", size=10)) == b"1123456789"


def test_a_store_that_ignores_conditions_is_found_and_left_clean(lying_s3: LyingS3Server) -> None:
    storage = open_storage(lying_s3.url, s3_options(lying_s3))
    assert not probe_conditional_puts(storage)
    assert names(storage) == []


def test_the_probe_is_not_fooled_by_lost_answers(proxied_storage: Storage, cloud_proxy: FaultProxy) -> None:
    cloud_proxy.add(LoseAnswer(on=PUT, times=1))
    assert probe_conditional_puts(proxied_storage)
    cloud_proxy.add(LoseAnswer(on=PUT, times=1, after=1))
    assert probe_conditional_puts(proxied_storage)
    assert names(proxied_storage) == []


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"secret_access_key": "not-the-secret-key"}, AccessDeniedError),
        ({"access_key_id": "nobody", "secret_access_key": "not-the-secret-key"}, AccessDeniedError),
    ],
)
def test_wrong_keys_are_refused_at_once_with_a_hint_and_never_shown(
    s3: S3Server, section: dict[str, str], expected: type[Exception]
) -> None:
    storage = open_storage(s3.url, s3_options(s3, s3=section))
    for act in (lambda: storage.put("x", b"x"), lambda: storage.get("x"), lambda: list(storage.list())):
        with pytest.raises(expected) as caught:
            act()
        error = caught.value
        assert isinstance(error, AccessDeniedError)
        assert "key" in (error.hint or "")
        assert error.__cause__ is None
        shown = f"{error} {error.as_dict()} {error!r} {storage!r} {vars(storage)!r}"
        for secret in (s3.access_key, s3.secret_key, "not-the-secret-key", "nobody", "Signature="):
            assert secret not in shown


def test_a_bucket_that_is_not_there_is_the_users_mistake(cloud: Cloud) -> None:
    scheme = cloud.url.partition("://")[0]
    storage = open_storage(f"{scheme}://no-such-bucket/x", cloud.config())
    acts: list[Callable[[], object]] = [lambda: storage.put("x", b"x"), lambda: storage.get("x")]
    acts += [lambda: list(storage.list()), lambda: storage.delete(["x", "y"])]
    for act in acts:
        with pytest.raises(UsageError, match=r"there is no (bucket|container) no-such-bucket") as caught:
            act()
        assert "never creates" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("cloud", "fault", "expected", "hint"),
    [
        ("s3", AnswerError(status=403, code="AccessDenied"), AccessDeniedError, "s3:GetObject on maxbrod-test"),
        ("s3", AnswerError(status=403, code="InvalidObjectState"), AccessDeniedError, "have S3 restore it"),
        ("s3", AnswerError(status=400, code="ExpiredToken"), AccessDeniedError, "get a new one"),
        ("s3", AnswerError(status=403, code="RequestTimeTooSkewed"), AccessDeniedError, "set it"),
        ("s3", AnswerError(status=501, code="NotImplemented"), RefusedError, "another kind"),
        ("s3", AnswerError(status=400, code="AuthorizationHeaderMalformed"), UsageError, "region"),
        ("azure", AnswerError(status=403, code="AuthorizationPermissionMismatch"), AccessDeniedError, "blobs/read"),
        ("azure", AnswerError(status=403, code="KeyBasedAuthenticationNotPermitted"), AccessDeniedError, "identity"),
        ("azure", AnswerError(status=401, code="InvalidAuthenticationInfo"), AccessDeniedError, "get a new one"),
        ("azure", AnswerError(status=409, code="BlobArchived"), AccessDeniedError, "rehydrate"),
        ("azure", AnswerError(status=409, code="ContainerBeingDeleted"), UsageError, "create it"),
        ("gcs", AnswerError(status=403, code="AccessDenied"), AccessDeniedError, "storage.objects.get on maxbrod-test"),
        ("gcs", AnswerError(status=401, code="AuthenticationRequired"), AccessDeniedError, "check the keys"),
    ],
    indirect=["cloud"],
    ids=repr,
)
def test_what_no_retry_can_help_is_said_at_once(
    proxied_storage: Storage, cloud_proxy: FaultProxy, fault: AnswerError, expected: type[Exception], hint: str
) -> None:
    with cloud_proxy.fault(fault):
        with pytest.raises(expected) as caught:
            proxied_storage.get("x")
        assert cloud_proxy.fired[fault] == 1
    assert hint in str(getattr(caught.value, "hint", ""))


def test_a_slow_store_is_not_a_dead_one(proxied_storage: Storage, cloud_proxy: FaultProxy) -> None:
    cloud_proxy.add(Latency(answer_s=0.3))
    proxied_storage.put("x", b"x")
    assert bytes(proxied_storage.get("x")) == b"x"
