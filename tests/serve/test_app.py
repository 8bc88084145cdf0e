"""The dashboard's pages over a real archive, asked without a socket."""

from __future__ import annotations

import re
from collections import Counter
from html import unescape
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

from maxbrod.config import Config
from maxbrod.serve.app import Dashboard
from maxbrod.serve.door import Entrance
from maxbrod.serve.shelf import Shelf, slugs_of
from support.binlog_trees import old_tree
from support.shown_archives import HOSTILE, ORDERS, ShownArchive, id_of, order

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OPEN = Entrance(host="127.0.0.1", port=8321, token=None)
SHOP = "/archives/shop"


@pytest.fixture(scope="module")
def client(shelf: Shelf) -> TestClient:
    return TestClient(Dashboard(shelf, OPEN).guard, base_url="http://127.0.0.1:8321")


def text_of(client: TestClient, path: str, **parameters: object) -> str:
    answer = client.get(f"{path}?{urlencode(parameters)}" if parameters else path)
    assert answer.status_code == 200, answer.text
    return answer.text


def links_in(page: str) -> Iterator[str]:
    for href in re.findall(r'href="([^"]*)"', page):
        target = unescape(href).partition("#")[0]
        if target.startswith("/") and not target.startswith("/static/"):
            yield target


def test_every_link_of_every_page_leads_to_a_page(client: TestClient) -> None:
    waiting, seen, alike = ["/"], {"/"}, Counter[str]()
    while waiting:
        path = waiting.pop()
        answer = client.get(path)
        assert answer.status_code == 200 or path.startswith("/archives/nothing"), f"{path}: {answer.text}"
        for target in links_in(answer.text) if "json" not in path else ():
            # Three of a kind are enough: every page of records leads to another one.
            kind = re.sub(r"=[^&]*", "", target)
            if target not in seen and alike[kind] < 3:
                alike[kind] += 1
                seen.add(target)
                waiting.append(target)
    for section in ("topics", "topic", "records", "runs", "run", "restore", "retention", "drills", "growth", "holds"):
        assert any(path.startswith(f"{SHOP}/{section}") for path in seen), section
    assert any("/history?" in path for path in seen)


def test_the_wall_says_first_what_is_wrong_and_to_when_can_be_restored(client: TestClient) -> None:
    page = text_of(client, "/")
    assert "2 failed" in page
    assert "offsets: unexplained: orders-2 offsets [264, 267): not archived" in page
    assert "it cannot be read: there is no archive" in page
    assert re.search(r'<span class="big">\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ</span>', page)
    assert "12 of the last 14 runs ended well" in page


def test_an_archive_that_cannot_be_read_says_why_and_hides_no_other(client: TestClient) -> None:
    answer = client.get("/archives/nothing")
    assert answer.status_code == 503
    assert "there is no archive" in answer.text


def test_a_topic_shows_its_gaps_with_reasons_its_other_incarnations_and_its_groups(client: TestClient) -> None:
    page = text_of(client, f"{SHOP}/topic", name=ORDERS)
    assert "missing, and nothing explains why" in page
    assert "retention had deleted these before a backup could read them" in page
    assert "40 missing" in page
    assert 'class="cover-unexplained"' in page
    assert id_of("old-orders") in page
    assert "billing" in page
    old = text_of(client, f"{SHOP}/topic", name=ORDERS, id=id_of("old-orders"))
    assert "deleted and created again since" in old


def test_the_history_of_a_configuration_names_the_run_that_first_saw_a_change(client: TestClient) -> None:
    page = text_of(client, f"{SHOP}/history", name=ORDERS)
    assert "604800000" in page
    assert "1209600000" in page
    assert "max.message.bytes" in page


def test_records_are_shown_from_an_offset_and_from_a_time(client: TestClient, shown: ShownArchive) -> None:
    page = text_of(client, f"{SHOP}/records", name=ORDERS, partition=1, offset=41, count=20)
    assert unescape(page).count('"customer"') == 19, "one of the twenty is a tombstone"
    assert 'class="null">null' in page
    assert "--range orders:1:41..61" in page
    times = re.findall(r'mono">(\d{13})<', page)
    later = text_of(client, f"{SHOP}/records", name=ORDERS, partition=1, time=int(times[5]), count=20)
    assert re.findall(r'mono">(\d{13})<', later)[0] == times[5]
    # Beyond the last record there is nothing, and that is said.
    assert "no record from here on" in text_of(
        client, f"{SHOP}/records", name=ORDERS, partition=1, time=4_000_000_000_000
    )


def test_values_are_decoded_by_archived_schemas_or_say_why_not(client: TestClient) -> None:
    page = unescape(text_of(client, f"{SHOP}/records", name="payments"))
    assert '{"payer": "eve", "cents": 1000}' in page
    assert "its schema has the id 9" in page


def test_what_is_shown_can_be_had_as_json(client: TestClient) -> None:
    answer = client.get(f"{SHOP}/records.json?" + urlencode({"name": HOSTILE}))
    document = answer.json()
    assert answer.headers["content-type"] == "application/json"
    assert "attachment" in answer.headers["content-disposition"]
    assert [record["offset"] for record in document["records"]] == [0, 1, 2]
    assert document["records"][1]["value_base64"].startswith("AAH+/w")


@pytest.mark.parametrize("section", ["", "/topics", "/topic", "/records", "/history", "/restore", "/runs"])
def test_a_hostile_name_or_value_never_becomes_markup(client: TestClient, section: str) -> None:
    page = text_of(client, f"{SHOP}{section}", name=HOSTILE, topics=HOSTILE, q="img", verb=HOSTILE, plan=1)
    assert "<img" not in page
    assert "<script>document" not in page
    assert "<b onmouseover" not in page
    assert "\u202e" not in page
    assert "\x07" not in page


def test_the_planner_gives_the_command_and_the_plan_of_exactly_what_was_asked(client: TestClient) -> None:
    page = unescape(text_of(client, f"{SHOP}/restore", topics=ORDERS, suffix="-before", bootstrap="b1:9092", plan=1))
    assert "maxbrod restore --archive" in page
    assert "--bootstrap b1:9092 --topic orders --suffix -before" in page or "--suffix=-before" in page
    assert "orders-before" in page
    assert "Would be refused" in page
    accepted = unescape(text_of(client, f"{SHOP}/restore", topics=ORDERS, accept_gaps=1, plan=1))
    assert "Can be restored" in accepted
    assert "--accept-gaps" in accepted
    wrong = unescape(text_of(client, f"{SHOP}/restore", topics=ORDERS, since="yesterday", plan=1))
    assert "This cannot be planned." in wrong
    assert "yesterday" in wrong


def test_a_plan_of_too_much_is_refused_before_it_is_made(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maxbrod.serve.answers._PLANNED_SEGMENTS", 10)
    assert "is not made here" in text_of(client, f"{SHOP}/restore", topics="o*", suffix="x", plan=1)
    assert "is not made here" not in text_of(client, f"{SHOP}/restore", topics="payments", suffix="x", plan=1)


def test_the_simulator_says_what_goes_what_stays_and_why(client: TestClient) -> None:
    page = unescape(text_of(client, f"{SHOP}/retention", older_than="3d", compacted_too=1, keep_daily=5))
    assert "maxbrod prune" in page
    assert "--older-than 3d" in page
    assert "goes: all its records are older" in page
    assert "a lawsuit <b>is</b> pending" in page
    assert "in 365 days" in page
    assert "is no length of time" in unescape(text_of(client, f"{SHOP}/retention", older_than="soon"))


def test_drills_checks_growth_replication_and_holds_are_shown(client: TestClient) -> None:
    drills = text_of(client, f"{SHOP}/drills")
    assert "differs" in drills
    assert "1,400" in drills
    assert "deep check" in drills
    assert "a day" in text_of(client, f"{SHOP}/growth")
    assert "was 56 offsets behind" in text_of(client, f"{SHOP}/replication")
    assert "In force" in text_of(client, f"{SHOP}/holds")


def test_jobs_of_a_scheduler_are_shown_with_what_is_wrong(client: TestClient) -> None:
    page = unescape(text_of(client, f"{SHOP}/jobs"))
    assert "The scheduler on ops1 reported" in page
    assert page.index("sweep") < page.index("nightly"), "what fails comes first"
    assert "2 failures in a row. the store <did> not answer" in page


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nothing-here", 404),
        ("/archives/other", 404),
        (f"{SHOP}/topic?name=unknown", 404),
        (f"{SHOP}/topic?name=orders&id=unknown", 404),
        (f"{SHOP}/records?name=orders&partition=99", 404),
        (f"{SHOP}/records?name=orders&offset=minus", 404),
        (f"{SHOP}/records?name=orders&time=noon", 404),
        (f"{SHOP}/run?id=unknown", 404),
        (f"{SHOP}/topics?from={'9' * 30}", 404),
        ("/static/../app.py", 404),
        ("/static/%2e%2e/app.py", 404),
    ],
)
def test_what_is_not_there_is_not_found_and_nothing_breaks(client: TestClient, path: str, status: int) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert "Traceback" not in answer.text


def test_a_damaged_object_is_told_and_the_page_of_its_topic_stays(tmp_path: Path) -> None:
    made = ShownArchive(str(tmp_path / "archive"))
    made.backup(1_790_000_000_000, {(ORDERS, 0): [order(number, 1_790_000_000_000) for number in range(9)]})
    for pack in (tmp_path / "archive" / "packs").iterdir():
        pack.unlink()
    shelf = Shelf([made.url], Config(), every_s=3600)
    shelf.renew()
    client = TestClient(Dashboard(shelf, OPEN).guard, base_url="http://localhost")
    answer = client.get("/archives/archive/records?name=orders")
    assert answer.status_code == 502
    assert "the object is not there" in answer.text
    assert client.get("/archives/archive/topic?name=orders").status_code == 200
    assert "objects are missing or damaged" in client.get("/").text


def test_pages_show_news_only_when_the_archive_has_them_and_say_of_when_they_are(tmp_path: Path) -> None:
    made = ShownArchive(str(tmp_path / "archive"))
    at = 1_790_000_000_000
    made.backup(at, {(ORDERS, 0): [order(number, at) for number in range(9)]})
    shelf = Shelf([made.url], Config(), every_s=3600)
    shelf.renew()
    (volume,) = shelf.volumes.values()
    first = volume.edition
    shelf.renew()
    assert volume.edition is first, "without a commit, nothing is read again"
    made.backup(at + 1000, {(ORDERS, 0): [order(number, at) for number in range(9, 12)]})
    volume._took_s = 0.0
    shelf.renew()
    assert volume.edition is not first
    client = TestClient(Dashboard(shelf, OPEN).guard, base_url="http://localhost")
    page = client.get("/archives/archive/topics").text
    assert "12 records" in page
    assert "version 2 of its catalog" in page


def test_an_archive_has_a_name_of_its_own_in_addresses() -> None:
    assert slugs_of(["s3://a/kafka", "s3://b/kafka/", "/x/../", "file:///b/K a"]) == [
        "kafka",
        "kafka-2",
        "archive",
        "k-a",
    ]


def test_an_archive_of_another_tool_is_shown_with_what_it_records_and_no_more(tmp_path: Path) -> None:
    shelf = Shelf([str(old_tree(tmp_path / "tree"))], Config(), every_s=3600)
    shelf.renew()
    client = TestClient(Dashboard(shelf, OPEN).guard, base_url="http://localhost")
    wall = unescape(client.get("/").text)
    assert "layout binlog" in wall
    assert "another tool's archive records none" in wall
    assert "no runs are recorded" in wall
    records = client.get("/archives/tree/records?name=orders&offset=8").text
    assert "value 12" in records
    assert "of another tool, which does not say which runs there were" in client.get("/archives/tree/runs").text
    for page in ("", "/topics", "/topic?name=orders", "/restore?plan=1", "/retention?older_than=1d", "/growth"):
        assert client.get(f"/archives/tree{page}").status_code == 200, page
