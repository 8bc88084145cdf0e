"""A key that Amazon's KMS holds, on a server of moto's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from maxbrod.config import EncryptionConfig
from maxbrod.errors import AccessDeniedError, RefusedError, UnavailableError
from maxbrod.storage.sealing import kms
from maxbrod.storage.sealing.identity import recipients_of, unlock
from maxbrod.storage.sealing.rings import create_ring
from support.aws import REGION, Aws, aws_server


@pytest.fixture(scope="module")
def server() -> Iterator[Aws]:
    with aws_server() as found:
        yield found


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")


def options(server: Aws, **changed: Any) -> EncryptionConfig:
    key = server.client("kms").create_key()["KeyMetadata"]["KeyId"]
    return EncryptionConfig(**{"kms_key": key, "kms_region": REGION, "kms_endpoint": server.endpoint, **changed})


def test_kms_opens_what_was_encrypted_for_it(server: Aws) -> None:
    given = options(server)
    ring = create_ring(recipients_of(given))
    assert ring.recipients[0].means["key"] == given.kms_key
    assert unlock(ring, given, name="ring").reads_records


def test_another_key_of_kms_opens_nothing(server: Aws) -> None:
    ring = create_ring(recipients_of(options(server)))
    with pytest.raises(AccessDeniedError, match="KMS refuses"):
        unlock(ring, options(server), name="ring")


def test_a_key_that_kms_does_not_have_is_told_as_such(server: Aws) -> None:
    ring = create_ring(recipients_of(options(server)))
    with pytest.raises(RefusedError, match="NotFoundException"):
        unlock(ring, options(server, kms_key="alias/nobody"), name="ring")


def test_kms_that_does_not_answer_is_named_and_may_be_tried_again(server: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = create_ring(recipients_of(options(server)))
    monkeypatch.setattr(kms, "_ATTEMPTS", 1)
    away = options(server, kms_endpoint="http://127.0.0.1:9")
    with pytest.raises(UnavailableError, match="KMS cannot be asked") as caught:
        unlock(ring, away, name="ring")
    assert caught.value.retryable
