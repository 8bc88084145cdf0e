"""Protobuf messages become what Google's own library makes of them; damage never reads beyond a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from maxbrod.errors import UnsupportedFormatError, UsageError
from maxbrod.table.values.decode import decode, encoded
from maxbrod.table.values.protobuf import compile_files, compile_protobuf, read_descriptors

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    "shop.proto": """
        syntax = "proto3";
        package shop;
        import "common/money.proto";
        import "google/protobuf/timestamp.proto";
        message Order {
          enum State { NEW = 0; DONE = 5; }
          message Line { string sku = 1; int32 count = 2; repeated sint32 moves = 3; optional Line part = 4; }
          int64 id = 1;
          uint64 big = 2;
          sint32 signed = 3;
          fixed32 four = 4;
          sfixed32 four_signed = 40;
          sfixed64 eight = 5;
          double price = 6;
          float weight = 7;
          bool paid = 8;
          string who = 9;
          optional string nick = 10;
          bytes raw = 11;
          State state = 12;
          Cost cost = 13;
          repeated string tags = 14;
          repeated Cost costs = 16;
          map<string, int32> counts = 17;
          map<int64, Cost> by_day = 18;
          oneof either { int32 number = 19; string word = 20; }
          google.protobuf.Timestamp at = 21;
          Line line = 22;
          uint32 plain = 23;
        }
        message Cost { common.Money money = 1; repeated int64 parts = 2; }
    """,
    "common/money.proto": 'syntax = "proto3"; package common; message Money { int64 units = 1; string currency = 2; }',
}


@pytest.fixture(scope="module")
def descriptors() -> bytes:
    return compile_files(FILES, main="shop.proto")


@pytest.fixture(scope="module")
def order(descriptors: bytes) -> Any:
    """Google's own class of the message."""
    pool = descriptor_pool.DescriptorPool()
    for each in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
        pool.Add(each)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


@pytest.fixture(scope="module")
def program(descriptors: bytes) -> Any:
    return compile_protobuf(descriptors, "Order")


texts = st.text(max_size=6)
int32s, int64s = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
costs = st.fixed_dictionaries(
    {},
    optional={
        "money": st.fixed_dictionaries({}, optional={"units": int64s, "currency": texts}),
        "parts": st.lists(int64s, max_size=3),
    },
)
orders = st.fixed_dictionaries(
    {},
    optional={
        "id": int64s,
        "big": st.integers(0, 2**64 - 1),
        "signed": int32s,
        "four": st.integers(0, 2**32 - 1),
        "four_signed": int32s,
        "eight": int64s,
        "price": st.floats(allow_nan=False),
        "weight": st.floats(allow_nan=False, width=32),
        "paid": st.booleans(),
        "who": texts,
        "nick": texts,
        "raw": st.binary(max_size=5),
        "state": st.sampled_from([0, 5, 7, -1]),
        "cost": costs,
        "tags": st.lists(texts, max_size=3),
        "costs": st.lists(costs, max_size=3),
        "counts": st.dictionaries(texts, int32s, max_size=1),
        "by_day": st.dictionaries(int64s, costs, max_size=1),
        "plain": st.integers(0, 2**32 - 1),
        "at": st.fixed_dictionaries({}, optional={"seconds": st.integers(0, 9), "nanos": st.integers(0, 9)}),
    },
)


def decoded(program: Any, values: list[bytes | None]) -> tuple[list[Any], list[int]]:
    found = decode(program, encoded(pa.array(values, pa.binary())))
    found.column.validate(full=True)
    return found.column.to_pylist(), found.status.tolist()


def expected(message: Any) -> dict[str, Any]:
    """What the library says of each field, in Spark's terms."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            nested = field.message_type.fields_by_name["value"].message_type is not None
            found[field.name] = [(key, expected(value[key]) if nested else value[key]) for key in value]
        elif field.is_repeated:
            found[field.name] = [expected(each) if field.message_type else each for each in value]
        elif field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        elif field.enum_type is not None:
            known = field.enum_type.values_by_number.get(value)
            found[field.name] = known.name if known else str(value)
        elif field.message_type is not None and field.message_type.name == "Line":
            found[field.name] = value.SerializeToString()
        else:
            found[field.name] = expected(value) if field.message_type else value
    return found


@given(st.lists(st.none() | orders, max_size=5))
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_message_is_what_was_written(order: Any, program: Any, values: list[dict[str, Any] | None]) -> None:
    messages = [None if each is None else order(**each) for each in values]
    found, status = decoded(program, [None if each is None else each.SerializeToString() for each in messages])
    assert found == [None if each is None else expected(each) for each in messages]
    assert not any(status)


@given(orders, orders, st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_message_in_two_parts_is_merged_and_a_cut_one_is_refused(
    order: Any, program: Any, one: dict[str, Any], other: dict[str, Any], data: st.DataObject
) -> None:
    first, second = order(**one).SerializeToString(), order(**other).SerializeToString()
    joined = order.FromString(first + second)
    cut = first[: data.draw(st.integers(0, len(first)))]
    found, status = decoded(program, [first + second, cut, second])
    if not {"counts", "by_day"} & one.keys() & other.keys():
        # Of two entries with one key the library keeps the last, and a column of Spark's both.
        assert found[0] == expected(joined)
    assert found[2] == expected(order.FromString(second))
    try:
        whole = order.FromString(cut)
    except Exception:  # noqa: BLE001 - of a class that each implementation has of its own
        assert status[1]
        assert found[1] is None
    else:
        assert not status[1]
        assert found[1] == expected(whole)


@given(st.binary(max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_at_all_are_read_or_refused(program: Any, value: bytes) -> None:
    found, status = decoded(program, [value])
    assert (found[0] is None) == bool(status[0])


def test_unpacked_numbers_unknown_fields_and_a_oneof_are_read(order: Any, program: Any) -> None:
    cost = b"\x10\x01\x10\x02" + b"\x12\x02\x03\x04"  # parts: two one by one, two packed
    message = b"\x6a" + bytes([len(cost)]) + cost + b"\xf8\x07\x01" + order(word="w").SerializeToString()
    found, status = decoded(program, [message])
    assert (status, found[0]["cost"]["parts"], found[0]["word"], found[0]["number"]) == ([0], [1, 2, 3, 4], "w", None)


def test_schemas_come_from_files_and_mistakes_are_told(tmp_path: Path, descriptors: bytes) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "shop.desc").write_bytes(descriptors)
    compiled = compile_protobuf(read_descriptors(tmp_path / "shop.proto"), "shop.Cost")
    assert compiled.root.type == compile_protobuf(read_descriptors(tmp_path / "shop.desc"), "Cost").root.type
    with pytest.raises(UsageError, match="no message 'Nobody'"):
        compile_protobuf(descriptors, "Nobody")
    with pytest.raises(UsageError, match="cannot be read"):
        read_descriptors(tmp_path / "gone.desc")
    with pytest.raises(UnsupportedFormatError, match="cannot be compiled"):
        compile_files({"x.proto": "messag X {}"}, main="x.proto")
    with pytest.raises(UnsupportedFormatError, match="points outside"):
        compile_files({"../x.proto": ""}, main="x.proto")
