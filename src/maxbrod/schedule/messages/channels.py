"""The ways of a message: a webhook, a mail, a service of apprise, and the addresses of a dead man's switch.

Each sends one message once. `DeliveryError` says whether another attempt may help. No error contains an address, which
is a secret.
"""

from __future__ import annotations

import json
import smtplib
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final, Protocol

from maxbrod import __version__
from maxbrod.errors import EnvironmentMissingError

if TYPE_CHECKING:
    from pydantic import SecretStr

    from maxbrod.schedule.messages.alarm import JobMessage
    from maxbrod.sections import MailConfig, MessagesConfig, PingConfig, WebhookConfig

_TIMEOUT_S: Final = 10.0
_TRY_AGAIN: Final = frozenset({408, 425, 429})
_TRANSIENT_MAIL: Final = range(400, 500)
_SUBJECT_MAX: Final = 200


class DeliveryError(Exception):
    """A message did not arrive, as far as is known."""

    def __init__(self, message: str, *, again: bool, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.again, self.after_s = again, after_s


class MessageChannel(Protocol):
    name: str
    """For the log: what it is, without an address."""

    def send(self, message: JobMessage) -> None:
        """DeliveryError: it did not arrive."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An address that sends us elsewhere is a mistake: what is sent may not be for the other one."""

    def redirect_request(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - as the library's
        return None


def ask(url: SecretStr, *, body: object = None, headers: Mapping[str, SecretStr] | None = None) -> None:
    """Send a request, with JSON if there is a body, and demand success."""
    data = None if body is None else json.dumps(body).encode()
    own = {"User-Agent": f"maxbrod/{__version__}"} | ({} if data is None else {"Content-Type": "application/json"})
    given = {name: value.get_secret_value() for name, value in (headers or {}).items()}
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        # The configuration admits only http and https.
        request = urllib.request.Request(url.get_secret_value(), data=data, headers=own | given)  # noqa: S310
        with opener.open(request, timeout=_TIMEOUT_S):
            return
    except urllib.error.HTTPError as error:
        error.close()
        again = error.code >= 500 or error.code in _TRY_AGAIN
        raise DeliveryError(f"the answer was {error.code}", again=again, after_s=_retry_after(error)) from None
    except urllib.error.URLError as error:
        raise DeliveryError(f"it cannot be reached: {_reason(error.reason)}", again=True) from None
    except (OSError, HTTPException) as error:
        raise DeliveryError(f"it did not answer: {_reason(error)}", again=True) from None
    except (ValueError, UnicodeError):
        raise DeliveryError("its address is wrong", again=False) from None


def _retry_after(error: urllib.error.HTTPError) -> float:
    text = (error.headers.get("Retry-After") or "").strip()
    return float(text) if text.isdigit() and len(text) < 6 else 0.0


def _reason(error: object) -> str:
    """A reason without an address: only what kind of failure it was."""
    said = getattr(error, "strerror", None)
    return str(said or type(error).__name__)


class Webhook:
    def __init__(self, config: WebhookConfig, number: int) -> None:
        self._config = config
        self.name = f"webhook {number}" if config.style == "json" else f"webhook {number} (Slack)"

    def send(self, message: JobMessage) -> None:
        body = message_document(message) if self._config.style == "json" else {"text": slack_text(message)}
        ask(self._config.url, body=body, headers=self._config.headers)


def message_document(message: JobMessage) -> dict[str, Any]:
    """Return what the generic webhook posts."""
    return {
        "maxbrod": 1,
        "title": message.title,
        "text": message.text,
        "all_well": message.all_well,
        "archive": message.archive,
        "host": message.host,
        "at_ms": message.at_ms,
        "news": [asdict(item) for item in message.news],
        "still": list(message.still),
    }


def slack_text(message: JobMessage) -> str:
    """The text in the form of Slack, whose three special characters are escaped."""
    text = f"{message.title}\n{message.text}"
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Mail:
    def __init__(self, config: MailConfig) -> None:
        self._config = config
        self.name = "mail"

    def send(self, message: JobMessage) -> None:
        mail = mail_of(message, self._config)
        try:
            with self._connect() as server:
                if self._config.username is not None and self._config.password is not None:
                    server.login(self._config.username, self._config.password.get_secret_value())
                refused = server.send_message(mail)
        except smtplib.SMTPResponseException as error:
            again = error.smtp_code in _TRANSIENT_MAIL
            raise DeliveryError(f"the mail server answered with {error.smtp_code}", again=again) from None
        except smtplib.SMTPRecipientsRefused as error:
            again = all(code in _TRANSIENT_MAIL for code, _ in error.recipients.values())
            raise DeliveryError("the mail server refused all addresses", again=again) from None
        except smtplib.SMTPNotSupportedError as error:
            raise DeliveryError(f"the mail server cannot do this: {error}", again=False) from None
        except (OSError, smtplib.SMTPException) as error:
            raise DeliveryError(f"the mail server cannot be reached: {_reason(error)}", again=True) from None
        if refused:
            raise DeliveryError(f"the mail server refused {len(refused)} of the addresses", again=False)

    def _connect(self) -> smtplib.SMTP:
        config = self._config
        if config.security == "tls":
            return smtplib.SMTP_SSL(config.host, config.port, timeout=_TIMEOUT_S, context=ssl.create_default_context())
        server = smtplib.SMTP(config.host, config.port, timeout=_TIMEOUT_S)
        if config.security == "starttls":
            try:
                server.starttls(context=ssl.create_default_context())
            except BaseException:
                server.close()
                raise
        return server


def mail_of(message: JobMessage, config: MailConfig) -> EmailMessage:
    mail = EmailMessage()
    # A job's error may contain line breaks, which would begin another header.
    mail["Subject"] = " ".join(message.title.split())[:_SUBJECT_MAX]
    mail["From"], mail["To"] = config.sender, ", ".join(config.to)
    mail["Date"] = format_datetime(datetime.fromtimestamp(message.at_ms / 1000, UTC))
    mail["Message-ID"] = make_msgid(domain="maxbrod.invalid")
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(message.text + "\n")
    return mail


class AppriseService:
    """One of the services that apprise knows."""

    def __init__(self, address: SecretStr, number: int) -> None:
        try:
            from apprise import Apprise  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise EnvironmentMissingError(
                "messages through apprise need another package", hint="pip install 'maxbrod[apprise]'"
            ) from error
        self.name = f"apprise {number}"
        self._service = Apprise()
        self._known = bool(self._service.add(address.get_secret_value()))

    def send(self, message: JobMessage) -> None:
        if not self._known:
            raise DeliveryError("apprise does not know this kind of address", again=False)
        if not self._service.notify(title=message.title, body=message.text):
            raise DeliveryError("the service did not take it", again=True)


def channels_of(config: MessagesConfig) -> list[MessageChannel]:
    """Return the channels of a configuration. EnvironmentMissingError: apprise is not installed."""
    channels: list[MessageChannel] = [Webhook(hook, number) for number, hook in enumerate(config.webhooks, 1)]
    if config.mail is not None:
        channels.append(Mail(config.mail))
    return [*channels, *(AppriseService(address, number) for number, address in enumerate(config.apprise, 1))]


def ping_address(config: PingConfig, event: str) -> SecretStr | None:
    """Return the address to ask at an event: start, success or failure. None: none."""
    own: SecretStr | None = getattr(config, event)
    if own is not None or config.url is None:
        return own
    suffix = {"start": "/start", "success": "", "failure": "/fail"}[event]
    # A query stays behind the path.
    base, question, query = config.url.get_secret_value().partition("?")
    return type(config.url)(f"{base.rstrip('/')}{suffix}{question}{query}")
