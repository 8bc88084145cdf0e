from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import pytest

from maxbrod.config import S3Config, StorageConfig
from maxbrod.errors import UnavailableError, UsageError
from maxbrod.storage.settings import Ambient, ambient_s3
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.s3 import S3Server

KEYS = "aws_access_key_id = AK{0}\naws_secret_access_key = s%{0}\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text(
        f"[default]\n{KEYS.format(1)}[work]\n{KEYS.format(2)}aws_session_token = t\n"
    )
    (tmp_path / ".aws/config").write_text(
        "[default]\nregion = eu-1\n[profile work]\nregion = eu-2\nendpoint_url = http://minio:9000\n"
        "[profile login]\nsso_session = x\n[profile role]\nrole_arn = arn:1\nsource_profile = default\n"
    )
    return tmp_path


def test_the_default_profile_gives_keys_and_region(home: Path) -> None:
    assert ambient_s3(S3Config(), {"HOME": str(home)}) == Ambient(
        region="eu-1", access_key_id="AK1", secret_access_key="s%1"
    )


def test_a_named_profile_gives_keys_region_and_endpoint(home: Path) -> None:
    assert ambient_s3(S3Config(), {"HOME": str(home), "AWS_PROFILE": "work"}) == Ambient(
        endpoint="http://minio:9000", region="eu-2", access_key_id="AK2", secret_access_key="s%2", session_token="t"
    )


def test_the_configuration_stands_above_the_environment_and_that_above_a_profile(home: Path) -> None:
    environ = {
        "HOME": str(home),
        "AWS_PROFILE": "work",
        "AWS_ACCESS_KEY_ID": "of the environment",
        "AWS_REGION": "eu-3",
        "AWS_ENDPOINT_URL": "http://one:1",
    }
    assert ambient_s3(S3Config(), environ) == Ambient(endpoint="http://one:1", region="eu-3")
    assert ambient_s3(S3Config(), {**environ, "AWS_ENDPOINT_URL_S3": "http://two:1"}).endpoint == "http://two:1"
    given = S3Config.model_validate(
        {"endpoint": "http://three:1", "region": "eu-4", "access_key_id": "k", "secret_access_key": "s"}
    )
    assert ambient_s3(given, {"HOME": str(home)}) == Ambient(endpoint="http://three:1", region="eu-4")
    assert ambient_s3(S3Config(), {**environ, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}).endpoint is None


@pytest.mark.parametrize(("profile", "means"), [("login", "sso_session"), ("role", "role_arn")])
def test_a_profile_that_maxbrod_cannot_follow_is_refused_by_name(home: Path, profile: str, means: str) -> None:
    with pytest.raises(UsageError, match=means) as caught:
        ambient_s3(S3Config(), {"HOME": str(home), "AWS_PROFILE": profile})
    assert caught.value.object_name == profile
    assert "export-credentials" in str(caught.value.hint)


def test_a_profile_that_does_not_exist_is_refused(home: Path) -> None:
    with pytest.raises(UsageError, match="AWS_PROFILE"):
        ambient_s3(S3Config(), {"HOME": str(home), "AWS_PROFILE": "nobody"})


def test_a_machine_without_files_has_no_profile(tmp_path: Path) -> None:
    assert ambient_s3(S3Config(), {"HOME": str(tmp_path)}) == Ambient()
    assert ambient_s3(S3Config(), {}) == Ambient()


def test_a_damaged_file_is_named_and_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("aws_secret_access_key = hunter2\n")
    with pytest.raises(UsageError) as caught:
        ambient_s3(S3Config(), {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "broken")})
    assert "broken" in str(caught.value)
    assert "hunter2" not in json.dumps(caught.value.as_dict())


def test_an_archive_opens_with_nothing_but_the_environment_and_a_profile(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = s3.store_options()
    keys = {f"aws_{name}": options[name] for name in ("access_key_id", "secret_access_key")}
    (tmp_path / "keys").write_text("\n".join(["[mine]", *(f"{name} = {value}" for name, value in keys.items())]))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    monkeypatch.setenv("AWS_ENDPOINT_URL", options["endpoint"])
    monkeypatch.setenv("AWS_REGION", options["region"])
    storage = open_storage(f"s3://{options['bucket']}/x")
    storage.put("a", b"1")
    assert bytes(storage.get("a")) == b"1"


def test_an_endpoint_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{address}")
        storage = open_storage("s3://bucket/x", StorageConfig(request_timeout_s=0.2, deadline_s=0))
        with pytest.raises(UnavailableError, match=f"the storage at {address} did not answer in time"):
            list(storage.list())
    with pytest.raises(UnavailableError, match=f"the storage at {address} refuses connections"):
        list(storage.list())
