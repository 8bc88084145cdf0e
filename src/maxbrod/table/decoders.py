"""Decodes keys and values into typed columns that SQL can use.

Spark decodes JSON itself. Avro and Protobuf are decoded by compiled loops in its Python workers: this needs no jar, and
no Python per record. A value that cannot be decoded fails the query, or is null if the user asks for that. Schemas of
Confluent's format come from the captured registry or the archived topic `_schemas`, compiled for the values of a
topic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as spark_functions
from pyspark.sql import types as spark

from maxbrod import strict_json
from maxbrod.archive.snapshots import find_moment
from maxbrod.batch.columns import conform
from maxbrod.errors import CorruptDataError, UsageError
from maxbrod.layouts.avro.program import compile_avro
from maxbrod.layouts.internal_topics import SCHEMAS_TOPIC, SchemasTopic, read_schemas_topic
from maxbrod.registry.model import RegistryState
from maxbrod.registry.stored import read_registry
from maxbrod.table import formats
from maxbrod.table.formats import Format
from maxbrod.table.read.options import TableOptions, parse_options
from maxbrod.table.read.rows import read_split
from maxbrod.table.read.splits import open_table, plan_splits
from maxbrod.table.sql_errors import plain_errors
from maxbrod.table.values.confluent import JSON, newest_schema, writers_of
from maxbrod.table.values.decode import (
    HEAD_BYTES,
    Encoded,
    UndecodedValue,
    decode_confluent,
    decode_plain,
    encoded,
)
from maxbrod.table.values.protobuf import compile_protobuf, read_descriptors
from maxbrod.table.views import Decoded

SAMPLE_ROWS: Final = 1000
_PLACE: Final = ("topic", "partition", "offset")
_CORRUPT: Final = "_maxbrod_corrupt"
_MARK: Final = f"maxbrod-{uuid4().hex}"
"""Random, so that no value contains it."""
# Integers that 64 bits may not hold. Digits inside a text match, too, which only makes the inferred type wider.
_LONG: Final = re.compile(rb"(?<![\d.])\d{19,}(?![\d.eE])")
_DECIMAL_DIGITS_MAX: Final = 38
_INT64_DIGITS: Final = 19
# Spark's names of the types of variants that differ in a schema. Quoted names are skipped.
_VARIANT_WORDS: Final = re.compile(
    r"`(?:[^`]|``)*`|OBJECT<|DECIMAL\((?P<precision>\d+),\s*(?P<scale>\d+)\)|\b(?:VOID|VARIANT|DOUBLE)\b(?!\s*:)"
)

_REACHED_BY: Final = ("path", "layout")


def decoded_column(
    column: str,
    wanted: Format,
    *,
    topic: str | None,
    sample: Callable[[str], DataFrame],
    schemas: Callable[[], SchemasTopic],
    permissive: bool,
) -> Decoded | None:
    """Return the decoder of `column`, key or value; None: it stays bytes. `sample` returns rows of that column."""
    match wanted.kind:
        case formats.UTF8:
            text = spark.StringType()
            return _by_spark(
                column, text, lambda body: spark_functions.try_validate_utf8(body.cast("string")), permissive=permissive
            )
        case formats.JSON:
            kind = _given_type(wanted.argument) if wanted.argument else _inferred(sample(column), column)
            return _by_spark(column, kind, partial(_json, kind=kind), permissive=permissive)
        case formats.AVRO:
            program = compile_avro(_text(wanted.argument))
            return _by_worker(column, program.root.type, partial(decode_plain, program), permissive=permissive)
        case formats.PROTOBUF:
            file, _, message = wanted.argument.partition("#")
            program = compile_protobuf(read_descriptors(Path(file)), message)
            return _by_worker(column, program.root.type, partial(decode_plain, program), permissive=permissive)
        case formats.CONFLUENT:
            return _confluent(column, topic or "", sample, schemas(), permissive=permissive)
        case _:
            return None


def _confluent(
    column: str, topic: str, sample: Callable[[str], DataFrame], schemas: SchemasTopic, *, permissive: bool
) -> Decoded:
    newest = newest_schema(schemas, topic, column)
    if newest.schema_type == JSON:
        body = spark_functions.expr(f"substring({column}, {HEAD_BYTES + 1})")
        kind = _inferred(sample(column).select(body.alias(column)), column)
        return _by_spark(column, kind, partial(_json, kind=kind), permissive=permissive, skip=HEAD_BYTES)
    writers = writers_of(schemas, newest)
    return _by_worker(column, writers.reader.type, partial(decode_confluent, writers), permissive=permissive)


def _by_spark(
    column: str, kind: spark.DataType, decode: Callable[[Column], Column], *, permissive: bool, skip: int = 0
) -> Decoded:
    def make() -> Column:
        body = spark_functions.expr(f"substring({column}, {skip + 1})") if skip else spark_functions.col(column)
        found = decode(body)
        if permissive:
            return found
        place = [spark_functions.col(name).cast("string") for name in _PLACE]
        # The text of an error of ours, which `sql_errors` recognizes inside Spark's message.
        name = f"maxbrod.errors.{CorruptDataError.__name__}"
        complaint = f"{name}: a {column} cannot be decoded; --permissive makes it null (in "
        words = [spark_functions.lit(text) for text in (complaint, "-", ", at offset ", ")")]
        message = spark_functions.concat(words[0], place[0], words[1], place[1], words[2], place[2], words[3])
        failed = spark_functions.col(column).isNotNull() & found.isNull()
        return spark_functions.when(failed, spark_functions.raise_error(message).cast(kind)).otherwise(found)

    needs = {column} if permissive else {column, *_PLACE}
    return Decoded(type=kind, make=make, needs=frozenset(needs))


def _json(body: Column, *, kind: spark.DataType) -> Column:
    """Null for text that is not JSON of this type, and for JSON's own null."""
    text = body.cast("string")
    return spark_functions.when(_is_one(text), _first_json(text, kind))


def _first_json(text: Column, kind: spark.DataType) -> Column:
    """The first JSON value of a text, as Spark decodes it. It stops after the first value and ignores what follows."""
    if not isinstance(kind, spark.StructType):
        return spark_functions.from_json(text, kind.simpleString(), {"mode": "PERMISSIVE"})
    extended = spark.StructType([*kind.fields, spark.StructField(_CORRUPT, spark.StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    found = spark_functions.from_json(text, extended, options)
    return spark_functions.when(found[_CORRUPT].isNull(), found.dropFields(_CORRUPT))


def _is_one(text: Column) -> Column:
    """True if a text is one JSON value and nothing follows it.

    The text is put into a list before a mark: only if it is one value, the mark is the second item. Parsing a variant
    takes a third of the time of parsing types, but cannot hold every JSON: what it cannot hold is parsed the other way.
    """
    listed = spark_functions.concat(spark_functions.lit("["), text, spark_functions.lit(f',"{_MARK}"]'))
    quick = spark_functions.try_variant_get(spark_functions.try_parse_json(listed), "$[1]", "string")
    slow = spark_functions.get(spark_functions.from_json(listed, "array<string>"), spark_functions.lit(1))
    found = spark_functions.coalesce(quick == _MARK, slow == _MARK)
    return spark_functions.coalesce(found, spark_functions.lit(False))


def _given_type(argument: str) -> spark.DataType:
    """A type from columns as SQL declares them, a type name, or Spark's JSON of a schema; or from a file with one."""
    text = _text(argument) if Path(argument).is_file() else argument
    try:
        found: spark.DataType = (
            spark.StructType.fromJson(strict_json.parse(text))
            if text.lstrip().startswith("{")
            else spark.DataType.fromDDL(text)
        )
    except Exception as error:
        raise UsageError(
            f"this is not a schema: {argument!r}",
            operation="decode",
            hint="give one such as json:'id bigint, name string'",
        ) from error
    return found


def _inferred(rows: DataFrame, column: str) -> spark.DataType:
    """The type of the first rows. If values of one field disagree, it is their JSON as text."""
    text = f"schema_of_variant_agg(try_parse_json(CAST({column} AS STRING)))"
    with plain_errors():
        # `take` runs more tasks only if it needs more rows; a limit in the query would run all tasks.
        sample = [(row[0],) for row in rows.where(f"{column} IS NOT NULL").take(SAMPLE_ROWS)]
        gathered = rows.sparkSession.createDataFrame(sample, f"{column} binary")
        found = gathered.selectExpr(f"{text} AS found").collect()[0][0]
    digits = max((len(digits) for (value,) in sample for digits in _LONG.findall(value)), default=0)
    return spark.DataType.fromDDL(as_ddl(found, digits))


def as_ddl(variant: str, digits: int = 0) -> str:
    """The type of a variant as DDL of a schema. `digits`: those of the longest integer, if 64 bits may not hold it.

    Numbers with a fraction are doubles. Integers that 64 bits cannot hold are text with all of their digits: a decimal
    would silently round a later value with a fraction.
    """
    words = {"OBJECT<": "STRUCT<", "VOID": "STRING", "VARIANT": "STRING"}
    if digits > _DECIMAL_DIGITS_MAX:
        words["DOUBLE"] = "STRING"

    def put(match: re.Match[str]) -> str:
        found = match[0]
        if found.startswith("`"):
            return found
        if digits >= _INT64_DIGITS and match["scale"] == "0" and int(match["precision"]) >= _INT64_DIGITS:
            return "STRING"
        return words.get(found, "DOUBLE")

    return _VARIANT_WORDS.sub(put, variant)


def _by_worker(
    column: str,
    kind: pa.DataType,
    decode: Callable[[Encoded], tuple[pa.Array, list[UndecodedValue]]],
    *,
    permissive: bool,
) -> Decoded:
    from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415 - pandas, by its name at least

    def decode_all(values: pa.Array, topics: pa.Array, partitions: pa.Array, offsets: pa.Array) -> pa.Array:
        found, failures = decode(encoded(values))
        if failures and not permissive:
            failure = failures[0]
            where = f"{topics[failure.row].as_py()}-{partitions[failure.row].as_py()}"
            raise CorruptDataError(
                f"a {column} cannot be decoded: {failure.why}; --permissive makes it null",
                object_name=where,
                offset=offsets[failure.row].as_py(),
            )
        return found

    made: Any = from_arrow_type(kind)
    call = spark_functions.arrow_udf(decode_all, made)
    return Decoded(type=made, make=lambda: call(column, *_PLACE), needs=frozenset({column, *_PLACE}))


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the schema cannot be read: {error}", operation="decode", object_name=file) from error


def archived_schemas(options: Mapping[str, str]) -> SchemasTopic:
    """All schemas, whatever part of the archive a query reads: those of the captured registry, else of its topic.

    UsageError: neither is archived.
    """
    place = {name: value for name, value in options.items() if name in _REACHED_BY or name.startswith("storage.")}
    captured = _captured(parse_options({**place, "topics": "*"}))
    if captured is not None:
        return captured.as_topic()
    wanted = parse_options({**place, "topics": SCHEMAS_TOPIC, "columns": "offset,timestampMs,key,value"})
    try:
        return read_schemas_topic(_records(wanted))
    except UsageError as error:
        raise UsageError(
            f"no schema registry was captured, and the archived topic {SCHEMAS_TOPIC} has no schemas: {error.message}",
            operation="decode",
            hint=f"back up with --schema-registry, or with --topic {SCHEMAS_TOPIC}; or "
            "give the schema by avro:FILE or protobuf:FILE#MESSAGE",
        ) from error


def _captured(options: TableOptions) -> RegistryState | None:
    """The registry that the newest run has captured, whatever run a query reads as of: it knows all older ids."""
    archive = open_table(options)
    if not archive.is_native:
        return None
    return read_registry(archive.storage, find_moment(archive.storage, archive.catalog.runs(), None).snapshot)


def _records(options: TableOptions) -> Iterator[pa.RecordBatch]:
    archive = open_table(options)
    for split in plan_splits(archive, options):
        for found in read_split(archive.storage, split, options.scopes, options.columns, committed=True):
            yield conform(found.rename_columns(["offset", "timestamp_ms", "key", "value"]))
