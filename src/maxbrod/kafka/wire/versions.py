"""Which version of each request is spoken: the newest that broker and client both know.

The least are what Kafka 3.1 brought: fetching by topic id, without which a topic that was deleted and
recreated looks like the old one.
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
    ApiKey.DescribeConfigs: 1,  # tells where a value was set
    ApiKey.Fetch: 13,  # topics by id
    ApiKey.FindCoordinator: 4,  # many groups at once
    ApiKey.ListOffsets: 4,  # fences by leader epoch
    ApiKey.Metadata: 10,  # tells topic ids
    ApiKey.OffsetFetch: 8,  # many groups at once
    ApiKey.OffsetForLeaderEpoch: 3,
    ApiKey.Produce: 9,  # the first of the layout that is written by hand
    ApiKey.SaslHandshake: 1,  # tokens in requests of their own
}
_MOST: Final[dict[int, int]] = {
    ApiKey.AddPartitionsToTxn: 3,  # later ones are for brokers among themselves
    ApiKey.DescribeGroups: 5,  # the last that tells what is allowed on a group that is not there
    ApiKey.EndTxn: 4,  # from 5 on each transaction changes the producer's epoch
    ApiKey.Fetch: 18,  # the newest that `fetch` was written for: it reads the answer by hand
    ApiKey.InitProducerId: 5,  # the last without prepared transactions
    ApiKey.OffsetCommit: 9,  # the last with topics by name, as in OffsetFetch
    ApiKey.OffsetFetch: 9,  # the last with topics by name: an offset may outlive its topic, and an id would say nothing
    ApiKey.Produce: 13,  # the newest that `produce_request` was written for
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersions:
    """What one broker speaks: the least and the newest version for each API key."""

    broker: str
    ranges: Mapping[int, tuple[int, int]]

    def choose(self, request_class: Message) -> int:
        """The version to use; UnsupportedFormatError where broker and client have none in common."""
        key = int(request_class.API_KEY)
        least, most = _LEAST.get(key, 0), min(_MOST.get(key, 1 << 15), int(request_class.max_version))
        oldest, newest = self.ranges.get(key, (-1, -1))
        if newest < least:
            raise too_old(self.broker, f"{request_class.name} up to version {newest}, and {least} is the least")
        if oldest > most:
            raise UnsupportedFormatError(
                f"the broker wants version {oldest} of {request_class.name} or later, and {most} is the newest known",
                object_name=self.broker,
                hint="this Kafka is newer than this release of maxbrod: upgrade maxbrod",
            )
        return min(most, newest)


def too_old(broker: str, what: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        f"the broker is too old: it speaks {what}",
        operation="connect",
        object_name=broker,
        hint=f"Kafka {OLDEST_KAFKA} is the oldest that maxbrod works with: upgrade the broker",
    )
