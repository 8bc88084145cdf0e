"""Tests whether this process reaches clusters and storage. The preflight calls it in Spark's workers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import MaxbrodError, ObjectExistsError, ObjectNotFoundError, UsageError

if TYPE_CHECKING:
    from maxbrod.config import KafkaConfig, StorageConfig
    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.kafka.wire.deadline import Deadline

_PATIENCE_S: Final = 30.0
"""At most. A broker that restarts during a preflight must not fail the run."""
_STORE_S: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An archive. `witness` is an object in it that the driver sees, which tells a shared folder from another one."""

    url: str
    storage: StorageConfig
    witness: str | None = None
    writes: bool = False
    """True if tasks write objects there."""
    draft: str | None = None
    """The object that workers try to write, the same for all. The driver removes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The places that the tasks of a verb will use."""

    clusters: tuple[KafkaConfig, ...] = ()
    places: tuple[Place, ...] = ()
    patience_s: float = _PATIENCE_S


def reach(needs: Needs) -> list[dict[str, Any]]:
    """Return an error, as `as_dict` gives it, for each place that cannot be reached."""
    errors: list[dict[str, Any]] = []
    for cluster in needs.clusters:
        try:
            _ask(cluster, min(needs.patience_s, _PATIENCE_S))
        except MaxbrodError as error:
            errors.append(error.as_dict())
    for place in needs.places:
        try:
            _look(place)
        except MaxbrodError as error:
            errors.append(error.as_dict())
    return errors


def _ask(config: KafkaConfig, patience_s: float) -> None:
    """Log in at every broker: leaders are reached under the names that brokers advertise, not by the bootstrap's."""
    from maxbrod.kafka.wire.client import KafkaClient, retry  # noqa: PLC0415 - only where there is a cluster
    from maxbrod.kafka.wire.deadline import Deadline  # noqa: PLC0415

    with KafkaClient(config) as client:
        deadline = Deadline.after(patience_s)
        for node in client.metadata([], deadline=deadline).brokers:
            retry(partial(_connect, client, node), deadline=deadline, what=f"broker {node}")


def _connect(client: KafkaClient, node: int, deadline: Deadline) -> None:
    client.connection(node, deadline=deadline)


def is_folder(url: str) -> bool:
    """True if each machine could have a folder of its own under this URL."""
    from maxbrod.storage.composed import is_joined  # noqa: PLC0415 - only where there is an archive
    from maxbrod.storage.urls import parse_url  # noqa: PLC0415

    return not is_joined(url) and parse_url(url).scheme in {"file", "memory"}


def _look(place: Place) -> None:
    from maxbrod.storage.stores import open_storage  # noqa: PLC0415 - only where there is an archive

    # Keys that are missing are searched for at the machine's metadata service, which may not exist.
    hasty = {"deadline_s": _STORE_S, "request_timeout_s": min(place.storage.request_timeout_s, _STORE_S)}
    storage = open_storage(place.url, place.storage.model_copy(update=hasty))
    next(iter(storage.list()), None)
    if place.witness is not None:
        try:
            # One byte, because a right to list need not include a right to read.
            storage.get_range(place.witness, 0, 1)
        except ObjectNotFoundError as error:
            # In a store, another writer may have deleted it meanwhile.
            if is_folder(place.url):
                raise _not_shared(place) from error
    if place.draft is not None:
        # As tasks write segments. If another worker was first, the name is taken: whoever may not write is told that
        # instead.
        with suppress(ObjectExistsError), storage.create(place.draft) as writer:
            writer.write(b"preflight")


def _not_shared(place: Place) -> UsageError:
    return UsageError(
        "the worker sees another folder than the driver",
        object_name=place.url,
        hint="on a cluster an archive must be in object storage, or in a folder that all machines mount",
    )
