"""What a query hands to the table: how to reach the archive, and the topics that are meant."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr

from maxbrod.archive.archive import open_archive
from maxbrod.config import S3Config, StorageConfig
from maxbrod.errors import UsageError
from maxbrod.query.options import ScopeOptions
from maxbrod.query.output import step_of
from maxbrod.query.scope import select
from maxbrod.table.read.options import parse_options
from support.full_archive import fill

if TYPE_CHECKING:
    from support.archives import Place


def test_the_way_to_the_storage_reaches_the_table_and_is_never_shown(local_place: Place) -> None:
    archive = fill(local_place)
    s3 = S3Config(endpoint="http://127.0.0.1:1", access_key_id=SecretStr("key"), secret_access_key=SecretStr("hush"))
    storage = StorageConfig(s3=s3, deadline_s=7.5)
    selected = select(replace(archive, options=storage), ScopeOptions(since="5", partitions="0"), layout="kafka")
    options = parse_options(selected.options)
    assert (options.storage, options.layout, options.url) == (storage, "kafka", local_place.url)
    assert (options.scope.since_ms, options.scope.partitions) == (5, frozenset({0}))
    assert "hush" not in repr(selected)


def test_topics_are_chosen_as_everywhere_else(local_place: Place) -> None:
    archive = open_archive(fill(local_place).url)
    assert select(archive, ScopeOptions(), layout=None).topics == {"orders", "empty"}
    assert "topics" not in select(archive, ScopeOptions(), layout=None).options
    chosen = select(archive, ScopeOptions(exclude=("/emp.{1,2}y/",)), layout=None)
    assert (chosen.topics, chosen.options["topics"]) == (frozenset({"orders"}), "orders")
    for scope in (ScopeOptions(topics=("ordres",)), ScopeOptions(exclude=("*",)), ScopeOptions(as_of="nobody")):
        with pytest.raises(UsageError):
            select(archive, scope, layout=None)


@pytest.mark.parametrize(
    ("span_ms", "step_ms"), [(0, 1), (59, 1), (60, 2), (3_600_000, 120_000), (86_400_000, 1_800_000), (2**62, None)]
)
def test_steps_of_a_histogram_are_round_and_few(span_ms: int, step_ms: int | None) -> None:
    found = step_of(1000, 1000 + span_ms)
    assert step_ms in {None, found}
    assert span_ms // found < 60
