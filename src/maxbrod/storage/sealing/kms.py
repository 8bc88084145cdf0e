"""Amazon's KMS as the holder of a key. boto3 is an extra: `maxbrod[aws]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import AccessDeniedError, EnvironmentMissingError, MaxbrodError, RefusedError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from maxbrod.config import EncryptionConfig

_TIMEOUT_S: Final = 10
_ATTEMPTS: Final = 4
_DENIED: Final = frozenset({"AccessDeniedException", "UnrecognizedClientException", "ExpiredTokenException"})
_TRANSIENT: Final = frozenset(
    {"DependencyTimeoutException", "KMSInternalException", "LimitExceededException", "ThrottlingException"}
)


def encrypt(options: EncryptionConfig, key: bytes, label: str) -> bytes:
    """The key, wrapped by KMS and bound to the label."""
    answer = _call(
        options,
        lambda client: client.encrypt(KeyId=options.kms_key, Plaintext=key, EncryptionContext=_context(label)),
    )
    return bytes(answer["CiphertextBlob"])


def decrypt(options: EncryptionConfig, wrapped: bytes, label: str) -> bytes:
    # The key is named: a wrapped key of somebody else's account must not be opened with that.
    answer = _call(
        options,
        lambda client: client.decrypt(KeyId=options.kms_key, CiphertextBlob=wrapped, EncryptionContext=_context(label)),
    )
    return bytes(answer["Plaintext"])


def _context(label: str) -> dict[str, str]:
    return {"maxbrod": label}


def _call(options: EncryptionConfig, action: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    try:
        import boto3  # noqa: PLC0415 - an extra
        from botocore.config import Config  # noqa: PLC0415
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415
    except ImportError:
        raise EnvironmentMissingError("KMS needs boto3", hint="install maxbrod[aws]") from None
    try:
        client = boto3.client(
            "kms",
            endpoint_url=options.kms_endpoint,
            region_name=options.kms_region,
            config=Config(
                connect_timeout=_TIMEOUT_S,
                read_timeout=_TIMEOUT_S,
                retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
            ),
        )
        return action(client)
    except ClientError as error:
        raise _translated(error.response.get("Error", {}), options) from None
    except BotoCoreError as error:
        raise UnavailableError(
            f"KMS cannot be asked: {type(error).__name__}",
            operation="ask KMS",
            object_name=options.kms_key,
            hint="check the region, the credentials and the network",
        ) from None


def _translated(error: dict[str, Any], options: EncryptionConfig) -> MaxbrodError:
    code = str(error.get("Code"))
    kind: type[MaxbrodError] = RefusedError
    if code in _DENIED:
        kind = AccessDeniedError
    elif code in _TRANSIENT:
        kind = UnavailableError
    return kind(f"KMS refuses: {code}", operation="ask KMS", object_name=options.kms_key)
