"""Chooses the version of each request: the newest that broker and client both support.

The minimum versions are those of Kafka 3.1. It introduced fetching by topic id, without which a topic that was deleted
and recreated looks like the old one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kafka.protocol.api_key import ApiKey

from maxbrod.errors import UnsupportedFormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maxbrod.kafka.wire.connection import Message

OLDEST_KAFKA: Final = "3.1"
_LEAST: Final[dict[int, int]] = {
    ApiKey.DeleteTopics: 6,  # topics by id
    ApiKey.DescribeConfigs: 1,  # has the source of a value
    ApiKey.Fetch: 13,  # topics by id
    ApiKey.FindCoordinator: 4,  # many groups at once
    ApiKey.ListOffsets: 4,  # fences by leader epoch
    ApiKey.Metadata: 10,  # has topic ids
    ApiKey.OffsetFetch: 8,  # many groups at once
    ApiKey.OffsetForLeaderEpoch: 3,
    ApiKey.Produce: 9,  # the first of the layout that is written by hand
    ApiKey.SaslHandshake: 1,  # tokens in requests of their own
}
_MOST: Final[dict[int, int]] = {
    ApiKey.AddPartitionsToTxn: 3,  # later ones are for use between brokers
    ApiKey.DescribeGroups: 5,  # the last that returns the rights on a group that does not exist
    ApiKey.EndTxn: 4,  # from 5 on, each transaction changes the epoch of the producer
    ApiKey.Fetch: 18,  # the newest that the hand-written reader of `fetch.request` supports
    ApiKey.InitProducerId: 5,  # the last without prepared transactions
    ApiKey.OffsetCommit: 9,  # the last with topics by name, as in OffsetFetch
    ApiKey.OffsetFetch: 9,  # the last with topics by name: an offset may outlive its topic, whose id is unknown then
    ApiKey.Produce: 13,  # the newest that `produce.request` supports
    ApiKey.TxnOffsetCommit: 4,  # the last in which the producer itself adds the group to its transaction
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersions:
    """The lowest and the highest version of each API key that a broker supports."""

    broker: str
    ranges: Mapping[int, tuple[int, int]]

    def choose(self, request_class: Message) -> int:
        """The version to use. UnsupportedFormatError if broker and client have none in common."""
        key = int(request_class.API_KEY)
        least, most = _LEAST.get(key, 0), min(_MOST.get(key, 1 << 15), int(request_class.max_version))
        oldest, newest = self.ranges.get(key, (-1, -1))
        if key not in self.ranges:
            raise UnsupportedFormatError(
                f"the broker is too old: it does not know {request_class.name}",
                operation="connect",
                object_name=self.broker,
                hint="upgrade the broker",
            )
        if newest < least:
            raise too_old(self.broker, f"{request_class.name} up to version {newest}, but at least {least} is required")
        if oldest > most:
            raise UnsupportedFormatError(
                f"the broker requires {request_class.name} from version {oldest} on, but {most} is the newest known",
                object_name=self.broker,
                hint="this Kafka is newer than this release of maxbrod: upgrade maxbrod",
            )
        return min(most, newest)


def too_old(broker: str, what: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        f"the broker is too old: it supports {what}",
        operation="connect",
        object_name=broker,
        hint=f"maxbrod requires Kafka {OLDEST_KAFKA} or later: upgrade the broker",
    )
