"""Messages that describe, set and delete the offsets of share groups, new in Kafka 4.1."""

from __future__ import annotations

from typing import Final

from kafka.protocol.api_message import ApiMessage

_FOLDER: Final = "maxbrod.kafka.wire.messages"


class DescribeShareGroupOffsetsRequest(ApiMessage, load_json=_FOLDER):  # type: ignore[call-arg,misc] # kafka-python is untyped
    pass


class DescribeShareGroupOffsetsResponse(ApiMessage, load_json=_FOLDER):  # type: ignore[call-arg,misc] # kafka-python is untyped
    pass


class AlterShareGroupOffsetsRequest(ApiMessage, load_json=_FOLDER):  # type: ignore[call-arg,misc] # kafka-python is untyped
    pass


class AlterShareGroupOffsetsResponse(ApiMessage, load_json=_FOLDER):  # type: ignore[call-arg,misc] # kafka-python is untyped
    pass


class DeleteShareGroupOffsetsRequest(ApiMessage, load_json=_FOLDER):  # type: ignore[call-arg,misc] # kafka-python is untyped
    pass


class DeleteShareGroupOffsetsResponse(ApiMessage, load_json=_FOLDER):  # type: ignore[call-arg,misc] # kafka-python is untyped
    pass
