"""Notifications in every form in which they arrive, and bodies that are none."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.errors import CorruptDataError
from maxbrod.replicate.seed.s3_events import Notification, ObjectChange, parse_notification, parse_time_ns
from support.s3_events import EVENT, KEY, body, record


def test_an_event_of_s3() -> None:
    assert parse_notification(body(record())) == Notification(events=(EVENT,))


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("aws:s3", "ObjectCreated:Put"),
        ("aws:s3", "ObjectCreated:CompleteMultipartUpload"),
        ("minio:s3", "s3:ObjectCreated:Put"),
        ("minio:s3", "ObjectCreated:Put"),
        ("aws:s3", "s3:ObjectCreated:Copy"),
    ],
)
def test_an_event_by_any_of_its_names(source: str, name: str) -> None:
    assert parse_notification(body(record(eventSource=source, eventName=name))).events == (EVENT,)


@pytest.mark.parametrize(
    "name", ["ObjectRemoved:Delete", "s3:ObjectRemoved:DeleteMarkerCreated", "LifecycleExpiration:Delete"]
)
def test_a_removal_has_no_size(name: str) -> None:
    found = record(eventName=name)
    del found["s3"]["object"]["size"]
    (event,) = parse_notification(body(found)).events
    assert (event.change, event.key, event.size) == (ObjectChange.REMOVED, KEY, 0)


def test_an_event_in_the_envelope_of_sns() -> None:
    inner = body(record())
    envelope = {"Type": "Notification", "MessageId": "1", "TopicArn": "arn:aws:sns:r:1:t", "Message": inner}
    assert parse_notification(json.dumps(envelope)).events == (EVENT,)


def test_an_event_in_the_envelope_of_event_bridge() -> None:
    envelope = {
        "version": "0",
        "detail-type": "Object Created",
        "source": "aws.s3",
        "time": "2020-09-13T12:26:40.123Z",
        "detail": {"bucket": {"name": "b"}, "object": {"key": KEY, "size": 12345}, "reason": "CopyObject"},
    }
    assert parse_notification(json.dumps(envelope)).events == (EVENT,)
    removed = {**envelope, "detail-type": "Object Deleted"}
    assert parse_notification(json.dumps(removed)).events[0].change is ObjectChange.REMOVED
    assert parse_notification(json.dumps({**envelope, "detail-type": "Object Tags Added"})).others == 1


def test_an_event_bridge_event_behind_sns() -> None:
    bridged = json.dumps(
        {
            "source": "aws.s3",
            "detail-type": "Object Created",
            "time": "2020-09-13T12:26:40.123Z",
            "detail": {"bucket": {"name": "b"}, "object": {"key": KEY, "size": 12345}},
        }
    )
    assert parse_notification(json.dumps({"TopicArn": "x", "Message": bridged})).events == (EVENT,)


def test_keys_are_unescaped_as_forms_are() -> None:
    found = record()
    found["s3"]["object"]["key"] = "data/r/t%2B/0/0/a+b%C3%BC"
    assert parse_notification(body(found)).events[0].key == "data/r/t+/0/0/a bü"


def test_a_bad_entry_does_not_affect_the_others() -> None:
    bad = [
        {"Sns": {"Message": "no"}},
        {"eventSource": "aws:s3"},
        record(eventTime="yesterday"),
        record(s3={}),
        7,
        record(eventTime="2020-09-13"),
    ]
    found = parse_notification(body(*bad, record(), record(eventName="ObjectRestore:Post"), record(eventSource="x")))
    assert found == Notification(events=(EVENT,), others=2, invalid=6)


def test_the_test_message_of_s3_is_no_event() -> None:
    text = json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "b"})
    assert parse_notification(text) == Notification(others=1)


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "null", "{}", '{"Records": 3}', "[" * 100_000, '{"a": 1}'])
def test_a_body_that_is_no_notification_is_refused(text: str) -> None:
    with pytest.raises(CorruptDataError):
        parse_notification(text)


def test_envelopes_without_end_are_refused() -> None:
    text = body(record())
    for _ in range(10):
        text = json.dumps({"TopicArn": "x", "Message": text})
    with pytest.raises(CorruptDataError):
        parse_notification(text)


def test_times_keep_their_nanoseconds() -> None:
    assert parse_time_ns("2020-09-13T12:26:40.123456789Z") == 1_600_000_000_123_456_789
    assert parse_time_ns("2020-09-13T14:26:40.1+02:00") == 1_600_000_000_100_000_000
    assert parse_time_ns("2020-09-13T12:26:40Z") == 1_600_000_000_000_000_000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, st.sampled_from(["eventName", "eventTime", "s3", "eventSource"]))
def test_no_entry_crashes_the_reader(value: Any, field: str) -> None:
    found = parse_notification(body(record(**{field: value})))
    assert len(found.events) + found.others + found.invalid == 1


@given(JSON)
def test_no_body_crashes_the_reader(value: Any) -> None:
    with contextlib.suppress(CorruptDataError):
        parse_notification(json.dumps(value))
