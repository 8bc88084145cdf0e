"""What is wrong with an expression is said before anything is touched, in Spark's words and in one line."""

from __future__ import annotations

from typing import Any

import pytest

from maxbrod.errors import UsageError
from maxbrod.transform.frame import check_transform
from maxbrod.transform.plan import TABLE, Transform, mentioned, shown_for

WRONG = [
    ({"where": "nokey = 'x'"}, "UNRESOLVED_COLUMN"),
    ({"where": "key +"}, "PARSE_SYNTAX_ERROR"),
    ({"where": "length(key)"}, "FILTER_NOT_BOOLEAN"),
    ({"where": "count(*) > 1"}, "INVALID_WHERE_CONDITION"),
    ({"where": "row_number() over (order by offset) > 1"}, "WINDOW_FUNCTION_NOT_ALLOWED"),
    ({"where": "_m_task = 0"}, "UNRESOLVED_COLUMN"),
    ({"select": "sha2(nokey, 256) as key"}, "UNRESOLVED_COLUMN"),
    ({"select": "upper(key)"}, "name each expression"),
    ({"select": "length(key) as key"}, "is int, not binary or string"),
    ({"select": "'2026' as timestamp"}, "is string, not timestamp"),
    ({"select": "map('a', value) as headers"}, "not array<struct<key:string,value:binary>>"),
    ({"select": "offset + 1 as offset"}, "offsets cannot be rewritten"),
    ({"select": "'other' as topic"}, "--rename"),
    ({"select": "0 as partition"}, "--partition-count"),
    ({"select": "timestamp as timestamp, timestampMs as timestampMs"}, "twice"),
    ({"select": "key as key, value as key"}, "twice"),
    ({"select": "max(value) as value"}, "INVALID_WHERE_CONDITION"),
    ({"select": "*"}, "rewritten"),
]


@pytest.mark.parametrize(("words", "said"), WRONG, ids=lambda each: str(each)[:40])
def test_a_wrong_expression_is_refused_in_one_line(
    words: dict[str, str], said: str, spark: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError) as refused:
        check_transform(spark, Transform(**words))
    error = refused.value
    assert said in f"{error} {error.hint}"
    assert "\n" not in str(error)
    assert capfd.readouterr() == ("", ""), "and nothing else is said"


def test_an_expression_may_use_every_column_of_the_table(spark: Any) -> None:
    where = " and ".join(f"{name} is not null" for name in TABLE)
    assert check_transform(spark, Transform(where=where)) == ()


def test_an_expression_tells_which_fields_it_rewrites(spark: Any) -> None:
    select = "null as VALUE, filter(headers, h -> h.key != 'secret') as headers, timestampMs + 1 as timestampMs -- so"
    assert check_transform(spark, Transform(select=select)) == ("value", "headers", "timestamp")


def test_columns_that_no_expression_mentions_are_never_made() -> None:
    assert mentioned("KEY = 'timestamp'") == ["key", "timestamp"]
    assert shown_for("key is null") == []
    assert shown_for("topicId = 'x' and producerid > 0") == ["topic", "topic_id", "producer_id"]
    assert mentioned("count(*)") == list(TABLE)


@pytest.mark.parametrize("name", ["where", "select"])
def test_an_empty_expression_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is empty"):
        Transform(**{name: " "})
