"""The same place for delta-rs, which brings a client of its own: options as the strings that it takes.

Secrets are plain text in them: hand them over, and keep, print and log them nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.storage.local import LocalStorage
from maxbrod.storage.memory import directory_of
from maxbrod.storage.opening import open_storage
from maxbrod.storage.stores import refuse_foreign_options, settings_of
from maxbrod.storage.urls import parse_url

if TYPE_CHECKING:
    from maxbrod.config import StorageConfig


def delta_url(url: str) -> str:
    """The same place in words that delta-rs understands: it has no memory that processes share."""
    location = parse_url(url)
    return str(directory_of(location)) if location.scheme in {"file", "memory"} else location.url


def make_table_folder(url: str, options: StorageConfig, folder: str) -> None:
    """In a directory, make the folder of a new table with the rights of our own: delta-rs knows no modes."""
    storage = open_storage(url, options)
    if isinstance(storage, LocalStorage):
        storage.make_folder(f"{folder}/_delta_log")


def delta_options(url: str, options: StorageConfig) -> dict[str, str]:
    """`storage_options` of a `DeltaTable` below this URL; empty for a directory or a memory."""
    location = parse_url(url)
    refuse_foreign_options(location, options)
    if location.scheme in {"file", "memory"}:
        return {}
    vendor = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE_STORAGE"}[location.scheme]
    settings = {f"{vendor}_{name.upper()}": _text(value) for name, value in settings_of(location, options).items()}
    settings["TIMEOUT"] = f"{options.request_timeout_s:g}s"
    if location.scheme == "s3":
        settings["AWS_CONDITIONAL_PUT"] = "etag"
    if "AWS_ENDPOINT" in settings:
        settings["AWS_ENDPOINT_URL"] = settings.pop("AWS_ENDPOINT")
        settings["AWS_ALLOW_HTTP"] = _text(settings["AWS_ENDPOINT_URL"].startswith("http://"))
    return settings


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
