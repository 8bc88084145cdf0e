"""Compiles Protobuf descriptors into programs that a kernel runs over each message, and into columns.

An absent field with presence is null; one without presence, as most of proto3, has its default. Enums become their
names, maps stay maps. A field whose message contains itself stays bytes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from maxbrod.errors import EnvironmentMissingError, UnsupportedFormatError, UsageError
from maxbrod.layouts.avro.program import Node, Program, Shape
from maxbrod.table.values import protobuf_kernels as kernels

_MESSAGE: Final = 11
_GROUP: Final = 10
_ENUM: Final = 14
_REPEATED: Final = 3
# Numbers of FieldDescriptorProto.Type.
_TYPES: Final = {
    1: (kernels.FIXED64, Shape.REAL, pa.float64()),
    2: (kernels.FIXED32, Shape.REAL, pa.float32()),
    3: (kernels.VARINT, Shape.NUMBER, pa.int64()),
    4: (kernels.VARINT, Shape.NUMBER, pa.decimal128(20, 0)),
    5: (kernels.INT32, Shape.NUMBER, pa.int32()),
    6: (kernels.FIXED64, Shape.NUMBER, pa.decimal128(20, 0)),
    7: (kernels.FIXED32, Shape.NUMBER, pa.int64()),
    8: (kernels.BOOL, Shape.NUMBER, pa.bool_()),
    9: (kernels.BYTES, Shape.BLOB, pa.string()),
    12: (kernels.BYTES, Shape.BLOB, pa.binary()),
    13: (kernels.UINT32, Shape.NUMBER, pa.int64()),
    14: (kernels.INT32, Shape.SYMBOL, pa.string()),
    15: (kernels.SFIXED32, Shape.NUMBER, pa.int32()),
    16: (kernels.FIXED64, Shape.NUMBER, pa.int64()),
    17: (kernels.ZIGZAG, Shape.NUMBER, pa.int32()),
    18: (kernels.ZIGZAG, Shape.NUMBER, pa.int64()),
}
_ABSENT: Final = -1

_COMPILER: Final = "grpc_tools"
_TIMEOUT_S: Final = 120


@dataclass(frozen=True, slots=True)
class _Message:
    """A descriptor, and whether its fields without presence have defaults."""

    about: Any
    implicit: bool


@dataclass(slots=True)
class _Compiler:
    messages: Mapping[str, _Message]
    enums: Mapping[str, dict[int, str]]
    code: list[int] = field(default_factory=lambda: [0])
    nodes: int = 0
    open_names: list[str] = field(default_factory=list)

    def node(self, shape: Shape, kind: pa.DataType, **more: Any) -> Node:  # noqa: ANN401 - fields of a node
        self.nodes += 1
        return Node(number=self.nodes - 1, shape=shape, type=kind, **more)

    def message(self, name: str, whole: Node | None) -> tuple[int, list[Node], list[tuple[int, int, int]]]:
        """The address of its code, the columns of its fields, and their initial values."""
        message = self.messages[name]
        self.open_names.append(name)
        fields: list[int] = []
        columns: list[Node] = []
        members: list[tuple[int, int, int]] = []
        for member in message.about.field:
            code, column, begins = self._field(member, message)
            fields += code
            columns.append(column)
            members += begins
        self.open_names.pop()
        address = len(self.code)
        node = _ABSENT if whole is None else whole.number
        self.code += [node, len(message.about.field), len(members), *fields]
        self.code += [number for member in members for number in member]
        return address, columns, members

    def _field(self, member: Any, message: _Message) -> tuple[list[int], Node, list[tuple[int, int, int]]]:  # noqa: ANN401
        many = member.label == _REPEATED
        whole = self.node(Shape.LIST, pa.null(), name=member.name) if many else None
        kind, item, address, begins = self._item(member)
        item.name = "element" if many else member.name
        if whole is None:
            code = [member.number, kind, item.number, _ABSENT, address]
            length = 0 if _has_default(member, message) else _ABSENT
            return code, item, begins if kind == kernels.MESSAGE else [(item.number, 0, length)]
        if item.shape is Shape.LIST:
            # The entries of a map: key and value are the list's own children.
            whole.children, whole.type = item.children, item.type
        else:
            whole.children, whole.type = [item], pa.list_(pa.field("element", item.type))
        return [member.number, kind, item.number, whole.number, address], whole, [(whole.number, 0, 0)]

    def _item(self, member: Any) -> tuple[int, Node, int, list[tuple[int, int, int]]]:  # noqa: ANN401 - a descriptor
        """One value of a field: its kind, its node, the address of its message, and its initial values."""
        if member.type == _GROUP:
            raise _refused(f"the field {member.name} is a group")
        if member.type != _MESSAGE:
            kind, shape, arrow = _TYPES[member.type]
            symbols = self.enums[member.type_name.lstrip(".")] if member.type == _ENUM else {}
            return kind, self.node(shape, arrow, symbols=symbols), 0, []
        name = member.type_name.lstrip(".")
        if name not in self.messages:
            raise _refused(f"there is no message {name}")
        if self._recurs(name, frozenset()):
            return kernels.BYTES, self.node(Shape.BLOB, pa.binary()), 0, []
        if self.messages[name].about.options.map_entry:
            return self._entries(name)
        found = self.node(Shape.STRUCT, pa.struct([]))
        address, found.children, members = self.message(name, found)
        found.type = pa.struct([pa.field(child.name, child.type) for child in found.children])
        return kernels.MESSAGE, found, address, [(found.number, 0, _ABSENT), *members]

    def _entries(self, name: str) -> tuple[int, Node, int, list[tuple[int, int, int]]]:
        address, columns, _ = self.message(name, None)
        key, value = sorted(columns, key=lambda column: column.name != "key")
        made = Node(number=key.number, shape=Shape.LIST, type=pa.map_(key.type, value.type), children=[key, value])
        return kernels.MESSAGE, made, address, []

    def _recurs(self, name: str, above: frozenset[str]) -> bool:
        if name in above or name in self.open_names:
            return True
        below = [member.type_name.lstrip(".") for member in self.messages[name].about.field if member.type == _MESSAGE]
        return any(child in self.messages and self._recurs(child, above | {name}) for child in below)


def compile_protobuf(descriptors: bytes, message: str) -> Program:
    """Compile a message of a serialized FileDescriptorSet, imports included. UsageError: it has no such message."""
    messages, enums = _declared(descriptors)
    found = [name for name in messages if name == message or name.endswith(f".{message}")]
    if message in messages:
        found = [message]
    if len(found) != 1:
        known = ", ".join(sorted(name for name, message in messages.items() if not message.about.options.map_entry))
        raise UsageError(
            f"there is {'no' if not found else 'more than one'} message {message!r}",
            operation="decode",
            hint=f"there are {known}",
        )
    compiler = _Compiler(messages, enums)
    root = compiler.node(Shape.STRUCT, pa.struct([]))
    compiler.code[0], root.children, _ = compiler.message(found[0], root)
    root.type = pa.struct([pa.field(child.name, child.type) for child in root.children])
    return Program(format="protobuf", code=np.array(compiler.code, np.int64), root=root, nodes=compiler.nodes)


def message_places(descriptors: bytes, file: str) -> dict[int, str]:
    """The messages of one file of a set, by their places as `protobuf_kernels.read_indexes` writes them.

    Some serializers count the messages of map entries, and some do not. A place that means different messages to them
    is left out.
    """
    ways: list[dict[int, str]] = []
    for counted in (True, False):
        found: dict[int, str] = {}
        for descriptor in _files(descriptors):
            if descriptor.name == file:
                _add_places(descriptor.message_type, descriptor.package, found, counted=counted)
        ways.append(found)
    one, other = ways
    return {place: name for place, name in (one | other).items() if one.get(place, name) == other.get(place, name)}


def _add_places(
    messages: Iterable[Any], space: str, found: dict[int, str], *, counted: bool, above: int = 0, level: int = 0
) -> None:
    written = [message for message in messages if counted or not message.options.map_entry]
    for index, written_type in enumerate(written[: kernels.INDEX_MAX + 1]):
        if written_type.options.map_entry or level >= kernels.LEVELS_MAX:
            continue
        place, name = above | (index + 1) << (8 * level), f"{space}.{written_type.name}" if space else written_type.name
        found[0 if place == 1 else place] = name
        _add_places(written_type.nested_type, name, found, counted=counted, above=place, level=level + 1)


def _files(descriptors: bytes) -> Any:  # noqa: ANN401 - descriptors
    try:
        from google.protobuf.descriptor_pb2 import FileDescriptorSet  # noqa: PLC0415 - an extra
        from google.protobuf.message import DecodeError  # noqa: PLC0415
    except ImportError as error:
        raise EnvironmentMissingError(
            f"Protobuf needs more Python packages: {error}", operation="decode", hint="pip install 'maxbrod[protobuf]'"
        ) from error
    try:
        return FileDescriptorSet.FromString(descriptors).file
    except DecodeError as error:
        raise _refused("it is not a descriptor set as 'protoc --descriptor_set_out' writes") from error


def _declared(descriptors: bytes) -> tuple[dict[str, _Message], dict[str, dict[int, str]]]:
    messages: dict[str, _Message] = {}
    enums: dict[str, dict[int, str]] = {}
    for file in _files(descriptors):
        _declare(file, file.package, file.syntax == "proto3", messages, enums)
    return messages, enums


def _declare(
    scope: Any,  # noqa: ANN401 - a descriptor
    space: str,
    implicit: bool,  # noqa: FBT001 - handed down
    messages: dict[str, _Message],
    enums: dict[str, dict[int, str]],
) -> None:
    prefix = f"{space}." if space else ""
    for enum in scope.enum_type:
        # If several names have one number, the first one is used.
        enums[prefix + enum.name] = {value.number: value.name for value in reversed(enum.value)}
    nested = scope.message_type if hasattr(scope, "message_type") else scope.nested_type
    for child in nested:
        messages[prefix + child.name] = _Message(child, implicit)
        _declare(child, prefix + child.name, implicit, messages, enums)


def _has_default(member: Any, message: _Message) -> bool:  # noqa: ANN401 - a descriptor
    if message.about.options.map_entry:
        return True
    alone = not member.proto3_optional and not member.HasField("oneof_index")
    return message.implicit and alone and member.type != _MESSAGE


def _refused(why: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        f"this Protobuf schema cannot be used: {why}",
        operation="decode",
        hint="leave the values as bytes, or decode them in a program of your own",
    )


def read_descriptors(file: Path) -> bytes:
    """The descriptor set of a `.proto` file, which may import files beside it, or of a file that is one."""
    try:
        if file.suffix != ".proto":
            return file.read_bytes()
        return compile_files({file.name: ""}, main=file.name, folder=file.parent)
    except OSError as error:
        raise UsageError(f"the schema cannot be read: {error.strerror}", object_name=str(file)) from error


def compile_files(files: Mapping[str, str], *, main: str, folder: Path | None = None) -> bytes:
    """The descriptor set of `main` and all that it imports. `files` has texts by name, unless they are in `folder`."""
    with tempfile.TemporaryDirectory(prefix="maxbrod-proto-") as scratch:
        place = Path(scratch) if folder is None else folder
        if folder is None:
            for name, text in files.items():
                _write(place, name, text)
        out = Path(scratch) / "maxbrod.descriptors"
        arguments = ["--include_imports", f"--descriptor_set_out={out}", f"-I{place}", f"-I{_own_files()}", main]
        # In a process of its own, because the compiler writes errors to the terminal.
        ran = subprocess.run(
            [sys.executable, "-P", "-m", f"{_COMPILER}.protoc", *arguments],
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if ran.returncode:
            complaints = ran.stderr.decode(errors="replace").strip().splitlines()
            raise UnsupportedFormatError(
                f"this Protobuf schema cannot be compiled: {complaints[0] if complaints else 'no reason is given'}",
                operation="decode",
                object_name=main,
            )
        return out.read_bytes()


def _write(place: Path, name: str, text: str) -> None:
    file = place / name
    if not file.resolve().is_relative_to(place.resolve()):
        raise UnsupportedFormatError(
            "the name of a schema points outside of its folder", operation="decode", object_name=name
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def _own_files() -> Path:
    """The folder of google/protobuf/timestamp.proto and its like."""
    spec = find_spec(_COMPILER)
    if spec is None or spec.origin is None:
        raise EnvironmentMissingError(
            "compiling .proto files needs grpcio-tools", operation="decode", hint="pip install 'maxbrod[protobuf]'"
        )
    return Path(spec.origin).parent / "_proto"
