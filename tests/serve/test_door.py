"""Who may look at the dashboard, and what every answer tells a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from starlette.testclient import TestClient

from maxbrod.errors import RefusedError, UsageError
from maxbrod.serve.app import Dashboard
from maxbrod.serve.door import Entrance, entrance_of, parse_address, read_token
from maxbrod.serve.options import ServeOptions

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.serve.shelf import Shelf

TOKEN = "a-token-of-many-letters"
CLOSED = Entrance(host="127.0.0.1", port=8321, token=TOKEN)


def client_of(shelf: Shelf, entrance: Entrance = CLOSED, base_url: str = "http://127.0.0.1:8321") -> TestClient:
    return TestClient(Dashboard(shelf, entrance, wrong_s=0).guard, base_url=base_url, follow_redirects=False)


@pytest.mark.parametrize("path", ["/", "/archives/shop", "/archives/shop/records?name=orders", "/archives/x", "/nope"])
def test_without_the_token_there_is_nothing_but_a_question_for_it(shelf: Shelf, path: str) -> None:
    client = client_of(shelf)
    wrong = "&token=" if "?" in path else "?token="
    for answer in (
        client.get(path),
        client.get(f"{path}{wrong}guess"),
        client.get(path, headers={"authorization": "Bearer guess"}),
        client.get(path, headers={"cookie": "maxbrod-8321=guess"}),
        client.get(path, headers={"cookie": f"maxbrod-8321={TOKEN}"}),
    ):
        assert answer.status_code == 401
        assert "The token, please" in answer.text
        assert "shop" not in answer.text
        assert "set-cookie" not in answer.headers


def test_the_token_in_the_address_becomes_a_cookie_and_leaves_the_address(shelf: Shelf) -> None:
    client = client_of(shelf)
    answer = client.get(f"/archives/shop/topic?name=orders&token={TOKEN}")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/archives/shop/topic?name=orders"
    cookie = answer.headers["set-cookie"]
    assert TOKEN not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert client.get(answer.headers["location"]).status_code == 200


def test_a_redirect_never_leads_to_another_site(shelf: Shelf) -> None:
    answer = client_of(shelf).get(f"//evil.example/x?token={TOKEN}")
    assert not answer.headers.get("location", "/x").startswith(("//", "http"))


def test_the_cookie_travels_only_encrypted_where_there_is_tls(shelf: Shelf) -> None:
    own = client_of(shelf, Entrance(host="127.0.0.1", port=8321, token=TOKEN, tls=True))
    assert "Secure" in own.get(f"/?token={TOKEN}").headers["set-cookie"]
    behind = client_of(shelf).get(f"/?token={TOKEN}", headers={"x-forwarded-proto": "https"})
    assert "Secure" in behind.headers["set-cookie"]


def test_the_form_lets_in_who_types_the_token(shelf: Shelf) -> None:
    client = client_of(shelf)
    wrong = client.post("/login", data={"token": "guess"})
    assert wrong.status_code == 401
    assert "This is not the token." in wrong.text
    assert client.post("/login", data={"token": "x" * 20_000}).status_code == 401
    assert client.post("/login", data={"token": TOKEN}).status_code == 303
    assert client.get("/").status_code == 200


def test_programs_give_the_token_in_a_header(shelf: Shelf) -> None:
    assert client_of(shelf).get("/", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8321", "localhost.evil.example", "10.0.0.1", "", "127.0.0.1.evil.example"]
)
def test_a_request_under_another_name_is_refused_whatever_it_knows(shelf: Shelf, host: str) -> None:
    answer = client_of(shelf).get("/", headers={"host": host, "authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 421


def test_named_hosts_are_answered(shelf: Shelf) -> None:
    named = Entrance(host="127.0.0.1", port=8321, token=None, names=("dash.example.org",))
    client = client_of(shelf, named)
    for host in ("127.0.0.1:8321", "localhost", "[::1]:8321", "dash.example.org", "DASH.example.org:443"):
        assert client.get("/", headers={"host": host}).status_code == 200, host


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"},
    ],
)
def test_pages_of_other_sites_get_nothing(shelf: Shelf, headers: dict[str, str]) -> None:
    client = client_of(shelf)
    client.get(f"/?token={TOKEN}")
    assert client.get("/").status_code == 200
    assert client.get("/", headers=headers).status_code == 403
    assert client.post("/login", data={"token": TOKEN}, headers=headers).status_code == 403


def test_a_link_of_another_site_may_lead_here(shelf: Shelf) -> None:
    client = client_of(shelf)
    client.get(f"/?token={TOKEN}")
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert client.get("/", headers=headers).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(shelf: Shelf, method: str) -> None:
    client = client_of(shelf, Entrance(host="127.0.0.1", port=8321, token=None))
    for path in ("/", "/archives/shop", "/archives/shop/restore"):
        assert client.request(method, path).status_code == 405


@pytest.mark.parametrize(
    "path", ["/", "/login", "/nope", "/healthz", "/static/style.css", "/archives/shop/records.json?name=orders"]
)
def test_every_answer_forbids_foreign_content_frames_and_guessing_of_types(shelf: Shelf, path: str) -> None:
    answer = client_of(shelf).get(path)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == ("private, max-age=3600" if "static" in path else "no-store")


def test_health_needs_no_token_and_names_no_archive(shelf: Shelf) -> None:
    answer = client_of(shelf).get("/healthz")
    assert answer.status_code == 503, "nobody keeps this shelf up to date"
    assert answer.json()["alive"] is False
    assert "shop" not in answer.text


def test_refused_requests_are_counted_and_the_token_is_in_no_representation(shelf: Shelf) -> None:
    dashboard = Dashboard(shelf, CLOSED)
    client = TestClient(dashboard.guard, base_url="http://127.0.0.1:8321")
    client.get("/")
    client.get("/", headers={"host": "evil.example"})
    client.get("/static/style.css")
    assert (dashboard.guard.requests, dashboard.guard.refused) == (3, 2)
    assert TOKEN not in repr(CLOSED)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"listen": "0.0.0.0:1", "token": False}, "could read the archives"),
        ({"listen": "0.0.0.0:1"}, "whoever reads the network"),
        ({"listen": "[::]:1"}, "whoever reads the network"),
        ({"listen": "192.0.2.1:1"}, "whoever reads the network"),
        ({"listen": "0.0.0.0:1", "tls_cert": "cert.pem", "token": False}, "could read the archives"),
    ],
)
def test_strangers_are_never_let_in_by_mistake(options: dict[str, object], said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        entrance_of(ServeOptions(**options), 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options", [{"tls_key": "key.pem"}, {"token": False, "token_file": "token"}, {"listen": "here:1"}]
)
def test_contradictions_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        entrance_of(ServeOptions(**options), 1)  # type: ignore[arg-type]


def test_on_loopback_a_token_is_made_unless_nobody_wants_one() -> None:
    made = entrance_of(ServeOptions(), 8321)
    assert made.generated
    assert made.token is not None
    assert len(made.token) > 40
    assert made.token != entrance_of(ServeOptions(), 8321).token
    assert entrance_of(ServeOptions(token=False), 8321).token is None
    assert entrance_of(ServeOptions(listen="[::1]:0"), 5).address == "http://[::1]:5/"


def test_a_token_file_must_be_private_and_its_token_long(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    assert read_token(path) == TOKEN
    path.chmod(0o644)
    with pytest.raises(RefusedError, match="others may read"):
        read_token(path)
    path.chmod(0o600)
    for text in ("short", "", "two words in a token", "ünïcödé-is-not-a-token"):
        path.write_text(text)
        with pytest.raises(UsageError):
            read_token(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_token(tmp_path / "none")


@pytest.mark.parametrize("listen", ["8321", "localhost:8321", "127.0.0.1:", "127.0.0.1:70000", "127.0.0.1:-1", ""])
def test_an_address_is_an_address(listen: str) -> None:
    with pytest.raises(UsageError, match="is not an address"):
        parse_address(listen)
