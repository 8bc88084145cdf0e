"""The ids of runs."""

from __future__ import annotations

import secrets
import time


def new_run_id() -> str:
    """In the order of time, and never the same twice."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(3)}"
