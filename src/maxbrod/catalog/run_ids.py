"""The ids of runs."""

from __future__ import annotations

import secrets
import time


def new_run_id() -> str:
    """A unique id. Ids sort by time."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(3)}"
