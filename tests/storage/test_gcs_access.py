"""Google Cloud Storage, as far as its double shows it: log-ins, rights, its limit of mutations, and what is sent."""

from __future__ import annotations

import http.client
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.config import StorageConfig
from maxbrod.errors import AccessDeniedError, MaxbrodError, ObjectExistsError, UnavailableError, UsageError
from maxbrod.sandbox.proxy.faults import AnswerError, HttpMatch
from maxbrod.sandbox.proxy.server import FaultProxy
from maxbrod.storage.stores import open_storage
from support.gcs import RIGHTS, GcsDouble, gcs_double
from support.s3 import loopback_server
from support.storages import delete_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maxbrod.storage.interface import Storage

PUT = HttpMatch("PUT")
CREDENTIALS = ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_BEARER_TOKEN", "GOOGLE_SERVICE_ACCOUNT")


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsDouble]:
    """One of its own, whose rights and limits a test may change, and a machine without credentials."""
    for name in CREDENTIALS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with gcs_double(tmp_path) as started:
        yield started


def opened(double: GcsDouble, *, deadline_s: float = 0.2, **section: Any) -> Storage:
    options = {"gcs": {"endpoint": double.endpoint, **section}, "deadline_s": deadline_s}
    return open_storage(f"{double.url}/some", StorageConfig.model_validate(options))


def refusals(storage: Storage) -> dict[str, MaxbrodError]:
    """What each operation says, of those that fail."""
    said = {}
    acts: dict[str, Callable[[], object]] = {
        "put": lambda: storage.put("x", b"x"),
        "get": lambda: storage.get("x"),
        "head": lambda: storage.head("x"),
        "list": lambda: list(storage.list()),
        "replace": lambda: storage.replace("x", b"y"),
        "create": lambda: write_large(storage),
        "delete": lambda: delete_all(storage, ["x", "big"]),
    }
    for name, act in acts.items():
        try:
            act()
        except MaxbrodError as error:
            said[name] = error
    return said


def write_large(storage: Storage) -> None:
    with storage.create("big") as writer:
        writer.write(bytes(9 << 20))


def test_the_key_of_a_service_account_opens(double: GcsDouble) -> None:
    assert refusals(opened(double, credentials_file=double.key_file)) == {}


def test_a_token_and_the_account_of_a_machine_open(double: GcsDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    host, port = double.address
    monkeypatch.setenv("GCE_METADATA_HOST", f"{host}:{port}")
    assert refusals(opened(double)) == {}
    monkeypatch.delenv("GCE_METADATA_HOST")
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", double.token)
    assert refusals(opened(double)) == {}


@pytest.mark.parametrize("wrong", ["account", "key", "token"])
def test_a_wrong_login_is_refused_at_once_with_a_hint_and_never_shown(
    double: GcsDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    section = {}
    if wrong == "token":
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "not-the-token")
    elif wrong == "account":
        section = {"credentials_file": double.write_key_file(tmp_path / "other.json", client_email="other@project")}
    else:
        other = tmp_path / "other"
        other.mkdir()
        section = {"credentials_file": GcsDouble(other).write_key_file(other / "key.json")}
    said = refusals(opened(double, deadline_s=60, **section))
    assert set(said) == {"put", "get", "head", "list", "replace", "create", "delete"}
    for name, error in said.items():
        assert isinstance(error, AccessDeniedError)
        # The answer to a HEAD has no body that could tell why.
        assert name in {"head", "create"} or "check the keys" in (error.hint or "")
        assert "not-the-token" not in f"{error} {error.as_dict()} {error!r}"


@pytest.mark.parametrize(
    ("right", "lacking"),
    [
        ("storage.objects.create", {"put", "replace", "create"}),
        ("storage.objects.get", {"get", "head", "create"}),
        ("storage.objects.list", {"list"}),
        ("storage.objects.delete", {"replace", "delete"}),
        ("storage.multipartUploads.create", {"create"}),
    ],
)
def test_a_right_that_is_missing_is_named(double: GcsDouble, right: str, lacking: set[str]) -> None:
    opened(double, credentials_file=double.key_file).put("x", b"x")
    double.rights -= {right}
    said = refusals(opened(double, credentials_file=double.key_file))
    said = {name: error for name, error in said.items() if not isinstance(error, ObjectExistsError)}
    assert set(said) == lacking
    for name, error in said.items():
        assert isinstance(error, AccessDeniedError)
        # `create` looks first whether the name is taken.
        assert right in (error.hint or "") or (name, right) == ("create", "storage.objects.get")


def test_credentials_of_the_environment_never_replace_those_of_the_configuration(
    double: GcsDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "of-somebody-else")
    with pytest.raises(UsageError, match="GOOGLE_BEARER_TOKEN") as caught:
        opened(double, credentials_file=double.key_file)
    assert "of-somebody-else" not in str(caught.value.as_dict())


def test_a_store_that_cannot_be_reached_is_told_from_one_that_refuses(double: GcsDouble) -> None:
    with loopback_server(lambda _: None) as (host, port):
        pass
    said = refusals(opened(double, credentials_file=double.key_file, endpoint=f"http://{host}:{port}"))
    assert {type(error) for error in said.values()} == {UnavailableError}
    assert all(f"{host}:{port} refuses connections" in error.message for error in said.values())


def test_a_lost_race_that_comes_as_too_many_requests_is_a_name_that_is_taken(double: GcsDouble) -> None:
    """Google takes one mutation of an object a second: who loses a race for a name is told 429, and not that it is."""
    double.mutation_interval_s = 1.0
    storage = opened(double, credentials_file=double.key_file, deadline_s=60)

    def attempt(number: int) -> int | None:
        try:
            storage.put("once", b"%d" % number)
        except ObjectExistsError:
            return None
        return number

    with ThreadPoolExecutor(4) as pool:
        winners = [number for number in pool.map(attempt, range(4)) if number is not None]
    assert len(winners) == 1
    assert storage.get("once").tobytes() == b"%d" % winners[0]


@pytest.mark.parametrize("carried_out", [False, True])
def test_too_many_requests_are_waited_out_and_our_own_object_is_known(double: GcsDouble, *, carried_out: bool) -> None:
    fault = AnswerError(on=PUT, status=429, code="SlowDown", times=1 if carried_out else 2, carried_out=carried_out)
    with FaultProxy(double.address, protocol="http") as proxy:
        proxy.add(fault)
        opened(double, credentials_file=double.key_file, endpoint=proxy.endpoint, deadline_s=60).put("x", b"mine")
        assert proxy.fired[fault] == fault.times
    assert double.objects["some/x"].data == b"mine"


def test_every_object_is_created_under_a_condition_unless_it_is_replaced_or_comes_in_parts(double: GcsDouble) -> None:
    assert refusals(opened(double, credentials_file=double.key_file)) == {}
    assert double.unconditional == ["some/x", "some/big"]


def test_pages_of_a_listing_are_joined(double: GcsDouble) -> None:
    double.page = 7
    storage = opened(double, credentials_file=double.key_file)
    made = [f"many/{number:02}" for number in range(30)]
    for name in made:
        storage.put(name, b"")
    assert [info.path for info in storage.list("many")] == made


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/maxbrod-test/x?alt=media", {}, 400),
        ("GET", "/maxbrod-test?prefix=x", {}, 400),
        ("PUT", "/maxbrod-test/x", {"If-None-Match": "*"}, 400),
        ("POST", "/maxbrod-test/x?uploads", {"x-goog-if-generation-match": "0"}, 400),
        ("PATCH", "/maxbrod-test/x", {}, 501),
        ("PUT", "/maxbrod-test/x", {"Authorization": "Bearer x"}, 401),
        ("PUT", "/maxbrod-test/x", {"Authorization": ""}, 401),
        ("DELETE", "/maxbrod-test/x?uploadId=none", {}, 404),
    ],
)
def test_the_double_refuses_what_it_does_not_know(
    double: GcsDouble, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    with closing(http.client.HTTPConnection(*double.address, timeout=30)) as connection:
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in {"Authorization": f"Bearer {double.token}", "Content-Length": "0", **headers}.items():
            connection.putheader(name, value)
        connection.endheaders()
        assert connection.getresponse().status == status
    assert (double.objects, double.uploads) == ({}, {})
    double.refused.clear()


def test_the_rights_of_the_page_about_storage_are_those_of_the_double() -> None:
    page = (Path(__file__).parents[2] / "docs" / "storage.md").read_text()
    assert [right for right in sorted(RIGHTS) if f"`{right}`" not in page] == []
