"""URLs and options: what is meant is what the store is sent, and what cannot be meant is refused."""

from __future__ import annotations

import base64
import hashlib
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from maxbrod.config import StorageConfig, load_config
from maxbrod.errors import UnavailableError, UsageError
from maxbrod.storage.settings import settings_of
from maxbrod.storage.stores import open_clients, open_storage
from maxbrod.storage.urls import Location, parse_url
from support.s3 import loopback_server

if TYPE_CHECKING:
    import socket
    from pathlib import Path

MIB = 1024 * 1024
KEYS = {"access_key_id": "the-access-key", "secret_access_key": "the-secret-key", "session_token": "the-token"}
CUSTOMER_KEY = base64.b64encode(b"k" * 32).decode()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("/a/b", Location(scheme="file", bucket="", prefix="/a/b")),
        ("/a/with space%20/", Location(scheme="file", bucket="", prefix="/a/with space%20")),
        ("file:///a/with%20space", Location(scheme="file", bucket="", prefix="/a/with space")),
        ("file://localhost/a", Location(scheme="file", bucket="", prefix="/a")),
        ("s3://bucket", Location(scheme="s3", bucket="bucket", prefix="")),
        ("s3://bucket/", Location(scheme="s3", bucket="bucket", prefix="")),
        ("S3://bucket/a/b/", Location(scheme="s3", bucket="bucket", prefix="a/b")),
        ("gs://bucket/a", Location(scheme="gs", bucket="bucket", prefix="a")),
        ("az://container/a", Location(scheme="az", bucket="container", prefix="a")),
        ("memory://x", Location(scheme="memory", bucket="x", prefix="")),
    ],
)
def test_urls_are_taken_apart(url: str, expected: Location) -> None:
    assert parse_url(url) == expected
    assert parse_url(expected.url) == expected


def test_a_relative_path_counts_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage = open_storage("some/archive")
    monkeypatch.chdir("/")
    storage.put("x", b"x")
    assert (tmp_path / "some" / "archive" / "x").read_bytes() == b"x"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "  ",
        "a\0b",
        "http://host/x",
        "ftp://host/x",
        "s3://",
        "s3:///x",
        "s3://bucket/../x",
        "s3://bucket//x",
        "s3://key:geheim@bucket/x",
        "s3://bucket/x?secret=geheim",
        "az://container/x?sig=geheim",
        "file://host/x",
        "file:///x?geheim",
        "file://",
        "file:///a%00b",
        "memory://..",
        "memory://x/../../y",
    ],
)
def test_urls_that_cannot_be_right_are_refused_and_their_secrets_not_repeated(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_storage(url)
    assert "geheim" not in f"{caught.value} {caught.value.as_dict()}"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ({"access_key_id": "a"}, "belong together"),
        ({"session_token": "geheim"}, "session_token needs"),
        ({"storage_class": "COLD"}, "STANDARD_IA"),
        ({"encryption": "rot13"}, "aws:kms"),
        ({"kms_key_id": "k"}, "need encryption aws:kms"),
        ({"encryption": "AES256", "bucket_key": True}, "need encryption aws:kms"),
        ({"encryption": "sse-c"}, "belong together"),
        ({"encryption": "AES256", "customer_key": "geheim"}, "belong together"),
        ({"encryption": "aws:kms", "encryption_context": {"a": "b"}}, "cannot send an encryption context"),
        ({"regoin": "eu-west-1"}, "Extra inputs"),
    ],
)
def test_options_that_cannot_be_right_are_refused(section: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint) as caught:
        StorageConfig.model_validate({"s3": section})
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("url", ["/tmp/x", "memory://x", "gs://b", "az://c"])
def test_options_of_another_cloud_are_refused_not_ignored(url: str) -> None:
    with pytest.raises(UsageError, match="options in s3"):
        open_storage(url, StorageConfig.model_validate({"s3": {"encryption": "AES256"}}))


def test_clouds_that_cannot_be_run_here_open_with_their_options(tmp_path: Path) -> None:
    azure = {"account": "me", "account_key": base64.b64encode(b"geheim").decode()}
    storage = open_storage("az://container/a", StorageConfig.model_validate({"azure": azure}))
    assert repr(storage) == "RemoteStorage(az://container/a)"
    clients = open_clients(parse_url("gs://bucket/a"), StorageConfig())
    assert repr(clients.once) == 'GCSStore(bucket="bucket", prefix="a")'
    with pytest.raises(UsageError, match="cannot be opened"):
        open_storage("gs://b", StorageConfig.model_validate({"gcs": {"credentials_file": tmp_path / "none"}}))


@pytest.mark.parametrize("account_key", ["!geheim!", "ge=heim"])
def test_an_option_that_the_client_refuses_is_not_repeated(account_key: str) -> None:
    options = StorageConfig.model_validate({"azure": {"account": "me", "account_key": account_key}})
    with pytest.raises(UsageError, match="cannot be opened") as caught:
        open_storage("az://container", options)
    assert caught.value.__suppress_context__
    assert account_key not in f"{caught.value} {caught.value.as_dict()}"


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.pem"):
        open_storage("s3://bucket", StorageConfig(ca_file=tmp_path / "none.pem"))
    (tmp_path / "junk.pem").write_text("junk")
    with pytest.raises(UsageError, match="cannot be opened"):
        open_storage("s3://bucket", StorageConfig(ca_file=tmp_path / "junk.pem"))


def test_options_reach_a_spark_task_and_hide_their_secrets() -> None:
    options = StorageConfig.model_validate({"s3": KEYS, "azure": {"sas_token": "the-sas"}})
    assert pickle.loads(pickle.dumps(options)) == options
    for secret in (*KEYS.values(), "the-sas"):
        assert secret not in f"{options!r} {options} {options.model_dump()} {options.model_dump_json()}"


def test_the_configuration_file_has_a_place_for_them(tmp_path: Path) -> None:
    file = tmp_path / "maxbrod.yaml"
    file.write_text("storage: {s3: {region: eu-west-1, access_key_id: a, secret_access_key: '${S}'}, deadline_s: 5}")
    storage = load_config(file, {"S": "geheim"}).storage
    assert (storage.s3.region, storage.deadline_s) == ("eu-west-1", 5)
    assert storage.s3.secret_access_key is not None
    assert storage.s3.secret_access_key.get_secret_value() == "geheim"


class Recorder:
    """An S3 that reads what it is sent, refuses it, and remembers the heads of requests."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, connection: socket.socket) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = connection.recv(65536)
            if not piece:
                return
            data += piece
        with self._lock:
            self.heads.append(data.partition(b"\r\n\r\n")[0].decode().lower())
        status = b"404" if data.startswith(b"HEAD") else b"503"
        connection.sendall(b"HTTP/1.1 " + status + b" no\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")

    def first(self, line: str) -> str:
        return next(head for head in self.heads if head.startswith(line))


def sent(section: dict[str, Any], *, size: int = 3) -> Recorder:
    """What writing so many bytes sends with these options."""
    recorder = Recorder()
    with loopback_server(recorder) as (host, port):
        section = {"endpoint": f"http://{host}:{port}", **section}
        options = StorageConfig.model_validate({"s3": section, "deadline_s": 0, "request_timeout_s": 5})
        with pytest.raises(UnavailableError) as caught, open_storage("s3://bucket/prefix", options).create("x") as file:
            file.write(bytes(size))
        for secret in KEYS.values():
            assert secret not in str(caught.value.as_dict())
    return recorder


def test_keys_and_region_are_the_given_ones() -> None:
    head = sent({**KEYS, "region": "eu-west-9"}).first("put /bucket/prefix/x ")
    assert "credential=the-access-key/" in head
    assert "/eu-west-9/s3/aws4_request" in head
    assert "x-amz-security-token: the-token" in head
    assert "if-none-match: *" in head


def test_without_path_style_the_bucket_is_part_of_the_host() -> None:
    section = {"endpoint": "https://s3.example.com:9000", "path_style": False}
    settings = settings_of(parse_url("s3://bucket/a"), StorageConfig.model_validate({"s3": section}))
    assert settings == {"endpoint": "https://bucket.s3.example.com:9000", "virtual_hosted_style_request": True}


def test_without_keys_those_of_the_environment_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "env-access-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "env-secret-key")
    monkeypatch.setenv("AWS_REGION", "eu-west-8")
    head = sent({}).first("put ")
    assert "credential=env-access-key/" in head
    assert "/eu-west-8/" in head


@pytest.mark.parametrize("storage_class", ["STANDARD", "STANDARD_IA", "GLACIER_IR", "GLACIER"])
def test_the_storage_class_goes_with_every_object(storage_class: str) -> None:
    section = {**KEYS, "storage_class": storage_class}
    header = f"x-amz-storage-class: {storage_class.lower()}"
    assert header in sent(section).first("put ")
    assert header in sent(section, size=9 * MIB).first("post /bucket/prefix/x?uploads")


@pytest.mark.parametrize(
    ("section", "headers"),
    [
        ({"encryption": "AES256"}, ["x-amz-server-side-encryption: aes256"]),
        ({"encryption": "aws:kms"}, ["x-amz-server-side-encryption: aws:kms"]),
        (
            {"encryption": "aws:kms:dsse", "kms_key_id": "the-key", "bucket_key": True},
            [
                "x-amz-server-side-encryption: aws:kms:dsse",
                "x-amz-server-side-encryption-aws-kms-key-id: the-key",
                "x-amz-server-side-encryption-bucket-key-enabled: true",
            ],
        ),
        (
            {"encryption": "sse-c", "customer_key": CUSTOMER_KEY},
            [
                "x-amz-server-side-encryption-customer-algorithm: aes256",
                f"x-amz-server-side-encryption-customer-key: {CUSTOMER_KEY.lower()}",
                "x-amz-server-side-encryption-customer-key-md5: "
                + base64.b64encode(hashlib.md5(b"k" * 32).digest()).decode().lower(),
            ],
        ),
    ],
)
def test_encryption_is_asked_for_with_every_object(section: dict[str, Any], headers: list[str]) -> None:
    put = sent({**KEYS, **section}).first("put ")
    upload = sent({**KEYS, **section}, size=9 * MIB).first("post /bucket/prefix/x?uploads")
    for header in headers:
        assert header in put
        assert header in upload


def test_a_file_url_is_a_directory(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    open_storage(folder.as_uri()).put("x", b"x")
    assert (folder / "x").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("nearly", "meant"),
    [
        ("s3//bad", "s3://bad"),
        ("s3:/bucket/x", "s3://bucket/x"),
        ("S3:bucket", "s3://bucket"),
        ("gs//bucket", "gs://bucket"),
        ("az:container", "az://container"),
        ("file:/a/b", "file:///a/b"),
        ("file:a", "file:///…"),
        ("s3://", "s3://bucket/prefix"),
        ("s3a://bucket", "s3://"),
        ("http://minio:9000/bucket", "--s3-endpoint"),
        ("hdfs:/x", "s3://"),
        ("C:\\backups", "a path"),
        ("c:/backups", "a path"),
        ("s3//key:geheim@bucket", "s3://…"),
    ],
)
def test_a_url_that_is_nearly_one_is_no_folder(nearly: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_storage(nearly)
    assert meant in (caught.value.hint or "")
    assert "geheim" not in str(caught.value.as_dict())


@pytest.mark.parametrize("path", ["./s3//bad", "s3/x", "s3", "file", "a:b", "2024:01/x", "/abs//x", "gs"])
def test_a_folder_may_have_a_name_like_that(path: str) -> None:
    assert parse_url(path).scheme == "file"
