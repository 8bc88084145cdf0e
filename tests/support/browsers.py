"""A real browser for tests: the system's Chromium, driven by Playwright, which brings none of its own."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

AXE: Final = Path(__file__).parents[2] / ".tools" / "axe.min.js"
_FLAGS: Final = (
    # As root, and without anything that asks the network.
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)


@contextmanager
def browser() -> Iterator[Browser]:
    """The browser, or a skipped test where there is none."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("chromium is not installed: scripts/install-test-tools tries to")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        try:
            yield opened
        finally:
            opened.close()
