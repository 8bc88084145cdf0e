from __future__ import annotations

from typing import TYPE_CHECKING, Any

import obstore
import pytest
from obstore.store import AzureStore, S3Store

from fixtures_storage import s3_options
from maxbrod.config import StorageConfig
from maxbrod.errors import UsageError
from maxbrod.storage.delta import delta_options

if TYPE_CHECKING:
    from maxbrod.sandbox.s3 import S3Server
    from maxbrod.storage.interface import Storage

CLIENT = {"AWS_ALLOW_HTTP", "TIMEOUT"}
"""Those that are the HTTP client's, not the store's."""


def store_settings(options: dict[str, str]) -> Any:
    return {name.lower(): value for name, value in options.items() if name not in CLIENT}


def test_they_open_the_same_objects(s3: S3Server, s3_storage: Storage) -> None:
    s3_storage.put("x", b"x")
    options = delta_options(s3.url, s3_options(s3))
    assert options["AWS_ALLOW_HTTP"] == "true"
    other = S3Store(s3.bucket, config=store_settings(options), client_options={"allow_http": True})
    assert bytes(obstore.get(other, "x").bytes()) == b"x"


def test_every_setting_is_one_that_the_client_knows() -> None:
    section = {"region": "r", "access_key_id": "a", "secret_access_key": "b", "session_token": "c"}
    kms = {"encryption": "aws:kms", "kms_key_id": "k", "bucket_key": True}
    options = delta_options("s3://bucket", StorageConfig.model_validate({"s3": {**section, **kms}}))
    assert options["AWS_SERVER_SIDE_ENCRYPTION"] == "aws:kms"
    assert options["AWS_SSE_BUCKET_KEY_ENABLED"] == "true"
    S3Store("bucket", config=store_settings(options))
    azure = delta_options("az://c", StorageConfig.model_validate({"azure": {"account": "me", "sas_token": "sig=x"}}))
    AzureStore("c", config=store_settings(azure))


def test_a_directory_needs_none_and_foreign_ones_are_refused() -> None:
    assert delta_options("/archive", StorageConfig()) == {}
    with pytest.raises(UsageError):
        delta_options("/archive", StorageConfig.model_validate({"s3": {"region": "r"}}))
