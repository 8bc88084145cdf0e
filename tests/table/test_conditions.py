"""What a scan filters by, out of Spark's expressions: never narrower than they are, and no wider than need be."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThan, StringStartsWith

from maxbrod.table.read.scope import Scope
from maxbrod.table.scans import ANYTHING, SCOPES_MAX, alternatives, scopes_of


class Node:
    """An object of the JVM: a class of that name, and fields that are asked for as methods."""

    def __init__(self, kind: str, **fields: Any) -> None:
        self._kind = kind
        for name, value in fields.items():
            setattr(self, name, lambda value=value: value)

    def getClass(self) -> Any:  # noqa: N802 - Java's name
        return Node("", getSimpleName=self._kind)


class Values(list[Any]):
    def size(self) -> int:
        return len(self)

    def apply(self, index: int) -> Any:
        return self[index]

    def toSeq(self) -> Values:  # noqa: N802 - Scala's name
        return self


class Word(str):
    __slots__ = ()

    def toString(self) -> str:  # noqa: N802 - Java's name
        return str(self)


def type_of(name: str) -> Node:
    return Node("", simpleString=name)


def column(name: str, kind: str = "bigint") -> Node:
    return Node("AttributeReference", name=name, dataType=type_of(kind))


def literal(value: Any, kind: str = "bigint") -> Node:
    return Node("Literal", value=value, dataType=type_of(kind))


def node(kind: str, left: Node, right: Node) -> Node:
    return Node(kind, left=left, right=right)


FIVE = node("EqualTo", column("offset"), literal(5))
AFTER = node("LessThan", literal(7), column("offset"))
TOPIC = node("StartsWith", column("topic", "string"), literal(Word("or"), "string"))
UNKNOWN = node("EqualTo", Node("Cast"), literal(5))


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        (FIVE, ((EqualTo(("offset",), 5),),)),
        (AFTER, ((GreaterThan(("offset",), 7),),)),
        (node("And", FIVE, UNKNOWN), ((EqualTo(("offset",), 5),),)),
        (node("And", TOPIC, AFTER), ((StringStartsWith(("topic",), "or"), GreaterThan(("offset",), 7)),)),
        (node("Or", FIVE, AFTER), ((EqualTo(("offset",), 5),), (GreaterThan(("offset",), 7),))),
        (node("Or", FIVE, UNKNOWN), ((EqualTo(("offset",), 5),), ())),
        (Node("Not", child=FIVE), ANYTHING),
        (node("EqualTo", column("value", "string"), literal(Word("x"), "string")), ANYTHING),
        (node("EqualTo", column("offset"), literal(None)), ANYTHING),
        (node("EqualTo", column("topic", "string"), literal(Word("x"), "string collate UNICODE_CI")), ANYTHING),
        (node("LessThan", column("timestamp", "timestamp"), literal(2**62, "timestamp")), ANYTHING),
        (
            node("LessThan", column("timestamp", "timestamp"), literal(1_000_000, "timestamp")),
            ((LessThan(("timestamp",), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),),),
        ),
        (Node("In", value=column("offset"), list=Values([literal(1), literal(2)])), ((In(("offset",), (1, 2)),),)),
        (Node("In", value=column("offset"), list=Values([literal(1), Node("Rand")])), ANYTHING),
        (Node("InSet", child=column("offset"), hset=Values([3, 4])), ((In(("offset",), (3, 4)),),)),
        (Node("InSet", child=column("offset"), hset=Values(range(2000))), ANYTHING),
    ],
)
def test_what_is_understood_narrows_and_nothing_else(condition: Node, found: Any) -> None:
    assert alternatives([condition]) == found


def test_more_alternatives_than_are_worth_it_widen() -> None:
    either = FIVE
    for _ in range(SCOPES_MAX):
        either = node("Or", either, AFTER)
    assert alternatives([either]) == ANYTHING
    assert alternatives([either, FIVE]) == alternatives([FIVE])
    assert len(alternatives([node("Or", FIVE, AFTER)] * 5)) <= SCOPES_MAX


def test_scans_of_one_table_need_what_each_of_them_needs() -> None:
    five, after = alternatives([FIVE]), alternatives([AFTER])
    assert scopes_of([five, after, five]) == (Scope(first_offset=5, end_offset=6), Scope(first_offset=8))
    assert scopes_of([five, ANYTHING]) == ()
    assert scopes_of([((EqualTo(("offset",), number),),) for number in range(SCOPES_MAX + 1)]) == ()
