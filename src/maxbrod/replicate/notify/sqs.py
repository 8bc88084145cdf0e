"""A queue of Amazon SQS, or of a server that speaks its protocol. Needs the extra `sqs`, for AWS's own client.

The client knows every way to obtain credentials: variables, profiles, roles of machines and of pods.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import AccessDeniedError, EnvironmentMissingError, UnavailableError, UsageError
from maxbrod.replicate.notify.queue import Message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maxbrod.config import S3Config

RECEIVE_MAX: Final = 10
"""The most messages that SQS delivers at once."""
_OPERATION: Final = "read notifications"
_DENIED: Final = frozenset(
    {"AccessDenied", "AccessDeniedException", "InvalidClientTokenId", "SignatureDoesNotMatch", "ExpiredToken"}
)
_MISSING: Final = frozenset({"QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SqsSettings:
    queue: str
    """A name, or the URL of the queue."""
    endpoint: str | None = None
    wait_s: int = 20
    """How long one request waits for messages."""
    visibility_s: int = 60
    """How long a received message stays invisible to others. It must be enough to make its events durable."""


class SqsQueue:
    """Belongs to one thread."""

    def __init__(self, settings: SqsSettings, s3: S3Config) -> None:
        """Find the queue. Keys and region are those of the storage, unless they come from the environment."""
        self._settings = settings
        self._errors, self._client = _client(settings, s3)
        with self._translated():
            self._url = settings.queue if "://" in settings.queue else self._find(settings.queue)
            self.has_dead_letters = self._redrives()

    def receive(self) -> list[Message]:
        with self._translated():
            answer = self._client.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=RECEIVE_MAX,
                WaitTimeSeconds=self._settings.wait_s,
                VisibilityTimeout=self._settings.visibility_s,
                MessageSystemAttributeNames=["ApproximateReceiveCount"],
            )
        return [_message(each) for each in answer.get("Messages", ())]

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """A message that cannot be deleted now comes again, and is a duplicate then."""
        with self._translated():
            for first in range(0, len(messages), RECEIVE_MAX):
                part = messages[first : first + RECEIVE_MAX]
                entries = [{"Id": str(at), "ReceiptHandle": each.receipt} for at, each in enumerate(part)]
                self._client.delete_message_batch(QueueUrl=self._url, Entries=entries)

    def close(self) -> None:
        self._client.close()

    def _find(self, name: str) -> str:
        return str(self._client.get_queue_url(QueueName=name)["QueueUrl"])

    def _redrives(self) -> bool:
        """Without the right to ask, there is no such policy: then a bad message is dropped here in the end."""
        try:
            answer = self._client.get_queue_attributes(QueueUrl=self._url, AttributeNames=["RedrivePolicy"])
        except self._errors.ClientError as error:
            if _code(error) not in _DENIED:
                raise
            return False
        return bool(answer.get("Attributes", {}).get("RedrivePolicy"))

    @contextmanager
    def _translated(self) -> Iterator[None]:
        queue = self._settings.queue
        try:
            yield
        except self._errors.ClientError as error:
            code = _code(error)
            if code in _MISSING:
                raise UsageError("there is no such queue", operation=_OPERATION, object_name=queue) from error
            if code in _DENIED:
                hint = "sqs:ReceiveMessage, sqs:DeleteMessage, sqs:GetQueueUrl and sqs:GetQueueAttributes are needed"
                raise AccessDeniedError(
                    f"SQS answered {code}", operation=_OPERATION, object_name=queue, hint=hint
                ) from error
            raise UnavailableError(f"SQS answered {code}", operation=_OPERATION, object_name=queue) from error
        except (self._errors.NoCredentialsError, self._errors.NoRegionError) as error:
            hint = "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, or storage.s3 of the file"
            raise AccessDeniedError(str(error), operation=_OPERATION, object_name=queue, hint=hint) from error
        except self._errors.BotoCoreError as error:
            raise UnavailableError(
                f"SQS does not answer: {type(error).__name__}", operation=_OPERATION, object_name=queue
            ) from error


def _client(settings: SqsSettings, s3: S3Config) -> tuple[Any, Any]:
    try:
        import boto3  # noqa: PLC0415 - an extra
        from botocore import exceptions  # noqa: PLC0415
        from botocore.config import Config  # noqa: PLC0415
    except ImportError as error:
        raise EnvironmentMissingError(
            "notifications from SQS need AWS's client, which is not installed",
            operation=_OPERATION,
            hint="pip install 'maxbrod[sqs]', or leave --queue out: polling finds all segments, only later",
        ) from error
    keys = {
        "aws_access_key_id": s3.access_key_id,
        "aws_secret_access_key": s3.secret_access_key,
        "aws_session_token": s3.session_token,
    }
    client = boto3.client(
        "sqs",
        region_name=s3.region,
        endpoint_url=settings.endpoint,
        # One request waits for messages, and must not be cut off meanwhile.
        config=Config(read_timeout=settings.wait_s + 30, connect_timeout=10, retries={"total_max_attempts": 2}),
        **{name: value.get_secret_value() for name, value in keys.items() if value is not None},
    )
    return exceptions, client


def _code(error: Any) -> str:  # noqa: ANN401 - boto's own
    return str(error.response.get("Error", {}).get("Code", "nothing")).split("#")[-1]


def _message(found: dict[str, Any]) -> Message:
    try:
        deliveries = int(found["Attributes"]["ApproximateReceiveCount"])
    except (KeyError, ValueError):
        deliveries = 1
    return Message(
        id=str(found["MessageId"]), receipt=str(found["ReceiptHandle"]), body=found["Body"], deliveries=deliveries
    )
