"""Compiles a writer's schema to a small program that a kernel runs for each record.

Fields are found by name, in any position; all others are skipped, whatever their type. Types that cannot be walked in
bounded steps (types that contain themselves, items of zero bytes) are refused here, before any record is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod.errors import UnsupportedFormatError
from maxbrod.layouts.avro import kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LONG_FIELDS: Final = {
    "partition": kernels.PARTITION,
    "offset": kernels.OFFSET,
    "timestamp": kernels.TIMESTAMP,
    "timestampType": kernels.TIMESTAMP_TYPE,
}
_BYTES_FIELDS: Final = {"topic": kernels.TOPIC, "key": kernels.KEY, "value": kernels.VALUE}
_HEADER_FIELDS: Final = {"headers": kernels.HEADER_MAP, "headerList": kernels.HEADER_LIST}
_REQUIRED: Final = ("offset", "timestamp", "key", "value")
_LONGS: Final = {"int", "long"}
_BLOBS: Final = {"bytes", "string"}
_FIXED_BYTES: Final = {"boolean": 1, "float": 4, "double": 8}
_LEAVES: Final = _LONGS | _BLOBS | _FIXED_BYTES.keys() | {"enum", "fixed", "null"}
_PROGRAM_MAX: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    code: NDArray[np.int64]
    header_null: NDArray[np.int64]
    """For the map and for the list: the null branch of a header value's union, -1 if it is not a union."""


@dataclass(slots=True)
class _Compiler:
    code: list[int] = field(default_factory=list)
    named: dict[str, Any] = field(default_factory=dict)
    open_names: set[str] = field(default_factory=set)
    depth: int = 0
    steps: int = 0

    def emit(self, *codes: int) -> int:
        """Append to the program; the position of the first code."""
        if len(self.code) + len(codes) > _PROGRAM_MAX:
            raise _refused("it is too large")
        self.code += codes
        return len(self.code) - len(codes)

    def walk(self, schema: Any, *, long: int = -1, blob: int = -1, header: int = -1) -> int:  # noqa: ANN401 - JSON
        """Emit code for one value; the fewest bytes that it takes. A slot is where the value is stored; -1: nowhere."""
        self.steps += 1  # references can be many, and emit nothing
        if self.steps > _PROGRAM_MAX:
            raise _refused("it is too large")
        if isinstance(schema, list):
            return self._union(schema, long=long, blob=blob, header=header)
        kind = schema.get("type") if isinstance(schema, dict) else schema
        if isinstance(kind, dict | list):
            return self.walk(kind, long=long, blob=blob, header=header)
        if not isinstance(kind, str):
            raise _refused(f"{kind!r} is not a type")
        if kind in _LEAVES:
            self._name(schema)
            return self._leaf(schema, kind, long, blob)
        if kind in {"array", "map"}:
            return self._blocks(schema, kind, header)
        return self._record(schema) if kind == "record" else self._reference(kind)

    def _leaf(self, schema: Any, kind: str, long: int, blob: int) -> int:  # noqa: ANN401 - JSON
        if kind in _LONGS or kind == "enum":
            self.emit(kernels.OP_LONG, long if kind in _LONGS else -1)
            return 1
        if kind in _BLOBS:
            self.emit(kernels.OP_BYTES, blob)
            return 1
        if kind == "null":
            if blob >= 0:
                self.emit(kernels.OP_NULL, blob)
            return 0
        return self._fixed(schema, kind)

    def _name(self, schema: Any) -> None:  # noqa: ANN401 - JSON
        if isinstance(schema, dict) and isinstance(schema.get("name"), str):
            namespace = schema.get("namespace")
            self.named[schema["name"]] = schema
            self.named[schema["name"].rpartition(".")[2]] = schema
            if isinstance(namespace, str):
                self.named[f"{namespace}.{schema['name']}"] = schema

    def _reference(self, name: str) -> int:
        schema = self.named.get(name, self.named.get(name.rpartition(".")[2]))
        if schema is None:
            raise _refused(f"there is no type {name!r}")
        return self.walk(schema)

    def _fixed(self, schema: Any, kind: str) -> int:  # noqa: ANN401 - JSON
        size = _FIXED_BYTES[kind] if kind != "fixed" else schema.get("size") if isinstance(schema, dict) else None
        if type(size) is not int or not 0 <= size <= 1 << 30:
            raise _refused("a fixed type has no valid size")
        self.emit(kernels.OP_SKIP, size)
        return size

    def _union(self, branches: list[Any], *, long: int, blob: int, header: int) -> int:
        if not branches:
            raise _refused("a union has no branch")
        targets = self.emit(kernels.OP_UNION, len(branches), *([0] * len(branches))) + 2
        ends, least = [], 1 << 62
        for number, branch in enumerate(branches):
            self.code[targets + number] = len(self.code)
            least = min(least, self.walk(branch, long=long, blob=blob, header=header))
            ends.append(self.emit(kernels.OP_JUMP, 0) + 1)
        for end in ends:
            self.code[end] = len(self.code)
        return 1 + least

    def _blocks(self, schema: Any, kind: str, header: int) -> int:  # noqa: ANN401 - JSON
        if not isinstance(schema, dict):
            raise _refused(f"a type {kind} has no item type")
        self.depth += 1
        if self.depth > kernels.DEPTH_MAX:
            raise _refused("it nests too deeply")
        begin = self.emit(kernels.OP_BLOCKS, header, 0)
        least = 0
        if kind == "map":
            self.emit(kernels.OP_BYTES, -1)
            least = 1
        least += self.walk(schema.get("values" if kind == "map" else "items"))
        if not least:
            raise _refused("it has an array of items of zero bytes")
        self.emit(kernels.OP_NEXT, begin)
        self.code[begin + 2] = len(self.code)
        self.depth -= 1
        return 1

    def _record(self, schema: Any) -> int:  # noqa: ANN401 - JSON
        name = schema.get("name") if isinstance(schema, dict) else None
        fields = _fields(schema)
        if not isinstance(name, str) or name in self.open_names:
            raise _refused("a record has no name, or contains itself")
        self._name(schema)
        self.open_names.add(name)
        least = sum(self.walk(each.get("type")) for each in fields)
        self.open_names.discard(name)
        return least


def compile_schema(schema: Any) -> Program:  # noqa: ANN401 - JSON
    """The program of a schema. UnsupportedFormatError: it is not a schema of Kafka records, or cannot be walked."""
    try:
        return _compile(schema)
    except RecursionError as error:
        raise _refused("it nests too deeply") from error


def _compile(schema: Any) -> Program:  # noqa: ANN401 - JSON
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise _refused("it is not a record")
    fields = _fields(schema)
    names = [each.get("name") for each in fields]
    missing = [name for name in _REQUIRED if name not in names]
    if missing:
        raise _refused(f"it lacks the field {', '.join(missing)}")
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise _refused("it has two fields of the same name, or one without a name")
    compiler = _Compiler()
    if isinstance(schema.get("name"), str):
        compiler.open_names.add(schema["name"])
    header_null = [-1, -1]
    for each in fields:
        name, kind = each["name"], each.get("type")
        if name in _LONG_FIELDS:
            _check_field(name, kind, _LONGS)
            compiler.walk(kind, long=_LONG_FIELDS[name])
        elif name in _BYTES_FIELDS:
            _check_field(name, kind, _BLOBS)
            compiler.walk(kind, blob=_BYTES_FIELDS[name])
        elif name in _HEADER_FIELDS:
            slot = _HEADER_FIELDS[name]
            header_null[slot] = _header_null(name, kind)
            compiler.walk(kind, header=slot)
        else:
            compiler.walk(kind)
    compiler.emit(kernels.OP_END)
    return Program(code=np.array(compiler.code, np.int64), header_null=np.array(header_null, np.int64))


def _fields(schema: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - JSON
    fields = schema.get("fields") if isinstance(schema, dict) else None
    if not isinstance(fields, list) or not all(isinstance(each, dict) for each in fields):
        raise _refused("a record has no list of fields")
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
        raise _refused(f"its field {name} is none of {', '.join(sorted(known))}")


def _header_null(name: str, kind: Any) -> int:  # noqa: ANN401 - JSON
    """The null branch of a header value. Checks that headers are pairs of bytes: a map, or an array."""
    plain = _plain(kind)
    shapes = [_plain(branch) for branch in (plain if isinstance(plain, list) else [plain])]
    pairs = [shape for shape in shapes if shape != "null"]
    shape = pairs[0] if len(pairs) == 1 and isinstance(pairs[0], dict) else {}
    if shape.get("type") not in ("map", "array"):
        raise _refused(f"its field {name} is neither a map nor a list of headers")
    if shape["type"] == "map":
        value = shape.get("values")
    else:
        items = _plain(shape.get("items"))
        fields = _fields(items)
        if [each.get("name") for each in fields] != ["key", "value"] or not _is_one(fields[0].get("type"), _BLOBS):
            raise _refused(f"its field {name} is not a list of keys and values")
        value = fields[1].get("type")
    value = _plain(value)
    branches = [_plain(branch) for branch in value] if isinstance(value, list) else [value]
    known = _BLOBS | {"null"} if isinstance(value, list) else _BLOBS
    if not branches or not all(_is_one(each, known) for each in branches):
        raise _refused(f"its field {name} has values that are not bytes")
    if not isinstance(value, list):
        return -1
    return branches.index("null") if "null" in branches else len(branches)


def _refused(why: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        f"the schema of the file cannot be read: {why}",
        hint="only Kafka records are supported; fields are found by name",
    )
