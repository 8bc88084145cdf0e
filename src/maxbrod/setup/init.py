"""`maxbrod init`: writes a commented configuration file from a few answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

from maxbrod.config import Config, KafkaConfig, StorageConfig, load_config
from maxbrod.errors import RefusedError, UsageError
from maxbrod.option_values import show_seconds
from maxbrod.private_files import private_opener
from maxbrod.setup.options import FOREVER

_PASSWORD: Final = "KAFKA_PASSWORD"  # noqa: S105 - the name of a variable


@dataclass(frozen=True, slots=True, kw_only=True)
class InitAnswers:
    """What `maxbrod init` asks for."""

    kafka: KafkaConfig
    archive: str
    """Written as an absolute path if it is a folder: commands may run in any other."""
    storage: StorageConfig
    topics: tuple[str, ...]
    every_s: float
    keep: str
    """How long records are kept, or `forever`."""


def refuse_existing(file: Path, *, force: bool) -> None:
    """RefusedError: the file exists, and may not be replaced."""
    if file.exists() and not force:
        raise RefusedError("the file exists", object_name=str(file), hint="name another one, or say --force")


def write_config(file: Path, answers: InitAnswers, *, force: bool) -> Config:
    """Write the file, for this user alone, and return what it says. RefusedError: it exists."""
    refuse_existing(file, force=force)
    text = "\n".join(_lines(answers)) + "\n"
    try:
        file.unlink(missing_ok=True)
        with open(file, "x", encoding="utf-8", opener=private_opener) as opened:
            opened.write(text)
    except OSError as error:
        raise UsageError(f"the file cannot be written: {error.strerror}", object_name=str(file)) from error
    # With any value in place of secrets: the file must be one that every verb can read.
    return load_config(file, {_PASSWORD: "-"})


def _lines(answers: InitAnswers) -> Iterator[str]:
    yield "# The configuration of maxbrod. It may have every option of every verb; a flag overrides it."
    yield "# 'maxbrod config' shows what is in force, 'maxbrod help configuration' has all keys."
    yield ""
    yield "# Where archived records go: a folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix."
    yield f"archive: {_text(_absolute(answers.archive))}"
    yield from _storage(answers.storage)
    yield ""
    yield "# The cluster. The properties of Kafka's own clients are accepted, too. ${NAME} is a variable of the"
    yield "# environment, where secrets belong."
    yield "kafka:"
    yield from _cluster(answers.kafka)
    yield ""
    yield "backup:"
    yield "  # Names, globs such as 'orders-*', or /regular expressions/. Without topics: all but internal ones."
    if answers.topics:
        yield f"  topics: [{', '.join(map(_text, answers.topics))}]"
    else:
        yield "  # topics: ['orders-*']"
    yield "  # 'maxbrod backup --follow' looks for new records this often: what you can lose in the worst case."
    yield f"  every: {show_seconds(answers.every_s)}"
    yield "  # exclude: ['tmp-*']"
    yield "  # metrics_port: 9464"
    yield ""
    off = "# " if answers.keep == FOREVER else ""
    yield f"{off}prune:"
    yield f"{off}  # Older records go when 'maxbrod prune --apply' runs, and can be brought back for 7 days."
    yield f"{off}  older_than: {'90d' if off else answers.keep}"


def _absolute(url: str) -> str:
    return url if "://" in url else str(Path(url).expanduser().absolute())


def _storage(storage: StorageConfig) -> Iterator[str]:
    given = storage.s3.model_dump(exclude_defaults=True)
    given = {key: value for key, value in given.items() if not isinstance(value, SecretStr)}
    if given:
        yield "storage:"
        yield "  # Keys come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or from the machine's role."
        yield "  s3:"
        yield from (f"    {key}: {_text(value)}" for key, value in given.items())


def _cluster(kafka: KafkaConfig) -> Iterator[str]:
    yield f"  bootstrap: {_text(kafka.bootstrap)}"
    if kafka.security_protocol == "PLAINTEXT":
        yield "  # security_protocol: SASL_SSL"
        yield f"  # sasl: {{mechanism: SCRAM-SHA-512, username: backup, password: '${{{_PASSWORD}}}'}}"
        return
    yield f"  security_protocol: {kafka.security_protocol}"
    for name, section in (("tls", kafka.tls), ("sasl", kafka.sasl)):
        given: dict[str, Any] = {} if section is None else section.model_dump(exclude_defaults=True)
        if given:
            yield f"  {name}:"
            for key, value in given.items():
                secret = isinstance(value, SecretStr)
                yield f"    {key}: {_text(f'${{{_PASSWORD}}}') if secret else _text(value)}"


def _text(value: object) -> str:
    """A value as YAML reads it back: JSON is YAML."""
    return json.dumps(value if isinstance(value, int | dict | list) else str(value), ensure_ascii=False)
