"""Channels against real servers on loopback."""

from __future__ import annotations

import logging
import socket
import ssl
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.smtp import AuthResult
from pydantic import SecretStr, ValidationError

from maxbrod.config import Config
from maxbrod.sandbox.security import CA_FILE, write_certificates
from maxbrod.schedule.messages.alarm import JobMessage, JobNews
from maxbrod.schedule.messages.channels import DeliveryError, ask, channels_of, ping_address
from maxbrod.schedule.messages.courier import Courier, Delivery
from maxbrod.schedule.messages.mask import MASK, Masker
from maxbrod.sections import MailConfig, MessagesConfig, PingConfig
from support.message_servers import eventually, mail_server, web_server

NEWS = JobNews(
    job="nightly",
    verb="backup",
    state="failed",
    text="failed: <broker> & co\nis gone",
    exit_code=1,
    failures=2,
    last_success_ms=None,
)
MESSAGE = JobMessage(archive="s3://backups/kafka", host="here", at_ms=1_795_000_000_000, news=(NEWS,))


def send(message: JobMessage = MESSAGE, **config: Any) -> None:
    (channel,) = channels_of(MessagesConfig.model_validate(config))
    channel.send(message)


def test_a_webhook_gets_the_whole_message_as_json() -> None:
    with web_server() as web:
        send(webhooks=[{"url": f"{web.url}/hook?key=1", "headers": {"Authorization": "Bearer word"}}])
    (request,) = web.requests
    assert (request.method, request.path) == ("POST", "/hook?key=1")
    assert request.headers["Authorization"] == "Bearer word"
    assert request.headers["Content-Type"] == "application/json"
    document = request.document
    assert (document["maxbrod"], document["all_well"], document["archive"]) == (1, False, "s3://backups/kafka")
    assert document["news"][0]["job"] == "nightly"


def test_a_webhook_in_the_style_of_slack_gets_text_that_is_no_markup() -> None:
    with web_server() as web:
        send(webhooks=[{"url": web.url, "style": "slack"}])
    document = web.requests[0].document
    assert list(document) == ["text"]
    assert "&lt;broker&gt; &amp; co" in document["text"]


@pytest.mark.parametrize(("status", "again"), [(500, True), (503, True), (429, True), (404, False), (401, False)])
def test_only_an_answer_that_may_change_is_worth_another_attempt(status: int, again: bool) -> None:
    with web_server() as web:
        web.answers = [(status, {"Retry-After": "7"})]
        with pytest.raises(DeliveryError) as caught:
            send(webhooks=[{"url": f"{web.url}/secret-path"}])
    assert (caught.value.again, caught.value.after_s) == (again, 7.0)
    assert "secret-path" not in str(caught.value)


def test_a_redirect_is_not_followed_because_the_message_is_not_for_others() -> None:
    with web_server() as web, web_server() as other:
        web.answers = [(302, {"Location": f"{other.url}/elsewhere"}), (307, {"Location": f"{other.url}/elsewhere"})]
        for _ in range(2):
            with pytest.raises(DeliveryError):
                send(webhooks=[{"url": web.url}])
    assert other.requests == []


def test_a_server_that_is_not_there_is_tried_again() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(DeliveryError) as caught:
            send(webhooks=[{"url": f"http://127.0.0.1:{taken.getsockname()[1]}/path"}])
    assert caught.value.again


def mail(port: int, **changes: Any) -> dict[str, Any]:
    basic = {"host": "127.0.0.1", "port": port, "security": "none", "sender": "maxbrod@example.com"}
    return {**basic, "to": ["a@example.com", "b@example.com"], **changes}


def test_a_mail_goes_to_all_addresses_and_no_name_can_add_a_header() -> None:
    hostile = replace(NEWS, job="x\nBcc: other@example.com")
    with mail_server() as server:
        send(replace(MESSAGE, news=(hostile,)), mail=mail(server.port))
    assert server.recipients == [["a@example.com", "b@example.com"]]
    (received,) = server.mails
    assert received["Bcc"] is None
    assert received["Auto-Submitted"] == "auto-generated"
    assert "needs attention" in received["Subject"]
    assert "s3://backups/kafka" in received.get_payload()


def test_a_password_is_sent_over_tls_only_to_a_server_with_a_trusted_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_certificates(tmp_path / "tls", [])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "tls" / "server.pem")
    logins = []

    def authenticate(_server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any) -> AuthResult:
        logins.append((data.login, data.password))
        return AuthResult(success=True)

    options = {"tls_context": context, "require_starttls": True, "authenticator": authenticate}
    login = {"host": "localhost", "security": "starttls", "username": "me", "password": "pass word"}
    with mail_server(**options) as server:
        with pytest.raises(DeliveryError):
            send(mail=mail(server.port, **login))
        assert logins == []
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "tls" / CA_FILE))
        send(mail=mail(server.port, **login))
    assert logins == [(b"me", b"pass word")]
    assert len(server.mails) == 1


def test_a_password_is_never_configured_for_a_connection_that_is_not_encrypted() -> None:
    with pytest.raises(ValidationError, match="not encrypted"):
        MailConfig.model_validate(mail(25, host="mail.example.com", username="a", password="b"))


@pytest.mark.parametrize(("answer", "again"), [("451 later", True), ("550 no", False)])
def test_a_mail_server_decides_whether_another_attempt_may_help(answer: str, again: bool) -> None:
    with mail_server() as server:
        server.refusals = [answer]
        with pytest.raises(DeliveryError) as caught:
            send(mail=mail(server.port))
    assert caught.value.again == again


@pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")  # in a library of apprise
def test_services_of_apprise_get_messages() -> None:
    with web_server() as web:
        send(apprise=[web.url.replace("http://", "json://") + "/token"])
    assert web.requests[0].path == "/token"
    assert "nightly" in web.requests[0].document["message"]


def test_pings_go_to_the_address_of_their_event() -> None:
    derived = PingConfig.model_validate({"url": "https://ping.example/uuid/?rid=1"})
    own = PingConfig.model_validate({"success": "https://a.example/ok"})
    addresses = [ping_address(derived, event) for event in ("start", "success", "failure")]
    assert [address and address.get_secret_value() for address in addresses] == [
        "https://ping.example/uuid/start?rid=1",
        "https://ping.example/uuid?rid=1",
        "https://ping.example/uuid/fail?rid=1",
    ]
    assert ping_address(own, "failure") is None


def test_a_courier_delivers_in_order_and_tries_again() -> None:
    with web_server() as web, Courier(first_pause_s=0.01) as courier:
        web.answers = [(503, {}), (503, {})]
        for number in range(3):
            address = SecretStr(f"{web.url}/{number}")
            courier.give("a", Delivery(send=partial(ask, address), what="x", give_up_after_s=60))
        eventually(lambda: courier.delivered == 3)
        assert web.paths == ["/0", "/0", "/0", "/1", "/2"]


def test_a_channel_that_does_not_answer_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    with web_server() as web, web_server() as good, Courier(first_pause_s=0.01) as courier:
        web.answers = [(500, {})] * 1000
        address = SecretStr(f"{web.url}/hidden-word")
        with caplog.at_level(logging.WARNING):
            courier.give("bad", Delivery(send=partial(ask, address), what="x", give_up_after_s=0.2))
            courier.give("good", Delivery(send=partial(ask, SecretStr(good.url)), what="x", give_up_after_s=60))
            eventually(lambda: (courier.delivered, courier.failed) == (1, 1))
    assert len(web.requests) > 1
    assert "could not be delivered" in caplog.text
    assert "hidden-word" not in caplog.text


def test_a_service_that_raises_anything_does_not_end_deliveries() -> None:
    def explode() -> None:
        raise RuntimeError("a bug of somebody else")

    with web_server() as web, Courier() as courier:
        courier.give("a", Delivery(send=explode, what="x", give_up_after_s=60))
        courier.give("a", Delivery(send=partial(ask, SecretStr(web.url)), what="x", give_up_after_s=60))
        eventually(lambda: (courier.delivered, courier.failed) == (1, 1))


def test_every_secret_of_a_configuration_is_masked_wherever_it_stands() -> None:
    config = Config.model_validate(
        {
            "archive": "s3://b/k",
            "storage": {"s3": {"access_key_id": "AKIAKEY", "secret_access_key": "store/secret+1"}},
            "kafka": {
                "bootstrap": "b:1",
                "security_protocol": "SASL_SSL",
                "sasl": {"mechanism": "PLAIN", "username": "u", "password": "kafka-pass"},
            },
            "clusters": {
                "other": {
                    "bootstrap": "c:1",
                    "security_protocol": "SASL_SSL",
                    "sasl": {"mechanism": "PLAIN", "username": "u", "password": "other-pass"},
                }
            },
            "messages": {
                "webhooks": [{"url": "https://h.example/services/T0/XYZ", "headers": {"A": "header-word"}}],
                "mail": {"host": "m", "sender": "a", "to": "b", "username": "u", "password": "mail-pass"},
                "apprise": ["tgram://bot-token/chat"],
            },
            "jobs": {"j": {"verb": "backup", "cron": "0 3 * * *", "ping": "https://p.example/uuid-1"}},
        }
    )
    said = (
        "AKIAKEY store/secret+1 store%2Fsecret%2B1 kafka-pass other-pass https://h.example/services/T0/XYZ "
        "/services/T0/XYZ header-word mail-pass tgram://bot-token/chat https://p.example/uuid-1 "
        "http://me:word@proxy:1/x"
    )
    masked = Masker(config)(said)
    assert set(masked.split()) - {MASK, f"http://{MASK}@proxy:1/x"} == set()
    assert Masker(config)("topic orders failed at offset 7") == "topic orders failed at offset 7"


@pytest.mark.parametrize("form", ["a b/c+d", "a%20b/c%2Bd", "a%20b%2Fc%2Bd", "a+b%2Fc%2Bd"])
def test_a_secret_is_masked_as_it_stands_in_an_address(form: str) -> None:
    assert Masker({"password": SecretStr("a b/c+d")})(f"<{form}>") == f"<{MASK}>"
