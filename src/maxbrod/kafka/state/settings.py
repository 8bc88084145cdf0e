"""Reads settings that were made while the cluster ran, of groups, client metrics and brokers; and levels of features.

What a release of Kafka does not have is no gap: it has no such settings. Kafka 3.7 lists subscriptions to client
metrics, 4.0 has settings of groups, and 4.1 lists both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from kafka.protocol.admin import ListConfigResourcesRequest
from kafka.protocol.metadata import ApiVersionsRequest

from maxbrod.errors import UnsupportedFormatError
from maxbrod.kafka.state.cluster_state import BROKER_SETTINGS, GROUP_SETTINGS, METRICS_SETTINGS, EntitySettings
from maxbrod.kafka.state.topics import BROKER, configs_request
from maxbrod.kafka.wire.client import KafkaClient, in_requests
from maxbrod.kafka.wire.connection import Message
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code, answered_with

KINDS: Final = {BROKER: BROKER_SETTINGS, 16: METRICS_SETTINGS, 32: GROUP_SETTINGS}
"""Kafka's number for each kind of resource."""
_GROUP: Final = 32
_METRICS: Final = 16
_MADE: Final = {2: BROKER_SETTINGS, 3: BROKER_SETTINGS, 7: METRICS_SETTINGS, 8: GROUP_SETTINGS}
"""The sources of values that somebody has set, not those of defaults and files."""
_ONE_BROKER, _ALL_BROKERS = 2, 3
_NAMES_PER_REQUEST: Final = 1_000
_ANY_BROKER: Final = ""


def read_settings(client: KafkaClient, *, groups: Iterable[str], deadline: Deadline) -> tuple[EntitySettings, ...]:
    """All settings. `groups` are those that are known, for brokers that do not list which have settings."""
    return tuple(_read(client, groups, deadline))


def read_features(client: KafkaClient, *, deadline: Deadline) -> Mapping[str, int] | None:
    """The finalized level of each feature; None if this broker does not know them yet."""
    answer = client.ask_any(
        lambda: ApiVersionsRequest(client_software_name="maxbrod", client_software_version="1"), deadline=deadline
    )
    if answer.finalized_features_epoch is None or answer.finalized_features_epoch < 0:
        return None
    return {feature.name: feature.max_version_level for feature in answer.finalized_features or ()}


def _read(client: KafkaClient, groups: Iterable[str], deadline: Deadline) -> Iterator[EntitySettings]:
    for kind, names in _listed(client, groups, deadline).items():
        for asked in in_requests(sorted(names), _NAMES_PER_REQUEST):
            yield from _made(client.ask_any(partial(configs_request, asked, kind), deadline=deadline))
    request = configs_request([_ANY_BROKER], BROKER)
    yield from _made(client.ask_any(lambda: request, deadline=deadline))
    for node_id in sorted(client.metadata([], deadline=deadline).brokers):
        # Only the broker itself tells its own.
        answer = client.ask_broker(node_id, configs_request([node_id], BROKER), deadline=deadline)
        yield from _made(answer, sources=(_ONE_BROKER,))


def _listed(client: KafkaClient, groups: Iterable[str], deadline: Deadline) -> dict[int, list[str]]:
    """The names of resources that have settings, by kind."""
    request = ListConfigResourcesRequest(resource_types=[_METRICS, _GROUP])
    try:
        answer = client.ask_any(lambda: request, deadline=deadline)
    except UnsupportedFormatError:
        return {}
    _demand(answer.error_code)
    found: dict[int, list[str]] = {}
    for resource in answer.config_resources:
        found.setdefault(resource.resource_type or _METRICS, []).append(resource.resource_name)
    if request.API_VERSION == 0:
        # This release cannot list groups, and may have settings of them.
        found[_GROUP] = list(groups)
    return found


def _made(answer: Message, *, sources: Iterable[int] = tuple(_MADE)) -> Iterator[EntitySettings]:
    for result in answer.results:
        if result.resource_type == _GROUP and result.error_code == Code.INVALID_REQUEST:
            continue  # Groups have no settings in this release.
        _demand(result.error_code)
        values = {entry.name: entry.value for entry in result.configs if entry.config_source in sources}
        if values:
            yield EntitySettings(kind=KINDS[result.resource_type], name=result.resource_name, values=values)


def _demand(error_code: int) -> None:
    if error_code:
        raise answered_with(error_code, operation="read settings", object_name="the cluster")
