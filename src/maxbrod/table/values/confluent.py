"""Finds the archived schemas of a topic in the format of Confluent's serializers, and compiles them.

Without Spark: a process that shows single records decodes them by the same programs.
"""

from __future__ import annotations

from typing import Final

from maxbrod.errors import UnsupportedFormatError, UsageError
from maxbrod.layouts.avro.program import Program, compile_avro
from maxbrod.layouts.internal_topics import AVRO, RegisteredSchema, SchemasTopic
from maxbrod.table.values.decode import Writers
from maxbrod.table.values.protobuf import compile_files, compile_protobuf, message_places

PROTOBUF: Final = "PROTOBUF"
JSON: Final = "JSON"
_MAIN: Final = "maxbrod_main.proto"


def newest_schema(schemas: SchemasTopic, topic: str, part: str) -> RegisteredSchema:
    """The last version of the subject for the keys or values of a topic; a deleted one only if there is no other."""
    subject = f"{topic}-{part}"
    versions = [version for version in schemas.versions.values() if version.subject == subject]
    if not versions:
        raise UsageError(
            f"the archived schemas have no subject {subject!r}",
            operation="decode",
            hint="other naming strategies are not supported: give the schema by avro:FILE or protobuf:FILE#MESSAGE",
        )
    return max(versions, key=lambda registered: (not registered.deleted, registered.version))


def writers_of(schemas: SchemasTopic, newest: RegisteredSchema) -> Writers:
    """Programs of all schemas that may have written values of the topic: those of the newest one's type."""
    if newest.schema_type == PROTOBUF:
        return _protobuf_writers(schemas, newest)
    if newest.schema_type != AVRO:
        raise UnsupportedFormatError(f"schemas of type {newest.schema_type} are not supported", operation="decode")
    programs = {}
    for number, registered in schemas.by_id(newest.context).items():
        # A schema of another subject may be unsupported, and probably no value of this topic needs it.
        program = _avro(schemas, registered, needed=registered.subject == newest.subject)
        if program is not None:
            programs[number] = {0: program}
    return Writers(programs=programs, reader=compile_avro(newest.schema, _texts(schemas, newest)).root)


def _avro(schemas: SchemasTopic, schema: RegisteredSchema, *, needed: bool) -> Program | None:
    if schema.schema_type != AVRO:
        return None
    try:
        return compile_avro(schema.schema, _texts(schemas, schema))
    except UnsupportedFormatError as error:
        if needed:
            error.object_name = f"{schema.subject} version {schema.version}"
            raise
        return None


def _texts(schemas: SchemasTopic, schema: RegisteredSchema) -> list[str]:
    """The texts of the schemas that it refers to, each after those that it needs itself."""
    return [registered.schema for _, registered in _referred(schemas, schema, ())]


def _referred(
    schemas: SchemasTopic, schema: RegisteredSchema, above: tuple[tuple[str, int], ...]
) -> list[tuple[str, RegisteredSchema]]:
    found: list[tuple[str, RegisteredSchema]] = []
    for reference in schema.references:
        place = reference.subject, reference.version
        if place not in schemas.versions or place in above:
            raise UnsupportedFormatError(
                f"the schema refers to version {reference.version} of {reference.subject!r}, which is not archived",
                operation="decode",
                object_name=f"{schema.subject} version {schema.version}",
            )
        other = schemas.versions[place]
        found += [*_referred(schemas, other, (*above, place)), (reference.name, other)]
    return found


def _protobuf_writers(schemas: SchemasTopic, newest: RegisteredSchema) -> Writers:
    """Programs of the newest schema's own subject only, because compiling each takes long."""
    programs: dict[int, dict[int, Program]] = {}
    for version in schemas.versions.values():
        if version.subject != newest.subject or version.schema_type != PROTOBUF or version.id in programs:
            continue
        files = {name: other.schema for name, other in _referred(schemas, version, ())}
        compiled = compile_files({**files, _MAIN: version.schema}, main=_MAIN)
        programs[version.id] = {
            place: compile_protobuf(compiled, name) for place, name in message_places(compiled, _MAIN).items()
        }
    return Writers(programs=programs, reader=programs[newest.id][0].root, indexed=True)
