"""The topic by which two connectors for compacted topics take turns.

`_compacted_log_backup_coordination`: the key is `<instance>-<partition>` of the addressed connector, the value an Avro
single object (C3 01, the schema's fingerprint, the record), or null after it has been received. The key has no topic:
two connectors can take turns for one topic only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.layouts.avro.container import decode_long, encode_bytes, encode_long

TOPIC: Final = "_compacted_log_backup_coordination"
_MARK: Final = b"\xc3\x01"
FINGERPRINT: Final = bytes.fromhex("60ca86f8cd2aabcf")
"""CRC-64-AVRO, little-endian, of the schema of `AvroCompatedLogBackupCoordination-v1.0.avsc` in canonical form."""


class Event(IntEnum):
    """What the connector must do."""

    ACTIVATE = 0
    PASSIVATE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordination:
    """One message. `instance` is the connector's name followed by the partition, as in the key."""

    event: Event
    instance: str
    topic: str
    partition: int
    offset: int
    timestamp_ms: int


def decode_coordination(value: bytes) -> Coordination:
    """Decode a message's value. CorruptDataError: it is not one, or has too few or too many bytes."""
    if value[: len(_MARK)] != _MARK:
        raise UnsupportedFormatError(
            "the value is not an Avro single object", position=0, hint="it should begin with c301"
        )
    at = len(_MARK) + len(FINGERPRINT)
    event, at = decode_long(value, at)
    if event not in set(Event):
        raise CorruptDataError(f"there is no event {event}", position=at)
    instance, at = _text(value, at)
    topic, at = _text(value, at)
    partition, at = decode_long(value, at)
    offset, at = decode_long(value, at)
    timestamp_ms, at = decode_long(value, at)
    if at != len(value):
        raise CorruptDataError(f"{len(value) - at} bytes follow the message", position=at)
    return Coordination(
        event=Event(event),
        instance=instance,
        topic=topic,
        partition=partition,
        offset=offset,
        timestamp_ms=timestamp_ms,
    )


def encode_coordination(message: Coordination, fingerprint: bytes = FINGERPRINT) -> bytes:
    parts = [_MARK, fingerprint, encode_long(message.event), encode_bytes(message.instance.encode())]
    parts.append(encode_bytes(message.topic.encode()))
    parts += [encode_long(number) for number in (message.partition, message.offset, message.timestamp_ms)]
    return b"".join(parts)


def _text(value: bytes, at: int) -> tuple[str, int]:
    size, at = decode_long(value, at)
    if not 0 <= size <= len(value) - at:
        raise CorruptDataError(f"a string cannot have {size} bytes", position=at)
    try:
        return value[at : at + size].decode(), at + size
    except UnicodeDecodeError as error:
        raise CorruptDataError("a string is not UTF-8", position=at) from error
