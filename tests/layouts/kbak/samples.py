"""Where the files are that the real tool wrote, and what a consumer read from the same topics."""

from __future__ import annotations

import json
import os
from base64 import b64decode
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.plain_batches import Record

_ROOT = Path(__file__).parents[3]
SAMPLES = Path(os.environ.get("MAXBROD_SAMPLES") or _ROOT.parent / "shared" / "samples") / "oso"
DATASETS = [
    f"{version}-{kind}" for version in ("0.17.4", "0.25.2") for kind in ("none", "zstd", "zstd-offset-headers", "lz4")
]

needs_samples = pytest.mark.skipif(
    not (SAMPLES / "expected.json").exists(), reason=f"the samples are not at {SAMPLES}; MAXBROD_SAMPLES says where"
)


@cache
def expected() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((SAMPLES / "expected.json").read_bytes())
    return document


def consumed(topic: str, partition: int, *, committed: bool) -> list[Record]:
    """What a consumer found in a partition."""
    rows = expected()["topics"][topic]
    if isinstance(rows, dict):
        rows = rows["read_committed" if committed else "read_uncommitted"]
    return [
        Record(
            offset=row["offset"],
            timestamp=row["timestamp"],
            key=_bytes(row["key"]),
            value=_bytes(row["value"]),
            headers=[(key.encode(), _bytes(value)) for key, value in row["headers"]],
        )
        for row in rows
        if row["partition"] == partition
    ]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
