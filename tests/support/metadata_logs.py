"""Hand-made logs and checkpoints of controllers, field by field as Kafka's own definitions have them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING
from uuid import UUID

from maxbrod.model import topic_id_text
from support.native_logs import pack
from support.plain_batches import Record, write_batch

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "__cluster_metadata-0"
ORDERS = UUID(int=1)
GONE = UUID(int=2)
ORDERS_ID, GONE_ID = topic_id_text(ORDERS), topic_id_text(GONE)
NO_TAGS = b"\0"


def varint(number: int) -> bytes:
    head = b""
    while number >= 0x80:
        head += bytes([number & 0x7F | 0x80])
        number >>= 7
    return head + bytes([number])


def text(value: str | None) -> bytes:
    return b"\0" if value is None else varint(len(value.encode()) + 1) + value.encode()


def blob(value: bytes) -> bytes:
    return varint(len(value) + 1) + value


def ints(*values: int) -> bytes:
    return varint(len(values) + 1) + b"".join(struct.pack(">i", each) for each in values)


def tags(**values: bytes) -> bytes:
    """Named t0, t1 and so on."""
    return varint(len(values)) + b"".join(varint(int(name[1:])) + varint(len(v)) + v for name, v in values.items())


def frame(kind: int, body: bytes, *, version: int = 0, frame_version: int = 1) -> bytes:
    return varint(frame_version) + varint(kind) + varint(version) + body


def topic(name: str, topic_id: UUID) -> bytes:
    return frame(2, text(name) + topic_id.bytes + NO_TAGS)


def partition(topic_id: UUID, number: int, *replicas: int) -> bytes:
    lists = ints(*replicas) + ints(*replicas) + ints() + ints()
    directories = varint(len(replicas) + 1) + bytes(16 * len(replicas))
    body = struct.pack(">i", number) + topic_id.bytes + lists + struct.pack(">iii", replicas[0], 0, 0)
    return frame(3, body + directories + NO_TAGS, version=1)


def reassignment(topic_id: UUID, number: int, *replicas: int) -> bytes:
    changed = tags(t1=struct.pack(">i", 9), t2=ints(*replicas)) if replicas else tags(t1=struct.pack(">i", 9))
    return frame(5, struct.pack(">i", number) + topic_id.bytes + changed, version=2)


def removal(topic_id: UUID) -> bytes:
    return frame(9, topic_id.bytes + NO_TAGS)


def config(name: str, value: str | None, *, topic_name: str = "orders", kind: int = 2) -> bytes:
    return frame(4, struct.pack(">b", kind) + text(topic_name) + text(name) + text(value) + NO_TAGS)


def quota(user: str | None, key: str, value: float, *, removed: bool = False) -> bytes:
    entity = varint(2) + text("user") + text(user) + NO_TAGS
    return frame(14, entity + text(key) + struct.pack(">d?", value, removed) + NO_TAGS)


def acl(number: int, principal: str) -> bytes:
    body = UUID(int=number).bytes + b"\x02" + text("orders") + b"\x03" + text(principal) + text("*") + b"\x03\x03"
    return frame(18, body + NO_TAGS)


def acl_removal(number: int) -> bytes:
    return frame(19, UUID(int=number).bytes + NO_TAGS)


def user(name: str, secret: bytes) -> bytes:
    return frame(11, text(name) + b"\x01" + blob(secret) * 3 + struct.pack(">i", 4096) + NO_TAGS)


def user_removal(name: str) -> bytes:
    return frame(22, text(name) + b"\x01" + NO_TAGS)


def broker(node_id: int, *log_dirs: UUID) -> bytes:
    endpoint = varint(2) + text("PLAINTEXT") + text("here") + struct.pack(">Hh", 9092, 0) + NO_TAGS
    feature = varint(2) + text("kraft.version") + struct.pack(">hh", 0, 1) + NO_TAGS
    directories = varint(len(log_dirs) + 1) + b"".join(each.bytes for each in log_dirs)
    body = struct.pack(">i?", node_id, False) + UUID(int=9).bytes + struct.pack(">q", 5) + endpoint + feature
    return frame(0, body + text("rack") + b"\0\0" + tags(t0=directories), version=3)


def begin() -> bytes:
    return frame(23, NO_TAGS)


def end() -> bytes:
    return frame(24, NO_TAGS)


def abort() -> bytes:
    return frame(25, NO_TAGS)


def batch(offset: int, *values: bytes, epoch: int = 1) -> bytes:
    records = [Record(offset=offset + i, timestamp=1, key=None, value=each) for i, each in enumerate(values)]
    return pack(records, leader_epoch=epoch)


def control(offset: int, kind: int, *, epoch: int = 1) -> bytes:
    """A leader's change (2), or the head (3) and the foot (4) of a checkpoint."""
    record = Record(offset=offset, timestamp=1, key=b"\0\0" + kind.to_bytes(2, "big"), value=b"\0\0")
    return write_batch([record], attributes=0x20, leader_epoch=epoch)


def put_metadata(root: Path, batches: list[bytes], *, base: int = 0) -> Path:
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{base:020}.log"
    file.write_bytes(b"".join(batches))
    return file


def put_checkpoint_of(root: Path, end_offset: int, values: list[bytes], *, epoch: int = 1, whole: bool = True) -> Path:
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{end_offset:020}-{epoch:010}.checkpoint"
    parts = [control(0, 3), batch(1, *values), *([control(1 + len(values), 4)] if whole else [])]
    file.write_bytes(b"".join(parts))
    return file
