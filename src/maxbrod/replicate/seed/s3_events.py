"""The events in a notification about objects, in every form in which stores and services send them. Pure.

    S3, also through SQS        {"Records": [{"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", …}]}
    MinIO and others            the same with "minio:s3" and "s3:ObjectCreated:Put"
    S3 through SNS              {"Type": "Notification", "Message": "<one of the above as text>"}
    S3 through EventBridge      {"source": "aws.s3", "detail-type": "Object Created", "detail": {…}}
    S3's test message           {"Event": "s3:TestEvent", …}

Envelopes may be nested. Whether an object is a segment is decided by those who know the names of segments.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final
from urllib.parse import unquote_plus

from maxbrod import strict_json
from maxbrod.errors import CorruptDataError

_SOURCES: Final = frozenset({"aws:s3", "minio:s3"})
_EVENT_BRIDGE: Final = "aws.s3"
_CREATED: Final = "ObjectCreated:"
_REMOVED: Final = ("ObjectRemoved:", "LifecycleExpiration:")
_DEPTH_MAX: Final = 4
_SECOND: Final = 1_000_000_000


class ObjectChange(StrEnum):
    CREATED = "created"
    REMOVED = "removed"


_DETAILS: Final = {"Object Created": ObjectChange.CREATED, "Object Deleted": ObjectChange.REMOVED}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectEvent:
    """An object was created or removed. `time_ns` is the store's own time."""

    change: ObjectChange
    bucket: str
    key: str
    size: int
    time_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """The events of one message, and the number of entries that are about something else or cannot be understood."""

    events: tuple[ObjectEvent, ...] = ()
    others: int = 0
    """Entries of other kinds, such as a restored or tagged object."""
    invalid: int = 0


def parse_notification(body: str) -> Notification:
    """CorruptDataError: the body is not a notification at all. A wrong entry does not affect the others."""
    return _parse(body, 0)


def _parse(body: Any, depth: int) -> Notification:  # noqa: ANN401 - text or JSON
    if depth > _DEPTH_MAX:
        raise CorruptDataError("the message has envelopes within envelopes without end")
    try:
        document = strict_json.parse(body, wide=True) if isinstance(body, str) else body
    except ValueError as error:
        raise CorruptDataError("the message is not JSON") from error
    if not isinstance(document, dict):
        raise CorruptDataError("the message is JSON, but not an object")
    if isinstance(document.get("Records"), list):
        parts = [_record(each, depth) for each in document["Records"]]
        return Notification(
            events=tuple(event for part in parts for event in part.events),
            others=sum(part.others for part in parts),
            invalid=sum(part.invalid for part in parts),
        )
    if document.get("source") == _EVENT_BRIDGE:
        return _guarded(_bridged, document)
    if isinstance(document.get("Message"), str) and "TopicArn" in document:
        return _parse(document["Message"], depth + 1)
    if document.get("Event") == "s3:TestEvent":
        return Notification(others=1)
    raise CorruptDataError("the message is JSON, but no notification about objects")


def _record(record: Any, depth: int) -> Notification:  # noqa: ANN401 - JSON
    if not isinstance(record, dict):
        return Notification(invalid=1)
    if isinstance(record.get("Sns"), dict):  # SNS, as it calls a function
        try:
            return _parse(record["Sns"].get("Message"), depth + 1)
        except CorruptDataError:
            return Notification(invalid=1)
    if str(record.get("eventSource")) not in _SOURCES:
        return Notification(others=1)
    return _guarded(_stored, record)


def _stored(record: dict[str, Any]) -> Notification:
    name = str(record["eventName"]).removeprefix("s3:")
    if name.startswith(_CREATED):
        change = ObjectChange.CREATED
    elif name.startswith(_REMOVED):
        change = ObjectChange.REMOVED
    else:
        return Notification(others=1)
    found = record["s3"]["object"]
    bucket = record["s3"].get("bucket", {}).get("name", "")
    return _event(change, bucket, unquote_plus(found["key"], errors="strict"), found, record["eventTime"])


def _bridged(document: dict[str, Any]) -> Notification:
    """Keys are not escaped here, unlike in all other forms."""
    change = _DETAILS.get(document["detail-type"])
    if change is None:
        return Notification(others=1)
    found = document["detail"]["object"]
    return _event(change, document["detail"]["bucket"]["name"], found["key"], found, document["time"])


def _event(change: ObjectChange, bucket: object, key: object, found: dict[str, Any], time: str) -> Notification:
    size = found.get("size", 0)
    if not isinstance(key, str) or not key:
        raise ValueError("an object has no key")
    if type(size) is not int or not 0 <= size < 1 << 63:
        raise ValueError("the size is not a number of bytes")
    event = ObjectEvent(change=change, bucket=str(bucket), key=key, size=size, time_ns=parse_time_ns(time))
    return Notification(events=(event,))


def _guarded(read: Any, document: dict[str, Any]) -> Notification:  # noqa: ANN401 - one of the functions above
    try:
        found: Notification = read(document)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return Notification(invalid=1)
    return found


def parse_time_ns(text: str) -> int:
    """RFC 3339 with any number of fractional digits, of which the first nine count."""
    whole, _, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    zone = rest[len(digits) :]
    time = datetime.fromisoformat(whole + zone)
    if time.tzinfo is None:
        raise ValueError("the time has no time zone")
    since = time.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * _SECOND + int(digits[:9].ljust(9, "0") or "0")
