"""Log-ins to Azure: by key, by signature, by token; and each way in which they fail."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import pytest

from maxbrod.config import StorageConfig
from maxbrod.errors import AccessDeniedError, MaxbrodError, ObjectExistsError, UnavailableError, UsageError
from maxbrod.sandbox.azure import AzureServer
from maxbrod.sandbox.process import HOST
from maxbrod.sandbox.security import CA_FILE, write_certificates
from maxbrod.storage.settings import settings_of
from maxbrod.storage.stores import open_storage
from maxbrod.storage.urls import parse_url
from support.s3 import loopback_server
from support.storages import delete_all

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from maxbrod.storage.interface import Storage

SOON = timedelta(hours=1)
TENANT = "7a1b5f1e-0000-4000-8000-00000000feed"


def opened(server: AzureServer, prefix: str, *, deadline_s: float = 0.2, **section: Any) -> Storage:
    options = {"azure": {"account": server.access_key, "endpoint": server.endpoint, **section}}
    return open_storage(f"{server.url}/{prefix}", StorageConfig.model_validate({**options, "deadline_s": deadline_s}))


def acts(storage: Storage) -> dict[str, Callable[[], object]]:
    return {
        "put": lambda: storage.put("x", b"x"),
        "get": lambda: storage.get("x"),
        "list": lambda: list(storage.list()),
        "delete": lambda: delete_all(storage, ["x"]),
    }


def refusals(storage: Storage) -> dict[str, MaxbrodError]:
    """What each act says, of those that fail."""
    said = {}
    for name, act in acts(storage).items():
        try:
            act()
        except MaxbrodError as error:
            said[name] = error
    return said


def signed(server: AzureServer, permissions: str, lasts: timedelta = SOON) -> str:
    return server.sas(permissions, until=datetime.now(UTC) + lasts)


def test_a_signature_opens_what_it_was_made_for(azurite: AzureServer) -> None:
    storage = opened(azurite, "sas", sas_token=signed(azurite, "rcwdl"))
    storage.put("x", b"x")
    with pytest.raises(ObjectExistsError):
        storage.put("x", b"y")
    with storage.create("big") as writer:
        writer.write(bytes(20 << 20))
    assert [info.path for info in storage.list()] == ["big", "x"]
    assert bytes(storage.get("x")) == b"x"
    storage.delete(["x", "big"])
    assert list(storage.list()) == []


@pytest.mark.parametrize(
    ("permissions", "lacking"),
    [("rl", {"put", "delete"}), ("cw", {"get", "list", "delete"}), ("rcwl", {"delete"}), ("rcwd", {"list"})],
)
def test_a_right_that_a_signature_lacks_is_named(azurite: AzureServer, permissions: str, lacking: set[str]) -> None:
    opened(azurite, f"lacks-{permissions}", account_key=azurite.secret_key).put("x", b"x")
    said = refusals(opened(azurite, f"lacks-{permissions}", sas_token=signed(azurite, permissions)))
    said = {name: error for name, error in said.items() if not isinstance(error, ObjectExistsError)}
    assert set(said) == lacking
    for name, error in said.items():
        assert isinstance(error, AccessDeniedError)
        right = {"put": "blobs/write", "get": "blobs/read", "list": "blobs/read", "delete": "blobs/delete"}[name]
        assert right in (error.hint or "")
        assert azurite.bucket in (error.hint or "")


@pytest.mark.parametrize("login", ["wrong key", "expired signature", "forged signature", "no such account"])
def test_a_wrong_login_is_refused_at_once_with_a_hint_and_never_shown(azurite: AzureServer, login: str) -> None:
    wrong = base64.b64encode(b"not-the-key").decode()
    expired = signed(azurite, "rcwdl", -SOON)
    section = {
        "wrong key": {"account_key": wrong},
        "expired signature": {"sas_token": expired},
        "forged signature": {"sas_token": signed(azurite, "rl").replace("sp=rl", "sp=rcwdl")},
        "no such account": {"account": "nobody", "account_key": azurite.secret_key},
    }[login]
    said = refusals(opened(azurite, "x", deadline_s=60, **section))
    assert set(said) == {"put", "get", "list", "delete"}
    for error in said.values():
        assert isinstance(error, AccessDeniedError)
        assert "key" in (error.hint or "")
        shown = f"{error} {error.as_dict()} {error!r}"
        for secret in (azurite.secret_key, wrong, expired, "sig="):
            assert secret not in shown


def test_a_store_that_cannot_be_reached_is_told_from_one_that_refuses(azurite: AzureServer) -> None:
    with loopback_server(lambda _: None) as (host, port):
        pass
    said = refusals(
        opened(azurite, "x", account_key=azurite.secret_key, endpoint=f"http://{host}:{port}/{azurite.access_key}")
    )
    assert {type(error) for error in said.values()} == {UnavailableError}
    assert all(f"{host}:{port} refuses connections" in error.message for error in said.values())


def test_the_configuration_comes_before_the_environment(azurite: AzureServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_TOKEN", "of-somebody-else")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(b"of-somebody-else").decode())
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "somebody")
    logins: list[dict[str, Any]] = [{"sas_token": signed(azurite, "rcwdl")}, {"account_key": azurite.secret_key}]
    for login in logins:
        assert refusals(opened(azurite, "before", **login)) == {}


@pytest.mark.parametrize(
    "names",
    [("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"), ("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY")],
)
def test_the_environment_is_enough(
    azurite: AzureServer, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    monkeypatch.setenv(names[0], azurite.access_key)
    monkeypatch.setenv(names[1], azurite.secret_key)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", azurite.endpoint)
    assert refusals(open_storage(f"{azurite.url}/environment", StorageConfig(deadline_s=0.2))) == {}


def test_an_account_that_nobody_names_and_two_logins_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="nothing names its storage account") as caught:
        open_storage("az://container")
    assert "azure.account" in (caught.value.hint or "")
    both = {"azure": {"account": "me", "account_key": "a2V5", "sas_token": "sig=geheim"}}
    with pytest.raises(UsageError, match="exclude each other") as caught:
        settings_of(parse_url("az://container"), StorageConfig.model_validate(both))
    assert "geheim" not in str(caught.value.as_dict())


class TokenAzurite(AzureServer):
    """Azurite as it takes tokens: over TLS only. It checks all of a token but its signature."""

    def _prepare(self) -> None:
        write_certificates(self.directory / "tls", [])

    @property
    def ca_file(self) -> Path:
        return self.directory / "tls" / CA_FILE

    @property
    def endpoint(self) -> str:
        return self.through(f"https://{HOST}:{self.port}")

    def _arguments(self) -> list[str]:
        pem = str(self.directory / "tls" / "server.pem")
        return [*super()._arguments(), "--oauth", "basic", "--cert", pem, "--key", pem]

    def _connection(self) -> http.client.HTTPConnection:
        context = ssl.create_default_context(cafile=self.ca_file)
        return http.client.HTTPSConnection(HOST, self.port, timeout=5, context=context)

    def token(self, *, lasts_s: int = 3600, audience: str = "https://storage.azure.com") -> str:
        now = int(time.time())
        claims = {"aud": audience, "iss": f"https://sts.windows.net/{TENANT}/", "iat": now - 60, "nbf": now - 60}
        parts = ({"alg": "none", "typ": "JWT"}, {**claims, "exp": now + lasts_s})
        encoded = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
        return ".".join([*encoded, "signature"])


@pytest.fixture(scope="module")
def token_azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenAzurite]:
    with TokenAzurite.start(tmp_path_factory.mktemp("azurite") / "azure") as server:
        yield server


def over_tls(server: TokenAzurite) -> Storage:
    return open_storage(
        f"{server.url}/token",
        StorageConfig.model_validate(
            {
                "azure": {"account": server.access_key, "endpoint": server.endpoint},
                "ca_file": server.ca_file,
                "deadline_s": 0.2,
            }
        ),
    )


def test_a_token_opens_and_one_that_is_wrong_is_refused(
    token_azurite: TokenAzurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_TOKEN", token_azurite.token())
    assert refusals(over_tls(token_azurite)) == {}
    for wrong in (token_azurite.token(lasts_s=-10), token_azurite.token(audience="https://graph.microsoft.com")):
        monkeypatch.setenv("AZURE_STORAGE_TOKEN", wrong)
        said = refusals(over_tls(token_azurite))
        assert set(said) == {"put", "get", "list", "delete"}
        assert {type(error) for error in said.values()} == {AccessDeniedError}
        assert all(wrong not in str(error.as_dict()) for error in said.values())


@pytest.mark.parametrize("secret", ["the-secret", "wrong"])
def test_a_service_principal_gets_its_token_from_the_authority(
    token_azurite: TokenAzurite, monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    """The client takes an authority over TLS only, as it should: its answer is a credential."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(token_azurite.directory / "tls" / "server.pem")
    asked: list[tuple[str, dict[str, list[str]]]] = []

    def authority(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as stream:
            path, form = read_form(stream)
            asked.append((path, form))
            right = form["client_secret"] == ["the-secret"]
            body = {"access_token": token_azurite.token(), "expires_in": 3600} if right else {"error": "invalid_client"}
            data = json.dumps(body).encode()
            status = b"200 OK" if right else b"401 Unauthorized"
            stream.sendall(
                b"HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (status, len(data)) + data
            )

    with loopback_server(authority) as (host, port):
        monkeypatch.setenv("AZURE_AUTHORITY_HOST", f"https://{host}:{port}")
        monkeypatch.setenv("AZURE_TENANT_ID", TENANT)
        monkeypatch.setenv("AZURE_CLIENT_ID", "the-client")
        monkeypatch.setenv("AZURE_CLIENT_SECRET", secret)
        said = refusals(over_tls(token_azurite))
    assert asked[0][0] == f"/{TENANT}/oauth2/v2.0/token"
    assert asked[0][1]["scope"] == ["https://storage.azure.com/.default"]
    if secret == "the-secret":
        assert said == {}
        return
    assert {type(error) for error in said.values()} == {AccessDeniedError}
    for error in said.values():
        assert "logging in for a token failed" in error.message
        assert secret not in str(error.as_dict())


def read_form(stream: ssl.SSLSocket) -> tuple[str, dict[str, list[str]]]:
    """The path of one request, and the fields of its body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += stream.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    size = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    while len(body) < size:
        body += stream.recv(65536)
    return head.split(b" ")[1].decode(), parse_qs(body.decode())
