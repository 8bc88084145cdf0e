"""Which keys and values have schema ids: what the user says, else what the captured subjects say."""

from __future__ import annotations

import pytest

from maxbrod.batch.schema_ids import Framing
from maxbrod.errors import UsageError
from maxbrod.registry.model import RegistryState
from maxbrod.registry.remap import MappedSchemas, encode_mapped, framing_of, map_for, parse_part
from support.registries import serving
from support.registry_states import captured, filled

SUBJECTS = ["orders-value", ":.other:stock-key"]


@pytest.mark.parametrize(
    ("topic", "part", "framed", "unframed", "expected"),
    [
        ("orders", "value", [], [], Framing.FRAMED),
        ("orders", "key", [], [], Framing.UNKNOWN),
        ("stock", "key", [], [], Framing.FRAMED),
        ("rders", "value", [], [], Framing.UNKNOWN),
        ("events", "value", ["ev*:value"], [], Framing.FRAMED),
        ("events", "key", ["ev*:value"], [], Framing.UNKNOWN),
        ("events", "key", ["events"], [], Framing.FRAMED),
        ("orders", "value", [], ["orders:value"], Framing.UNFRAMED),
        ("orders", "value", [], ["*:key"], Framing.FRAMED),
        ("orders", "key", [], ["*:key"], Framing.UNFRAMED),
    ],
)
def test_frames_are_where_the_user_or_a_subject_of_the_topic_says(
    topic: str, part: str, framed: list[str], unframed: list[str], expected: Framing
) -> None:
    assert framing_of(topic, part, SUBJECTS, framed, unframed) is expected


@pytest.mark.parametrize("word", ["orders:values", ":key", "orders:"])
def test_a_part_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="names neither"):
        parse_part(word)


@pytest.fixture(scope="module")
def archived() -> RegistryState:
    with serving(filled()) as double:
        return captured(double)


def test_an_id_that_two_contexts_have_for_different_schemas_is_not_mapped(archived: RegistryState) -> None:
    mapped = MappedSchemas(ids={(".", 1): 10, (".other", 1): 11, (".", 2): 12, (".other", 2): 12})
    found = map_for(encode_mapped(mapped, archived, (), ()), "orders")
    assert found is not None
    assert found.ids == {2: 12}


def test_records_stay_as_they_are_if_all_ids_do(archived: RegistryState) -> None:
    mapped = MappedSchemas(ids={(".", 1): 1, (".", 2): 2})
    assert map_for(encode_mapped(mapped, archived, (), ()), "orders") is None
    assert map_for(encode_mapped(mapped, archived, (), ["orders"]), "orders") is None
