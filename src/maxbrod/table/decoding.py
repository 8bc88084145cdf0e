"""Keys and values as columns that SQL can look into: what each format makes of a column of bytes.

JSON is decoded by Spark itself, Avro and Protobuf by compiled loops in its Python workers: no jar is needed for them,
and no record is touched by Python alone. What cannot be decoded ends the query, or is null if that is asked for.
"""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa  # noqa: TC002 - PySpark looks at annotations
from pyspark.sql import functions as spark_functions
from pyspark.sql import types as spark

from maxbrod.errors import CorruptDataError, UsageError
from maxbrod.table import formats, registry
from maxbrod.table.sql_errors import plain_errors
from maxbrod.table.values.avro import compile_avro
from maxbrod.table.values.confluent import HEAD_BYTES, decode_confluent, decode_plain
from maxbrod.table.values.decoding import encoded
from maxbrod.table.values.proto_files import read_descriptors
from maxbrod.table.values.protobuf import compile_protobuf
from maxbrod.table.views import Decoded

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

    from maxbrod.layouts.schemas_topic import SchemasTopic
    from maxbrod.table.formats import Format
    from maxbrod.table.values.confluent import Failure
    from maxbrod.table.values.decoding import Encoded

SAMPLE_ROWS: Final = 1000
_PLACE: Final = ("topic", "partition", "offset")
_CORRUPT: Final = "_maxbrod_corrupt"
_MARK: Final = f"maxbrod-{uuid4().hex}"
"""No value has it."""
# Integers that 64 bits may not hold. Within a text they are no numbers, but do no harm here.
_LONG: Final = re.compile(rb"(?<![\d.])\d{19,}(?![\d.eE])")
_DECIMAL_DIGITS_MAX: Final = 38
_INT64_DIGITS: Final = 19
# Of Spark's words for the types of variants, those that a schema has other words for. Quoted names are passed over.
_VARIANT_WORDS: Final = re.compile(
    r"`(?:[^`]|``)*`|OBJECT<|DECIMAL\((?P<precision>\d+),\s*(?P<scale>\d+)\)|\b(?:VOID|VARIANT|DOUBLE)\b(?!\s*:)"
)


def decoded_column(
    column: str,
    wanted: Format,
    *,
    topic: str | None,
    sample: Callable[[str], DataFrame],
    schemas: Callable[[], SchemasTopic],
    permissive: bool,
) -> Decoded | None:
    """What becomes of `column`, key or value; None: it stays bytes. `sample` has some rows of that column."""
    match wanted.kind:
        case formats.UTF8:
            return _by_spark(column, spark.StringType(), _utf8, permissive=permissive)
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
    newest = registry.newest_schema(schemas, topic, column)
    if newest.schema_type == registry.JSON:
        body = spark_functions.expr(f"substring({column}, {HEAD_BYTES + 1})")
        kind = _inferred(sample(column).select(body.alias(column)), column)
        return _by_spark(column, kind, partial(_json, kind=kind), permissive=permissive, skip=HEAD_BYTES)
    writers = registry.writers_of(schemas, newest)
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
        words = [spark_functions.lit(text) for text in (_complaint(column), "-", ", at offset ", ")")]
        told = spark_functions.concat(words[0], place[0], words[1], place[1], words[2], place[2], words[3])
        failed = spark_functions.col(column).isNotNull() & found.isNull()
        return spark_functions.when(failed, spark_functions.raise_error(told).cast(kind)).otherwise(found)

    needs = {column} if permissive else {column, *_PLACE}
    return Decoded(type=kind, make=make, needs=frozenset(needs))


def _complaint(column: str) -> str:
    """As an error of ours, which `sql_errors` knows again in what Spark says."""
    return f"maxbrod.errors.{CorruptDataError.__name__}: a {column} cannot be decoded; --permissive makes it null (in "


def _utf8(body: Column) -> Column:
    return spark_functions.try_validate_utf8(body.cast("string"))


def _json(body: Column, *, kind: spark.DataType) -> Column:
    """Null for what is no JSON of this type; JSON's own null, too, which nobody means."""
    text = body.cast("string")
    return spark_functions.when(_is_one(text), _first_json(text, kind))


def _first_json(text: Column, kind: spark.DataType) -> Column:
    """What Spark makes of a text. It stops where the first value ends, whatever stands behind."""
    if not isinstance(kind, spark.StructType):
        return spark_functions.from_json(text, kind.simpleString(), {"mode": "PERMISSIVE"})
    told = spark.StructType([*kind.fields, spark.StructField(_CORRUPT, spark.StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    found = spark_functions.from_json(text, told, options)
    return spark_functions.when(found[_CORRUPT].isNull(), found.dropFields(_CORRUPT))


def _is_one(text: Column) -> Column:
    """Whether nothing stands behind the first value of a text.

    As part of a list, it is then followed by what the list has next. A variant tells that in a third of the time that
    types take, but has no room for all that JSON can be: what it cannot hold is looked at in the other way.
    """
    listed = spark_functions.concat(spark_functions.lit("["), text, spark_functions.lit(f',"{_MARK}"]'))
    quick = spark_functions.try_variant_get(spark_functions.try_parse_json(listed), "$[1]", "string")
    slow = spark_functions.get(spark_functions.from_json(listed, "array<string>"), spark_functions.lit(1))
    found = spark_functions.coalesce(quick == _MARK, slow == _MARK)
    return spark_functions.coalesce(found, spark_functions.lit(False))


def _given_type(argument: str) -> spark.DataType:
    """Columns as SQL declares them, a type, or Spark's own JSON of a schema; or a file that has one of these."""
    text = _text(argument) if Path(argument).is_file() else argument
    try:
        found: spark.DataType = (
            spark.StructType.fromJson(json.loads(text))
            if text.lstrip().startswith("{")
            else spark.DataType.fromDDL(text)
        )
    except Exception as error:
        raise UsageError(
            f"this is no schema: {argument!r}", operation="decode", hint="such as json:'id bigint, name string'"
        ) from error
    return found


def _inferred(rows: DataFrame, column: str) -> spark.DataType:
    """Of the first rows; where values of one field disagree, their JSON as text."""
    text = f"schema_of_variant_agg(try_parse_json(CAST({column} AS STRING)))"
    with plain_errors():
        # By `take`, which asks further tasks only if it has not got enough: a limit in the query would ask all.
        sample = [(row[0],) for row in rows.where(f"{column} IS NOT NULL").take(SAMPLE_ROWS)]
        gathered = rows.sparkSession.createDataFrame(sample, f"{column} binary")
        found = gathered.selectExpr(f"{text} AS found").collect()[0][0]
    digits = max((len(each) for (value,) in sample for each in _LONG.findall(value)), default=0)
    return spark.DataType.fromDDL(as_ddl(found, digits))


def as_ddl(variant: str, digits: int = 0) -> str:
    """The type of a variant in the words of a schema. `digits`: of the longest integer, if 64 bits may not hold it.

    Numbers with a fraction are doubles. Integers that no 64 bits hold are text, which has all of their digits: a
    decimal would round what has a fraction after all, and say nothing.
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
    decode: Callable[[Encoded], tuple[pa.Array, list[Failure]]],
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
