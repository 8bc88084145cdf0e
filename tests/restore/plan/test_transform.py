"""Expressions are part of the command and of its plan, and are refused where nothing would apply them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from maxbrod.compare.plan import CompareRequest
from maxbrod.errors import UsageError
from maxbrod.restore.cold.plan import check_cold
from maxbrod.restore.plan.request import RestoreRequest, command_digest
from maxbrod.restore.state import decode_plan, encode_plan
from maxbrod.transform.plan import Changes, TransformPlan, add_changes
from support.catalog_rows import segment
from support.restore_plans import plan

WHERE = RestoreRequest(where="key is not null")


def digest(request: RestoreRequest) -> str:
    return command_digest(request, archive="s3://a", cluster_id="c")


def test_other_expressions_are_another_command_and_another_staging_is_not() -> None:
    others = [
        RestoreRequest(),
        WHERE,
        RestoreRequest(where="true"),
        RestoreRequest(select="key as key"),
        replace(WHERE, select="key as key"),
    ]
    assert len({digest(each) for each in others}) == len(others)
    assert digest(replace(WHERE, staging="/elsewhere")) == digest(WHERE)


def test_a_plan_with_expressions_comes_back_as_it_was() -> None:
    changes = Changes(topic="orders", read=9, kept=5, dropped=4, changed={"key": 2})
    transform = TransformPlan(where="true", select="key as key", fields=("key",), staging="/s", topics=(changes,))
    made = replace(plan([segment(0, 10)], WHERE), transform=transform)
    assert decode_plan(encode_plan(made)) == made


@pytest.mark.parametrize("asked", [WHERE, RestoreRequest(select="'x' as value")])
def test_expressions_that_would_not_be_followed_are_refused(asked: RestoreRequest) -> None:
    """Otherwise records that were to be left out or masked would be restored."""
    with pytest.raises(UsageError, match="--to-logdir") as refused:
        check_cold(asked)
    assert "convert" in str(refused.value.hint)
    with pytest.raises(UsageError, match="does not transform"):
        CompareRequest(selection=asked)


def test_staging_without_expressions_is_refused() -> None:
    with pytest.raises(UsageError, match="--staging needs"):
        RestoreRequest(staging="/elsewhere")


def test_what_parts_of_a_topic_have_changed_is_added_up() -> None:
    parts = [
        Changes(topic="b", read=1, dropped=1),
        Changes(topic="a", read=3, kept=2, dropped=1, changed={"key": 1}),
        Changes(topic="a", read=2, kept=2, changed={"key": 2, "value": 1}),
    ]
    assert add_changes(parts) == (
        Changes(topic="a", read=5, kept=4, dropped=1, changed={"key": 3, "value": 1}),
        Changes(topic="b", read=1, dropped=1),
    )
