"""The ids of runs."""

from __future__ import annotations

import secrets
import time
from datetime import UTC, datetime
from typing import Final

_FORMAT: Final = "%Y%m%dT%H%M%SZ"


def new_run_id() -> str:
    """A unique id. Ids sort by time."""
    return f"{time.strftime(_FORMAT, time.gmtime())}-{secrets.token_hex(3)}"


def time_of(run_id: str) -> int | None:
    """When a run began, for runs that were thinned out since; None if the id is not one of ours."""
    try:
        return int(datetime.strptime(run_id[:16], _FORMAT).replace(tzinfo=UTC).timestamp() * 1000)
    except ValueError:
        return None
