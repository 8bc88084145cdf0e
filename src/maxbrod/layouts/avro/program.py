"""Schemas of nested values, as trees of nodes with the program by which a kernel walks values; compiles those of Avro.

Types are those of Spark's own Avro source: a union of null and a type is that type, any other a struct with a field for
each branch. Schemas that need unbounded steps (types that contain themselves, items of zero bytes) are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from maxbrod import strict_json
from maxbrod.errors import UnsupportedFormatError


class Shape(Enum):
    """The form in which the tape of a kernel stores occurrences of a node."""

    NUMBER = auto()
    REAL = auto()
    """Its bits."""
    BLOB = auto()
    SYMBOL = auto()
    """An index into a list of texts."""
    DECIMAL = auto()
    """The bytes of a number, big-endian."""
    STRUCT = auto()
    LIST = auto()
    """The number of items."""
    NULL = auto()


@dataclass(slots=True, kw_only=True)
class Node:
    number: int
    shape: Shape
    type: pa.DataType
    name: str = ""
    children: list[Node] = field(default_factory=list)
    symbols: dict[int, str] = field(default_factory=dict)
    per_us: int = 1
    """For a time, how many of its units are a microsecond; negative: how many microseconds are a unit."""
    default: Any = None
    """The default of a field, as JSON, for values whose schema does not have the field."""

    def every(self) -> Iterator[Node]:
        """The node and all below it, in the order of their numbers."""
        yield self
        for child in self.children:
            yield from child.every()

    def beside(self) -> Iterator[Node]:
        """The node and those below that occur exactly as often: all but items of lists."""
        yield self
        if self.shape is Shape.STRUCT:
            for child in self.children:
                yield from child.beside()


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A schema compiled for its kernel, and the tree of columns that it fills."""

    format: str
    code: NDArray[np.int64]
    root: Node
    nodes: int


OP_END: Final = 0
OP_LONG: Final = 1  # node
OP_BOOLEAN: Final = 2  # node
OP_FLOAT: Final = 3  # node
OP_DOUBLE: Final = 4  # node
OP_BYTES: Final = 5  # node
OP_FIXED: Final = 6  # node, bytes
OP_STRUCT: Final = 7  # node
OP_NULLS: Final = 8  # count, nodes
OP_UNION: Final = 9  # branches, the target of each
OP_JUMP: Final = 10  # target
OP_BLOCKS: Final = 11  # node, the position after the last block
OP_NEXT: Final = 12  # the position of its OP_BLOCKS

DEPTH_MAX: Final = 16
"""The nesting of arrays and maps."""

_PRIMITIVE: Final = {
    "int": (OP_LONG, Shape.NUMBER, pa.int32()),
    "long": (OP_LONG, Shape.NUMBER, pa.int64()),
    "boolean": (OP_BOOLEAN, Shape.NUMBER, pa.bool_()),
    "float": (OP_FLOAT, Shape.REAL, pa.float32()),
    "double": (OP_DOUBLE, Shape.REAL, pa.float64()),
    "bytes": (OP_BYTES, Shape.BLOB, pa.binary()),
    "string": (OP_BYTES, Shape.BLOB, pa.string()),
}
_FIXED_BYTES: Final = {"boolean": 1, "float": 4, "double": 8}
_UTC: Final = pa.timestamp("us", tz="UTC")
_LOCAL: Final = pa.timestamp("us")
_TIMES: Final = {
    "timestamp-millis": (_UTC, -1000),
    "timestamp-micros": (_UTC, 1),
    "timestamp-nanos": (_UTC, 1000),
    "local-timestamp-millis": (_LOCAL, -1000),
    "local-timestamp-micros": (_LOCAL, 1),
    "local-timestamp-nanos": (_LOCAL, 1000),
}
_PROGRAM_MAX: Final = 100_000


@dataclass(slots=True)
class _Compiler:
    code: list[int] = field(default_factory=list)
    named: dict[str, tuple[Any, str]] = field(default_factory=dict)
    open_names: list[str] = field(default_factory=list)
    nodes: int = 0
    depth: int = 0

    def emit(self, *codes: int) -> int:
        """Append to the program and return the position."""
        if len(self.code) + len(codes) > _PROGRAM_MAX:
            raise _refused("it is too large")
        self.code += codes
        return len(self.code) - len(codes)

    def node(self, shape: Shape, kind: pa.DataType, **more: Any) -> Node:  # noqa: ANN401 - fields of a node
        self.nodes += 1
        return Node(number=self.nodes - 1, shape=shape, type=kind, **more)

    def walk(self, schema: Any, space: str) -> tuple[Node, int]:  # noqa: ANN401 - JSON
        """Code for one value; its node, and the least bytes that it takes."""
        if isinstance(schema, list):
            return self._union(schema, space)
        kind = schema.get("type") if isinstance(schema, dict) else schema
        if isinstance(kind, dict | list):
            return self.walk(kind, space)
        about = schema if isinstance(schema, dict) else {}
        if kind == "null" or kind in _PRIMITIVE:
            return self._primitive(kind, about)
        match kind:
            case "array" | "map":
                return self._blocks(kind, about, space)
            case "record" | "error":
                return self._record(about, space)
            case "enum":
                return self._enum(about, space)
            case "fixed":
                return self._fixed(about, space)
            case str():
                return self._reference(kind, space)
        raise _refused(f"{kind!r} is no type")

    def _primitive(self, kind: str, about: dict[str, Any]) -> tuple[Node, int]:
        if kind == "null":
            found = self.node(Shape.NULL, pa.string())
            self.emit(OP_NULLS, 1, found.number)
            return found, 0
        operation, shape, arrow = _PRIMITIVE[kind]
        logical = about.get("logicalType")
        if kind == "bytes" and logical == "decimal":
            found = self.node(Shape.DECIMAL, _decimal(about))
        elif kind == "long" and logical in _TIMES:
            arrow, per_us = _TIMES[logical]
            found = self.node(shape, arrow, per_us=per_us)
        else:
            found = self.node(shape, pa.date32() if (kind, logical) == ("int", "date") else arrow)
        self.emit(operation, found.number)
        return found, _FIXED_BYTES.get(kind, 1)

    def _enum(self, about: dict[str, Any], space: str) -> tuple[Node, int]:
        self._name(about, space)
        symbols = about.get("symbols")
        if not isinstance(symbols, list):
            raise _refused("an enum has no symbols")
        found = self.node(Shape.SYMBOL, pa.string(), symbols=dict(enumerate(map(str, symbols))))
        self.emit(OP_LONG, found.number)
        return found, 1

    def _fixed(self, about: dict[str, Any], space: str) -> tuple[Node, int]:
        self._name(about, space)
        size = about.get("size")
        if type(size) is not int or not 0 <= size <= 1 << 30:
            raise _refused("a fixed type has no size that can be")
        decimal = about.get("logicalType") == "decimal"
        found = self.node(Shape.DECIMAL if decimal else Shape.BLOB, _decimal(about) if decimal else pa.binary())
        self.emit(OP_FIXED, found.number, size)
        return found, size

    def _record(self, about: dict[str, Any], space: str) -> tuple[Node, int]:
        name = self._name(about, space)
        fields = about.get("fields")
        if not isinstance(fields, list) or not all(isinstance(entry, dict) for entry in fields):
            raise _refused(f"the record {name} has no list of fields")
        if name in self.open_names:
            raise _refused(f"the record {name} contains itself")
        self.open_names.append(name)
        found = self.node(Shape.STRUCT, pa.struct([]))
        self.emit(OP_STRUCT, found.number)
        least = 0
        for entry in fields:
            child, size = self.walk(entry.get("type"), name.rpartition(".")[0])
            child.name = str(entry.get("name"))
            child.default = entry.get("default")
            found.children.append(child)
            least += size
        found.type = pa.struct([pa.field(child.name, child.type) for child in found.children])
        self.open_names.pop()
        return found, least

    def _blocks(self, kind: str, about: dict[str, Any], space: str) -> tuple[Node, int]:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise _refused("it nests too deeply")
        found = self.node(Shape.LIST, pa.null())
        begin = self.emit(OP_BLOCKS, found.number, 0)
        least = 0
        if kind == "map":
            key = self.node(Shape.BLOB, pa.string(), name="key")
            self.emit(OP_BYTES, key.number)
            found.children.append(key)
            least = 1
        item, size = self.walk(about.get("values" if kind == "map" else "items"), space)
        if not least + size:
            raise _refused("it has an array of items that take no bytes")
        found.children.append(item)
        found.type = pa.map_(pa.string(), item.type) if kind == "map" else pa.list_(pa.field("element", item.type))
        self.emit(OP_NEXT, begin)
        self.code[begin + 2] = len(self.code)
        self.depth -= 1
        return found, 1

    def _union(self, branches: list[Any], space: str) -> tuple[Node, int]:
        if not branches:
            raise _refused("a union has no branch")
        targets = self.emit(OP_UNION, len(branches), *([0] * len(branches))) + 2
        whole = self.node(Shape.STRUCT, pa.struct([]))
        members: dict[int, Node] = {}
        tails: dict[int, int] = {}
        least = 1 << 30
        for number, branch in enumerate(branches):
            if _is_null(branch):
                least = 0
                continue
            self.code[targets + number] = len(self.code)
            members[number], size = self.walk(branch, space)
            tails[number] = self.emit(OP_JUMP, 0) + 1
            least = min(least, size)
        found = self._united(whole, list(members.values()))
        ends = []
        for number in range(len(branches)):
            if members.get(number) is found:
                # The only branch with a value: nothing is left to do.
                ends.append(tails[number])
                continue
            if number in tails:
                self.code[tails[number]] = len(self.code)
            else:
                self.code[targets + number] = len(self.code)
            self._finish(found, members, number)
            ends.append(self.emit(OP_JUMP, 0) + 1)
        for end in ends:
            self.code[end] = len(self.code)
        return found, 1 + least

    def _united(self, whole: Node, members: list[Node]) -> Node:
        if not members:
            whole.shape, whole.type = Shape.NULL, pa.string()
            return whole
        if len(members) == 1:
            return members[0]
        for number, node in enumerate(members):
            node.name = f"member{number}"
        whole.children = members
        whole.type = pa.struct([pa.field(member.name, member.type) for member in members])
        return whole

    def _finish(self, found: Node, members: dict[int, Node], branch: int) -> None:
        """Emit what follows a branch: nulls for all other branches."""
        chosen = members.get(branch)
        if chosen is None:
            nulls = [node.number for node in found.beside()]
        else:
            self.emit(OP_STRUCT, found.number)
            nulls = [node.number for other in members.values() if other is not chosen for node in other.beside()]
        self.emit(OP_NULLS, len(nulls), *nulls)

    def _name(self, about: dict[str, Any], space: str) -> str:
        name, own = about.get("name"), about.get("namespace", space)
        if not isinstance(name, str):
            raise _refused("a type has no name")
        full = name if "." in name or not own else f"{own}.{name}"
        self.named[full] = about, full.rpartition(".")[0]
        return full

    def _reference(self, name: str, space: str) -> tuple[Node, int]:
        found = self.named.get(f"{space}.{name}") if space and "." not in name else None
        found = found or self.named.get(name)
        if found is None:
            raise _refused(f"there is no type {name!r}")
        return self.walk(found[0], found[1])


def compile_avro(schema: str, references: Sequence[str] = ()) -> Program:
    """Compile a schema. `references` are the schemas that it refers to, each after those that it needs itself.

    UnsupportedFormatError: it is not a schema, or has a type that is not supported.
    """
    return _compile(_parsed(schema), [_parsed(reference) for reference in references])


def _compile(schema: Any, references: Sequence[Any] = ()) -> Program:  # noqa: ANN401 - JSON
    compiler = _Compiler()
    try:
        for reference in references:
            compiler.walk(reference, "")
        compiler.code.clear()
        compiler.nodes = 0
        root, _ = compiler.walk(schema, "")
    except RecursionError as error:
        raise _refused("it nests too deeply") from error
    compiler.emit(OP_END, 0)
    return Program(format="avro", code=np.array(compiler.code, np.int64), root=root, nodes=compiler.nodes)


def _parsed(schema: str) -> Any:  # noqa: ANN401 - JSON
    try:
        return strict_json.parse(schema, wide=True)
    except ValueError:
        # A primitive type may stand alone, without quotes.
        return schema.strip()


def _is_null(schema: Any) -> bool:  # noqa: ANN401 - JSON
    return schema == "null" or (isinstance(schema, dict) and schema.get("type") == "null")


def _decimal(about: dict[str, Any]) -> pa.DataType:
    precision, scale = about.get("precision"), about.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision <= 38 or not precision:
        raise _refused("a decimal has no valid precision")
    return pa.decimal128(precision, scale)


def _refused(why: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        f"this Avro schema cannot be used: {why}",
        operation="decode",
        hint="leave the values as bytes, or decode them in a program of your own",
    )


PARTITION: Final = 0
OFFSET: Final = 1
TIMESTAMP: Final = 2
TIMESTAMP_TYPE: Final = 3
TOPIC: Final = 0
KEY: Final = 1
VALUE: Final = 2
HEADER_MAP: Final = 0
HEADER_LIST: Final = 1
_LONGS: Final = {"int", "long"}
_BLOBS: Final = {"bytes", "string"}
_FIELDS: Final = {
    "partition": (_LONGS, PARTITION),
    "offset": (_LONGS, OFFSET),
    "timestamp": (_LONGS, TIMESTAMP),
    "timestampType": (_LONGS, TIMESTAMP_TYPE),
    "topic": (_BLOBS, TOPIC),
    "key": (_BLOBS, KEY),
    "value": (_BLOBS, VALUE),
}
_HEADER_FIELDS: Final = {"headers": HEADER_MAP, "headerList": HEADER_LIST}
_REQUIRED: Final = ("offset", "timestamp", "key", "value")


class RecordProgram(NamedTuple):
    """The program of a file of Kafka records. Fields are found by name, in any position; all others are skipped."""

    code: NDArray[np.int64]
    slots: NDArray[np.int64]
    """For each node the place where the kernel stores its occurrences; -1: nowhere."""
    header_null: NDArray[np.int64]
    """For the map and for the list: the null branch of a header value's union, -1 if it is not a union."""


def compile_records(schema: Any) -> RecordProgram:  # noqa: ANN401 - JSON
    """Compile a writer's schema. UnsupportedFormatError: it is not one of Kafka records, or cannot be walked."""
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise _unreadable("it is not a record")
    fields = _fields(schema)
    names = [about.get("name") for about in fields]
    missing = [name for name in _REQUIRED if name not in names]
    if missing:
        raise _unreadable(f"it lacks the field {', '.join(missing)}")
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise _unreadable("it has two fields of the same name, or one without a name")
    try:
        program = _compile(schema)
    except UnsupportedFormatError as error:
        raise _unreadable(error.message) from error
    slots, header_null = np.full(program.nodes, -1, np.int64), np.full(2, -1, np.int64)
    for about, node in zip(fields, program.root.children, strict=True):
        name, kind = about["name"], about.get("type")
        if name in _FIELDS:
            known, slot = _FIELDS[name]
            _check_field(name, kind, known)
            # All branches of a union go to the same place.
            slots[[branch.number for branch in node.beside()]] = slot
        elif name in _HEADER_FIELDS:
            slots[node.number] = _HEADER_FIELDS[name]
            header_null[_HEADER_FIELDS[name]] = _header_null(name, kind)
    return RecordProgram(code=program.code, slots=slots, header_null=header_null)


def _fields(schema: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - JSON
    fields = schema.get("fields") if isinstance(schema, dict) else None
    if not isinstance(fields, list) or not all(isinstance(entry, dict) for entry in fields):
        raise _unreadable("a record has no list of fields")
    return fields


def _plain(schema: Any) -> Any:  # noqa: ANN401 - JSON
    """A type without the object around it that adds properties, such as Java's `avro.java.string`."""
    while isinstance(schema, dict) and isinstance(schema.get("type"), str | dict | list):
        if isinstance(schema["type"], str) and schema["type"] in {"array", "map", "record", "enum", "fixed"}:
            return schema
        schema = schema["type"]
    return schema


def _is_one(schema: Any, known: set[str]) -> bool:  # noqa: ANN401 - JSON
    plain = _plain(schema)
    return isinstance(plain, str) and plain in known


def _check_field(name: str, kind: Any, known: set[str]) -> None:  # noqa: ANN401 - JSON
    plain = _plain(kind)
    branches = plain if isinstance(plain, list) else [plain]
    if not branches or not all(_is_one(branch, known | {"null"}) for branch in branches):
        raise _unreadable(f"its field {name} is none of {', '.join(sorted(known))}")


def _header_null(name: str, kind: Any) -> int:  # noqa: ANN401 - JSON
    """The null branch of a header value. Checks that headers are pairs of bytes: a map, or an array."""
    plain = _plain(kind)
    shapes = [_plain(branch) for branch in (plain if isinstance(plain, list) else [plain])]
    pairs = [shape for shape in shapes if shape != "null"]
    shape = pairs[0] if len(pairs) == 1 and isinstance(pairs[0], dict) else {}
    if shape.get("type") not in ("map", "array"):
        raise _unreadable(f"its field {name} is neither a map nor a list of headers")
    if shape["type"] == "map":
        value = shape.get("values")
    else:
        items = _plain(shape.get("items"))
        fields = _fields(items)
        if [entry.get("name") for entry in fields] != ["key", "value"] or not _is_one(fields[0].get("type"), _BLOBS):
            raise _unreadable(f"its field {name} is not a list of keys and values")
        value = fields[1].get("type")
    value = _plain(value)
    branches = [_plain(branch) for branch in value] if isinstance(value, list) else [value]
    known = _BLOBS | {"null"} if isinstance(value, list) else _BLOBS
    if not branches or not all(_is_one(branch, known) for branch in branches):
        raise _unreadable(f"its field {name} has values that are not bytes")
    if not isinstance(value, list):
        return -1
    return branches.index("null") if "null" in branches else len(branches)


def _unreadable(why: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        f"the schema of the file cannot be read: {why}",
        hint="only Kafka records are supported; fields are found by name",
    )
