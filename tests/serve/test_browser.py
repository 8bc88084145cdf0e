"""The dashboard as people meet it: a process of its own, in a real Chromium."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from support.browsers import AXE, browser
from support.shown_archives import HOSTILE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, BrowserContext, Page

    from support.shown_archives import ShownArchive

pytestmark = pytest.mark.full

PAGES = {
    "wall": "",
    "overview": "archives/shop",
    "topics": "archives/shop/topics?all=1",
    "topic": "archives/shop/topic?name=orders",
    "history": "archives/shop/history?name=orders",
    "records": "archives/shop/records?name=orders&partition=1&offset=40",
    "hostile": f"archives/shop/records?{urlencode({'name': HOSTILE})}",
    "hostile topic": f"archives/shop/topic?{urlencode({'name': HOSTILE})}",
    "runs": "archives/shop/runs",
    "run": "archives/shop/run?id=latest",
    "jobs": "archives/shop/jobs",
    "restore": "archives/shop/restore?topics=orders&plan=1",
    "retention": "archives/shop/retention?older_than=3d&compacted_too=1&keep_daily=5",
    "drills": "archives/shop/drills",
    "replication": "archives/shop/replication",
    "growth": "archives/shop/growth",
    "holds": "archives/shop/holds",
}


@contextmanager
def served(*words: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The command, and the address that it prints."""
    command = [sys.executable, "-m", "maxbrod", "serve", *words, "--listen", "127.0.0.1:0"]
    environment = {**os.environ, "MAXBROD_CONFIG": ""}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    assert process.stdout is not None
    try:
        told = [process.stdout.readline().strip() for _ in range(2)]
        assert told[1].startswith("http"), told
        yield told[1], process
    finally:
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
        assert "ended after" in output


@pytest.fixture(scope="module")
def address(shown: ShownArchive) -> Iterator[str]:
    with served(shown.url) as (url, _):
        yield url


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@contextmanager
def logged_in(chromium: Browser, address: str, **settings: Any) -> Iterator[tuple[Page, list[str]]]:
    """A window that has shown the token, and what its console and its scripts complained about."""
    context: BrowserContext = chromium.new_context(**settings)
    page, complaints = context.new_page(), list[str]()
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    try:
        page.goto(address)
        # Until the archive was read and checked for the first time.
        page.wait_for_function("fetch('/').then(a => a.text()).then(t => t.includes('runs ended well'))", polling=300)
        yield page, complaints
    finally:
        context.close()


def _base(address: str) -> str:
    return address.partition("?")[0]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390)])
def test_every_page_is_whole_in_both_themes_and_on_a_phone(
    chromium: Browser, address: str, scheme: Any, width: int
) -> None:
    grounds = set()
    with logged_in(chromium, address, color_scheme=scheme, viewport={"width": width, "height": 800}) as (page, wrong):
        for name, path in PAGES.items():
            answer = page.goto(_base(address) + path)
            assert answer is not None
            assert answer.status == 200, name
            # What is wider than the window must scroll by itself, not the page.
            overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert overflow <= 0, f"{name} is {overflow} pixels too wide"
            grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert page.title() != "666", f"{name} has run what somebody else has written"
            assert page.locator("h1").count() == 1, name
        assert wrong == []
    (ground,) = grounds
    assert (sum(map(int, ground[4:-1].split(","))) < 200) == (scheme == "dark"), ground


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_that_keeps_people_out(chromium: Browser, address: str, scheme: Any) -> None:
    if not AXE.is_file():
        pytest.skip("axe is not there: scripts/install-test-tools tries to fetch it")
    # Only axe itself needs what the policy forbids: it is put into the page as text.
    with logged_in(chromium, address, color_scheme=scheme, bypass_csp=True) as (page, _):
        for name, path in PAGES.items():
            page.goto(_base(address) + path)
            page.add_script_tag(content=AXE.read_text(encoding="utf-8"))
            # The dark theme differs by its colours alone.
            rules = {"runOnly": ["color-contrast"]} if scheme == "dark" else {}
            found = page.evaluate("rules => axe.run(rules).then(result => result.violations)", rules)
            shown = [(one["id"], one["nodes"][0]["html"], one["nodes"][0]["failureSummary"]) for one in found]
            assert shown == [], name


def test_a_person_finds_a_record_with_the_keyboard_alone(chromium: Browser, address: str) -> None:
    with logged_in(chromium, address) as (page, wrong):
        page.goto(f"{_base(address)}archives/shop/topics")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("/")
        page.keyboard.type("orders")
        page.keyboard.press("Enter")
        page.wait_for_url("**q=orders*")
        page.get_by_role("link", name="orders", exact=True).focus()
        page.keyboard.press("Enter")
        page.wait_for_url("**name=orders*")
        # A bar of the histogram is a link too.
        page.locator("svg.histogram a").first.focus()
        page.keyboard.press("Enter")
        page.wait_for_url("**time=*")
        assert page.locator("table.records tbody tr").count() == 20
        assert wrong == []


def test_a_hostile_record_runs_nothing_even_if_it_is_touched(chromium: Browser, address: str) -> None:
    with logged_in(chromium, address) as (page, wrong):
        page.goto(_base(address) + PAGES["hostile"])
        for cell in page.locator("td.bytes").all():
            cell.hover()
            cell.click()
        for summary in page.locator("summary").all():
            summary.click()
        assert page.title() != "666"
        assert page.locator("main img, main script, main b").count() == 0
        assert wrong == []


def test_another_site_can_neither_read_nor_frame_the_dashboard(chromium: Browser, address: str) -> None:
    with logged_in(chromium, address) as (page, _):
        # The same process under another name: to a browser, another site.
        other = _base(address).replace("127.0.0.1", "localhost")
        page.goto(f"{other}healthz")
        read = page.evaluate(
            "url => fetch(url, {credentials: 'include'}).then(a => a.text()).catch(e => 'refused')", _base(address)
        )
        assert read == "refused" or "shop" not in read
        again = page.context.new_page()
        again.goto(f"{other}login")
        assert again.goto(other).status == 401  # type: ignore[union-attr] # the cookie belongs to the other name


def test_it_prints_with_its_pictures_and_without_its_controls(chromium: Browser, address: str) -> None:
    with logged_in(chromium, address) as (page, _):
        page.goto(_base(address) + PAGES["topics"])
        page.emulate_media(media="print")
        assert not page.locator("form.filter").is_visible()
        assert not page.locator("nav.tabs").is_visible()
        assert page.locator("svg.strip").first.is_visible()
        assert len(page.pdf()) > 10_000
