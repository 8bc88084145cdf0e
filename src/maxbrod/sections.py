"""Sections of the configuration file: their base, the keys that each knows, the jobs of `maxbrod run`, and messages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from maxbrod.option_values import Seconds, Words
from maxbrod.text import did_you_mean

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_HTTP: Final = re.compile(r"https?://[^\s/]+")
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class SectionModel(BaseModel):
    """The base of all sections."""

    # An unknown key is a typing mistake, and a setting that is silently ignored is how backups go missing.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def key(description: str, *, default: Any = None, **bounds: Any) -> Any:  # noqa: ANN401 - as pydantic's own
    return Field(default=default, description=description, **bounds)


def _duration(description: str) -> Any:  # noqa: ANN401 - as above
    return Field(description=description)


def _or_text(schema: dict[str, Any]) -> None:
    """Let editors accept text where it stands for a section."""
    schema["anyOf"].append({"type": "string"})


class PingConfig(SectionModel):
    """A dead man's switch: a service that raises the alarm if a job does not report to it in time."""

    url: SecretStr | None = key(
        "The address of the job at the service. It is asked when the job has succeeded; with /start when it begins, "
        "with /fail when it has failed."
    )
    start: SecretStr | None = key("Another address for the beginning.")
    success: SecretStr | None = key("Another address for success.")
    failure: SecretStr | None = key("Another address for failure.")

    @model_validator(mode="after")
    def _addresses(self) -> PingConfig:
        given = [getattr(self, name) for name in ("url", "start", "success", "failure")]
        if not any(given):
            raise ValueError("a ping needs a url")
        demand_http(given)
        return self


class JobConfig(SectionModel):
    """One job of `maxbrod run`: a verb, its options, and its times."""

    verb: str = Field(description="What to run: backup, check, compact, prune, drill, replicate egress and others.")
    cron: str | None = key("When: five fields, as cron has them: minute, hour, day of month, month, day of week.")
    every: Annotated[Seconds | None, _duration("When: at the multiples of this time, such as 15m or 6h.")] = None
    zone: str = key("The time zone of the cron expression, such as Europe/Berlin.", default="UTC")
    jitter: Annotated[Seconds, _duration("Begin up to this much later, so that not all begin at once.")] = 0.0
    catch_up: bool = key("Run once for slots that came while no scheduler ran.", default=True)
    enabled: bool = key("False: the job is listed and does not run.", default=True)
    archive: str | None = key("Another archive than that of the file.")
    layout: str | None = key("The layout of that archive.")
    cluster: str | None = key("The name of another cluster, of the section clusters.")
    options: dict[str, Any] = Field(default_factory=dict, description="Options of the verb, as in its own section.")
    ping: PingConfig | None = Field(default=None, json_schema_extra=_or_text)

    @model_validator(mode="before")
    @classmethod
    def _ping_is_a_url(cls, values: object) -> object:
        if isinstance(values, dict) and isinstance(values.get("ping"), str):
            return {**values, "ping": {"url": values["ping"]}}
        return values

    @model_validator(mode="after")
    def _times(self) -> JobConfig:
        if self.cron is not None and self.every is not None:
            raise ValueError("a job has cron or every, not both")
        if self.every is not None and self.every < 1:
            raise ValueError("every is at least 1s")
        if self.jitter > 3600 or (self.every is not None and self.jitter > self.every):
            raise ValueError("jitter is at most 1h, and no longer than every")
        return self


class WebhookConfig(SectionModel):
    """A web address that gets each message as JSON, in our own form or as Slack and what imitates it expect it."""

    url: SecretStr = Field(description="The address. It is treated as a secret.")
    style: Literal["json", "slack"] = key("json: all fields. slack: only text.", default="json")
    headers: dict[str, SecretStr] = Field(default_factory=dict, description="Further headers, such as Authorization.")

    @model_validator(mode="after")
    def _address(self) -> WebhookConfig:
        demand_http([self.url])
        return self


class MailConfig(SectionModel):
    """A mail server that takes each message as a mail."""

    host: str = Field(description="The mail server.")
    port: int = key("Its port.", default=587, ge=1, le=65535)
    security: Literal["starttls", "tls", "none"] = key("How the connection is encrypted.", default="starttls")
    username: str | None = key("The user, if the server wants one.")
    password: SecretStr | None = key("The user's password.")
    sender: str = Field(description="The address that mails come from.")
    to: Words = Field(description="The addresses that mails go to.", min_length=1)

    @model_validator(mode="after")
    def _credentials(self) -> MailConfig:
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password belong together")
        if self.password is not None and self.security == "none" and self.host not in _LOOPBACK:
            raise ValueError("a password is not sent over a connection that is not encrypted")
        if any("\n" in address or "\r" in address for address in (self.sender, *self.to)):
            raise ValueError("an address is one line")
        return self


class MessagesConfig(SectionModel):
    """Whom `maxbrod run` tells that a job fails, or that all is well again."""

    after_failures: int = key("Tell after this many failures in a row.", default=1, ge=1)
    no_success_for: Annotated[Seconds | None, _duration("Tell if a job has not succeeded for this time.")] = None
    repeat_every: Annotated[Seconds, _duration("Tell again of what has not changed, after this time.")] = 86_400.0
    group_for: Annotated[Seconds, _duration("Wait this long for what else is to be told, and tell it together.")] = 30.0
    apart: Annotated[Seconds, _duration("The shortest time between two messages.")] = 300.0
    give_up_after: Annotated[Seconds, _duration("Stop trying to deliver a message after this time.")] = 3600.0
    webhooks: tuple[WebhookConfig, ...] = Field(default=(), description="Webhooks: url, style, headers.")
    mail: MailConfig | None = None
    apprise: tuple[SecretStr, ...] = Field(
        default=(), description="Addresses of services as apprise writes them. Needs maxbrod[apprise]."
    )

    @property
    def any(self) -> bool:
        return bool(self.webhooks or self.mail or self.apprise)


def demand_http(addresses: list[SecretStr | None]) -> None:
    """ValueError: one of them is no address of the web."""
    if any(address is not None and not _HTTP.match(address.get_secret_value()) for address in addresses):
        raise ValueError("an address begins with https:// or http://")


def demand_names(jobs: dict[str, JobConfig]) -> dict[str, JobConfig]:
    """The jobs. ValueError: one has a name that cannot stand in a file name, a metric or a mail."""
    if any(_NAME.fullmatch(name) is None for name in jobs):
        raise ValueError("a job's name has up to 63 letters, digits, dots, dashes and underscores")
    return jobs


def suggestion(name: str, known: Iterable[str]) -> str:
    """What to append to the message about an unknown name."""
    names = sorted(known)
    question = did_you_mean(name.replace("-", "_"), names)
    return f"; {question}" if question else f"; known are {', '.join(names)}" if names else ""


def known_keys(model: Any, place: Iterable[Any]) -> list[str]:  # noqa: ANN401 - a model or a dataclass
    """The keys at this place of a configuration."""
    for name in place:
        model = _section_types(model).get(str(name))
    return sorted(_section_types(model))


def _section_types(model: Any) -> dict[str, Any]:  # noqa: ANN401 - as above
    """The keys of a section, each with the section below it, if it is one."""
    if is_dataclass(model):
        return {field.name: None for field in fields(model)}
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return {}
    return {
        name: next((part for part in (field.annotation, *get_args(field.annotation)) if _is_section(part)), None)
        for name, field in model.model_fields.items()
    }


def _is_section(part: Any) -> bool:  # noqa: ANN401 - any annotation
    return is_dataclass(part) or (isinstance(part, type) and issubclass(part, BaseModel))
