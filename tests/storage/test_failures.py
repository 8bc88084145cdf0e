"""What obstore raises, from a real connection or in the words of servers that are not to be had here."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

import pytest
from obstore.exceptions import GenericError

from maxbrod.config import StorageConfig
from maxbrod.errors import (
    AccessDeniedError,
    ForbiddenError,
    MaxbrodError,
    RefusedError,
    StorageFullError,
    UnavailableError,
    UsageError,
)
from maxbrod.sandbox.security import CA_FILE, write_certificates
from maxbrod.storage.failures import translate
from maxbrod.storage.stores import open_storage
from support.s3 import loopback_server

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from maxbrod.storage.interface import Storage

METADATA = "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1.2ms - "
SIGNED = "Error performing GET https://me.blob.core.windows.net/c/x?sv=2025&sig=geheim in 1ms - "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (METADATA + "HTTP error: error sending request\n\nDebug: HttpError {\n kind: Connect,", AccessDeniedError),
        (METADATA + "HTTP error: error sending request\n\nDebug: HttpError {\n kind: Timeout,", UnavailableError),
        (METADATA + "Server returned non-2xx status code: 503 Service Unavailable: ", UnavailableError),
        (METADATA + "Server returned non-2xx status code: 404 Not Found: ", AccessDeniedError),
        (SIGNED + "Server returned non-2xx status code: 403 Forbidden: geheim", ForbiddenError),
        (SIGNED + "Server returned non-2xx status code: 507 Insufficient Storage: geheim", StorageFullError),
        (SIGNED + "Server returned non-2xx status code: 418 I'm a teapot: geheim", MaxbrodError),
        (SIGNED + "something that nobody has seen before, geheim", MaxbrodError),
    ],
)
def test_the_kind_of_failure_is_found_and_nothing_else_is_passed_on(text: str, expected: type[MaxbrodError]) -> None:
    error = translate(GenericError(text), "get", "az://c/x")
    assert type(error) is expected
    assert error.operation == "get"
    assert "geheim" not in str(error.as_dict())
    assert "http" not in str(error.as_dict())


SENT = (
    "Generic S3 error: Error performing GET https://minio.example:9000/b?sig=geheim in 1ms - HTTP error: error sending "
)
CONNECT = SENT + "request\n\nDebug source:\n HttpError {\n kind: Connect,\n source: "
ANSWERED = "Error performing GET http://minio.example:9000/b?sig=geheim in 1ms - Server returned non-2xx status code: "


@pytest.mark.parametrize(
    ("text", "kind", "message", "hint"),
    [
        (
            CONNECT + '"dns error", "Name or service not known"',
            UnavailableError,
            "minio.example:9000 has no address",
            "endpoint",
        ),
        (
            CONNECT + '"dns error", "Temporary failure in name resolution"',
            UnavailableError,
            "no address",
            "name server",
        ),
        (CONNECT + "kind: ConnectionRefused", UnavailableError, "minio.example:9000 refuses", "endpoint is right"),
        (CONNECT + "InvalidCertificate(\n UnknownIssuer,\n)", UsageError, "not trusted", "storage.ca_file"),
        (CONNECT + "InvalidCertificate(\n Expired,\n)", UsageError, "Expired", "valid now"),
        (CONNECT + "InvalidCertificate(\n NotValidForNameContext {", UsageError, "NotValidForName", "issued for"),
        (CONNECT + "InvalidMessage(\n InvalidContentType,", UsageError, "does not speak TLS", "http://"),
        (
            ANSWERED + "400 Bad Request: Client sent an HTTP request to an HTTPS server.",
            UsageError,
            "TLS only",
            "https://",
        ),
        (
            ANSWERED
            + "400 Bad Request: <Code>InvalidRequest</Code><Message>Content-MD5 OR x-amz-checksum- HTTP header",
            RefusedError,
            "checksum",
            "storage.lock",
        ),
        (ANSWERED + "403 Forbidden: <Code>SignatureDoesNotMatch</Code>", AccessDeniedError, "secret key", "keys"),
        (ANSWERED + "403 Forbidden: <Code>InvalidAccessKeyId</Code>", AccessDeniedError, "access key", "keys"),
        (ANSWERED + "403 Forbidden: <Code>AuthenticationFailed</Code>", AccessDeniedError, "SAS token", "keys"),
        (ANSWERED + "403 Forbidden: <Code>RequestTimeTooSkewed</Code>", AccessDeniedError, "clock", "set it"),
        (ANSWERED + "403 Forbidden: <Code>AccessDenied</Code>", ForbiddenError, "403", "s3:GetObject on bucket"),
        (ANSWERED + "404 Not Found: <Code>NoSuchBucket</Code>", UsageError, "no bucket bucket", "create it"),
        (ANSWERED + "404 Not Found: <Code>ContainerNotFound</Code>", UsageError, "no bucket bucket", "create it"),
        (
            ANSWERED + "400 : <Code>AuthorizationHeaderMalformed</Code><Region>eu-west-3</Region>",
            UsageError,
            "another region",
            "s3.region to eu-west-3",
        ),
        (
            "Generic S3 error: Received redirect without LOCATION, this normally",
            UsageError,
            "another region",
            "s3.region",
        ),
    ],
)
def test_each_mistake_has_its_own_message_and_hint(
    text: str, kind: type[MaxbrodError], message: str, hint: str
) -> None:
    error = translate(GenericError(text), "get", "s3://bucket/x")
    assert type(error) is kind
    assert message in error.message
    assert hint in (error.hint or "")
    assert error.retryable is (kind is UnavailableError)
    assert "geheim" not in str(error.as_dict())
    assert "Generic" not in error.message


def opened(endpoint: str, **options: Any) -> Storage:
    keys = {"access_key_id": "a", "secret_access_key": "b", "region": "r"}
    return open_storage(
        "s3://bucket",
        StorageConfig.model_validate({"s3": {"endpoint": endpoint, **keys}, "deadline_s": 0.2, **options}),
    )


def test_what_a_real_connection_fails_with_is_understood(tmp_path: Path) -> None:
    write_certificates(tmp_path / "tls", [])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls" / "server.pem")

    def secured(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as stream:
            stream.recv(1)

    def plain(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    with loopback_server(secured) as (_, tls_port), loopback_server(plain) as (_, plain_port):
        for endpoint, options, hint in (
            (f"https://127.0.0.1:{tls_port}", {}, "storage.ca_file"),
            (f"https://[::ffff:127.0.0.1]:{tls_port}", {"ca_file": tmp_path / "tls" / CA_FILE}, "issued for"),
            (f"https://127.0.0.1:{plain_port}", {}, "http://"),
        ):
            with pytest.raises(UsageError) as caught:
                opened(endpoint, **options).get("x")
            assert hint in (caught.value.hint or "")
    with pytest.raises(UnavailableError, match=f"127.0.0.1:{plain_port} refuses connections"):
        opened(f"http://127.0.0.1:{plain_port}").get("x")
