"""Where the share groups of a cluster stand: DescribeShareGroupOffsets, which Kafka 4.1 brought."""

from __future__ import annotations

from typing import Final

from kafka.protocol.api_message import ApiMessage

_FOLDER: Final = "maxbrod.kafka.messages"


class DescribeShareGroupOffsetsRequest(ApiMessage, load_json=_FOLDER):  # type: ignore[call-arg,misc] # kafka-python is untyped
    pass


class DescribeShareGroupOffsetsResponse(ApiMessage, load_json=_FOLDER):  # type: ignore[call-arg,misc] # kafka-python is untyped
    pass
