"""Notifications of a bucket, as they arrive."""

from __future__ import annotations

import json
from typing import Any

from maxbrod.replicate.seed.s3_events import ObjectChange, ObjectEvent

KEY = "data/us-east-1/sensor events/107/0/00000000000000000000-00000000000000000024"
EVENT = ObjectEvent(change=ObjectChange.CREATED, bucket="b", key=KEY, size=12345, time_ns=1_600_000_000_123_000_000)


def record(**changed: Any) -> dict[str, Any]:
    found = {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventName": "ObjectCreated:Copy",
        "eventTime": "2020-09-13T12:26:40.123Z",
        "s3": {"bucket": {"name": "b"}, "object": {"key": KEY.replace(" ", "+"), "size": 12345, "sequencer": "0055"}},
    }
    return {**found, **changed}


def body(*records: Any) -> str:
    return json.dumps({"Records": list(records)})
