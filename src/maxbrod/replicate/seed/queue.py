"""Notifications of segments: the queue that they come from, and when a message is acknowledged.

A message is acknowledged only when its events are durable here. Until then the queue delivers it again. A message that
nobody can understand would come back for ever: after a few deliveries it is dropped and counted, or left to the queue's
own dead-letter policy if it has one. What it announced is found by polling.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from maxbrod.errors import (
    AccessDeniedError,
    CorruptDataError,
    EnvironmentMissingError,
    MaxbrodError,
    UnavailableError,
    UsageError,
)
from maxbrod.model import now_ms
from maxbrod.replicate.seed.s3_events import ObjectEvent, parse_notification
from maxbrod.work.intervals import wait_unless

if TYPE_CHECKING:
    from maxbrod.config import S3Config
    from maxbrod.layouts.parquet.events import SegmentEvent
    from maxbrod.replicate.seed.tree import Tree


RECEIVE_MAX: Final = 10
"""The most messages that SQS delivers at once."""
_OPERATION: Final = "read notifications"
_DENIED: Final = frozenset(
    {"AccessDenied", "AccessDeniedException", "InvalidClientTokenId", "SignatureDoesNotMatch", "ExpiredToken"}
)
_MISSING: Final = frozenset({"QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"})

_LOG: Final = logging.getLogger(__name__)
DELIVERIES_MAX: Final = 3
"""The most deliveries of a message that cannot be understood."""
Keep: TypeAlias = Callable[[Sequence[ObjectEvent]], None]
"""Makes events durable, or raises. Duplicates are events like others."""

_PAUSE_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMessage:
    id: str
    receipt: str
    body: str
    deliveries: int
    """The number of deliveries, this one included."""


class Queue(Protocol):
    """Messages that are delivered at least once, in any order."""

    has_dead_letters: bool
    """True if the queue itself puts aside what is delivered too often."""

    def receive(self) -> list[QueueMessage]:
        """The next messages; none after a while. Each comes again unless it is acknowledged."""

    def acknowledge(self, messages: Sequence[QueueMessage]) -> None:
        """Delete these messages. One that is delivered again all the same is a duplicate."""


@dataclass(slots=True)
class QueueCounts:
    received: int = 0
    """Messages, repeated ones included."""
    acknowledged: int = 0
    events: int = 0
    others: int = 0
    """Entries about something other than an object that was created or removed."""
    invalid: int = 0
    """Messages and entries that cannot be understood."""
    dropped: int = 0
    """Messages that were deleted without being understood."""


def pump(queue: Queue, keep: Keep, counts: QueueCounts) -> None:
    """Receive once, make the events durable, acknowledge. If that raises, nothing is acknowledged."""
    messages = queue.receive()
    events: list[ObjectEvent] = []
    understood: list[QueueMessage] = []
    for message in messages:
        counts.received += 1
        try:
            found = parse_notification(message.body)
        except CorruptDataError as error:
            counts.invalid += 1
            if _is_dropped(queue, message, error):
                counts.dropped += 1
                understood.append(message)
            continue
        counts.others += found.others
        counts.invalid += found.invalid
        if found.invalid:
            _LOG.warning("%d entries of the notification %s cannot be understood", found.invalid, message.id)
        events += found.events
        understood.append(message)
    if events:
        keep(events)
        counts.events += len(events)
    if understood:
        queue.acknowledge(understood)
        counts.acknowledged += len(understood)


def _is_dropped(queue: Queue, message: QueueMessage, error: CorruptDataError) -> bool:
    if queue.has_dead_letters or message.deliveries < DELIVERIES_MAX:
        _LOG.info("%s: %s; it stays in the queue", message.id, error.message)
        return False
    _LOG.warning(
        "the notification %s is dropped after %d deliveries: %s", message.id, message.deliveries, error.message
    )
    return True


class Notifications:
    """Begins at once, and ends when `stop` is set."""

    def __init__(
        self,
        queue: Queue,
        tree: Tree,
        keep: Callable[[Sequence[SegmentEvent]], None],
        *,
        local_region: str | None,
        stop: threading.Event,
    ) -> None:
        """`keep` makes events durable, or raises."""
        self.counts = QueueCounts()
        self.lag_ms: int | None = None
        """The age of the newest event when it was received last."""
        self._queue, self._tree, self._keep = queue, tree, keep
        self._local_region, self._stop = local_region, stop
        self._error: MaxbrodError | None = None
        self._thread = threading.Thread(target=self._run, name="notifications", daemon=True)
        self._thread.start()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                pump(self._queue, self._handle, self.counts)
            except MaxbrodError as error:
                if not error.retryable:
                    self._error = error
                    return
                _LOG.warning("notifications: %s", error)
                wait_unless(_PAUSE_S, self._stop)

    def _handle(self, events: Sequence[ObjectEvent]) -> None:
        newest_ns = max((event.time_ns for event in events), default=None)
        if newest_ns is not None:
            self.lag_ms = max(now_ms() - newest_ns // 1_000_000, 0)
        found = [each for each in map(self._tree.event_of, events) if each is not None]
        wanted = [each for each in found if each.segment.region != self._local_region]
        if wanted:
            self._keep(wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class SqsSettings:
    queue: str
    endpoint: str | None = None
    wait_s: int = 20
    visibility_s: int = 60
    """The time that a received message stays invisible to others. It must be enough to make its events durable."""


class SqsQueue:
    """A queue of Amazon SQS, or of a server that speaks its protocol. Belongs to one thread.

    It needs the extra `sqs`, for AWS's own client, which knows every way to obtain credentials: variables, profiles,
    roles of machines and of pods.
    """

    def __init__(self, settings: SqsSettings, s3: S3Config) -> None:
        """Find the queue. Keys and region are those of the storage, unless they come from the environment."""
        self._settings = settings
        self._errors, self._client = _client(settings, s3)
        with self._translated():
            named = "://" not in settings.queue
            self._url = self._client.get_queue_url(QueueName=settings.queue)["QueueUrl"] if named else settings.queue
            self.has_dead_letters = self._redrives()

    def receive(self) -> list[QueueMessage]:
        with self._translated():
            answer = self._client.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=RECEIVE_MAX,
                WaitTimeSeconds=self._settings.wait_s,
                VisibilityTimeout=self._settings.visibility_s,
                MessageSystemAttributeNames=["ApproximateReceiveCount"],
            )
        return [
            QueueMessage(
                id=str(each["MessageId"]),
                receipt=str(each["ReceiptHandle"]),
                body=each["Body"],
                deliveries=int(each.get("Attributes", {}).get("ApproximateReceiveCount", 1)),
            )
            for each in answer.get("Messages", ())
        ]

    def acknowledge(self, messages: Sequence[QueueMessage]) -> None:
        """A message that cannot be deleted now comes again, and is a duplicate then."""
        with self._translated():
            for first in range(0, len(messages), RECEIVE_MAX):
                part = messages[first : first + RECEIVE_MAX]
                entries = [{"Id": str(at), "ReceiptHandle": each.receipt} for at, each in enumerate(part)]
                self._client.delete_message_batch(QueueUrl=self._url, Entries=entries)

    def close(self) -> None:
        self._client.close()

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
