from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from support.processes import TESTS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.full


def test_one_session_serves_all_is_replaced_when_it_dies_and_closed_when_idle(tmp_path: Path) -> None:
    """In a process of its own: this one may have a session already."""
    drivers = TESTS / "support/programs/sessions.py"
    ran = subprocess.run(
        [sys.executable, drivers, "share"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    facts: dict[str, Any] = json.loads(ran.stdout)
    # Four threads at once, one JVM.
    assert len({pid for pid, _ in facts["used"]}) == 1
    assert {count for _, count in facts["used"]} == {10}
    assert facts["opened_first"] == 1
    # Killed, and replaced by another one that works.
    assert facts["after_kill"][0] != facts["used"][0][0]
    assert facts["after_kill"][1] == 10
    assert (facts["closed_early"], facts["closed_in_use"], facts["closed_idle"]) == (False, False, True)
    assert facts["left"] == []
    assert facts["opened"] == 2
    assert facts["left_at_end"] == []
