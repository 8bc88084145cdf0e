"""Brings objects of S3 back from an archive class, such as GLACIER, for some days. boto3 is an extra: `maxbrod[thaw]`.

The store library cannot ask for it. S3 makes a copy of the object that can be read, which takes minutes to two days.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import AccessDeniedError, EnvironmentMissingError, MaxbrodError, UnavailableError, UsageError
from maxbrod.storage.urls import parse_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from maxbrod.config import StorageConfig

_OPERATION: Final = "bring back"
_ASKED_BEFORE: Final = "RestoreAlreadyInProgress"
_DENIED: Final = frozenset({"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"})
_LATER: Final = frozenset({"SlowDown", "InternalError", "ServiceUnavailable", "GlacierExpeditedRetrievalNotAvailable"})


class FrozenObjects:
    """The objects of an archive in S3 that must be brought back."""

    def __init__(self, url: str, options: StorageConfig) -> None:
        """UsageError: it is not in S3. EnvironmentMissingError: boto3 is not installed."""
        location = parse_url(url)
        if location.scheme != "s3":
            raise UsageError("only S3 is asked to bring objects back", object_name=url, hint="have the store do it")
        self._url, self._bucket, self._prefix = location.url, location.bucket, location.prefix
        self._client, self._exceptions = _open_client(options)

    def ask_back(self, path: str, *, days: int, tier: str) -> None:
        """Ask S3 to restore an object. Nothing happens if it was asked before."""
        request = {"Days": days, "GlacierJobParameters": {"Tier": tier}}
        self._ask(path, lambda: self._client.restore_object(**self._place(path), RestoreRequest=request))

    def is_back(self, path: str) -> bool:
        """True if the object can be read."""
        found = self._ask(path, lambda: self._client.head_object(**self._place(path)))
        return found is not None and 'ongoing-request="false"' in str(found.get("Restore", ""))

    def _place(self, path: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": f"{self._prefix}/{path}" if self._prefix else path}

    def _ask(self, path: str, request: Callable[[], Any]) -> Any:  # noqa: ANN401 - boto's own
        name = f"{self._url}/{path}"
        try:
            return request()
        except self._exceptions.ClientError as error:
            code = str(error.response.get("Error", {}).get("Code"))
            if code == _ASKED_BEFORE:
                return None
            kind = AccessDeniedError if code in _DENIED else UnavailableError if code in _LATER else MaxbrodError
            hint = "the credentials need s3:RestoreObject" if kind is AccessDeniedError else None
            raise kind(f"S3 said {code}", operation=_OPERATION, object_name=name, hint=hint) from None
        except self._exceptions.BotoCoreError as error:
            message = f"S3 cannot be asked: {type(error).__name__}"
            raise UnavailableError(message, operation=_OPERATION, object_name=name) from None


def _open_client(options: StorageConfig) -> tuple[Any, Any]:
    try:
        import boto3  # noqa: PLC0415 - an extra
        from botocore import exceptions  # noqa: PLC0415
        from botocore.config import Config  # noqa: PLC0415
    except ImportError:
        raise EnvironmentMissingError(
            "bringing objects back needs AWS's client, which is not installed",
            operation=_OPERATION,
            hint="pip install 'maxbrod[thaw]', or have S3 restore the objects by other means",
        ) from None
    s3 = options.s3
    keys = {
        "aws_access_key_id": s3.access_key_id,
        "aws_secret_access_key": s3.secret_access_key,
        "aws_session_token": s3.session_token,
    }
    client = boto3.client(
        "s3",
        region_name=s3.region,
        endpoint_url=s3.endpoint,
        verify=None if options.ca_file is None else str(options.ca_file),
        config=Config(connect_timeout=10, read_timeout=60, retries={"mode": "standard", "total_max_attempts": 4}),
        **{name: value.get_secret_value() for name, value in keys.items() if value is not None},
    )
    return client, exceptions
