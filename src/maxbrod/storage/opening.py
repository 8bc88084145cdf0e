"""The entry point: opens a `Storage` for a URL and its options.

Opening reads, writes and creates nothing but the folder of `memory://`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.config import StorageConfig
from maxbrod.storage.joined import JoinedStorage, is_joined
from maxbrod.storage.local import LocalStorage
from maxbrod.storage.memory import directory_of
from maxbrod.storage.remote import RemoteStorage
from maxbrod.storage.retrying import RetryPolicy
from maxbrod.storage.stores import open_clients, refuse_foreign_options
from maxbrod.storage.urls import parse_url

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage


def open_storage(url: str, options: StorageConfig | None = None) -> Storage:
    """The storage at a URL; a plain path is a local directory. UsageError: the URL or an option is invalid."""
    options = options or StorageConfig()
    if is_joined(url):
        return JoinedStorage(url)
    location = parse_url(url)
    if location.scheme in {"file", "memory"}:
        refuse_foreign_options(location, options)
        return LocalStorage(directory_of(location), url=location.url, shared=options.shared)
    storage_class = options.s3.storage_class
    return RemoteStorage(
        location.url,
        open_clients(location, options),
        retries=RetryPolicy(deadline_s=options.deadline_s),
        attributes={} if storage_class is None else {"Storage-Class": storage_class},
    )
