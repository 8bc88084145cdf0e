"""Which topics are meant, by name and by pattern."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.archive.selection import exact_word, matches_nothing, select_names, select_topics
from maxbrod.errors import UsageError

NAMES = {
    "orders": False,
    "orders-eu": False,
    "orders.2": False,
    "payments": False,
    "_schemas": False,
    "__consumer_offsets": True,
    "__mine": False,
    "flagged": True,
}
_names = st.dictionaries(st.text("ab_-.", min_size=1, max_size=4), st.booleans(), max_size=8)


def chosen(*include: str, exclude: tuple[str, ...] = (), internal: bool = False) -> list[str]:
    return list(select_topics(NAMES, include, exclude, internal=internal).chosen)


def test_without_a_word_all_topics_but_internal_ones_are_meant() -> None:
    assert chosen() == ["_schemas", "orders", "orders-eu", "orders.2", "payments"]
    assert chosen(internal=True) == sorted(NAMES)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("orders", ["orders"]),
        ("orders*", ["orders", "orders-eu", "orders.2"]),
        ("orders?2", ["orders.2"]),
        ("orders[.-]*", ["orders-eu", "orders.2"]),
        ("orders[!.]*", ["orders-eu"]),
        ("[]-]*", []),
        ("/orders./", []),
        ("/orders.+/", ["orders-eu", "orders.2"]),
        (r"/orders\.\d|payments/", ["orders.2", "payments"]),
        ("*offsets", []),
    ],
)
def test_a_pattern_means_the_topics_that_it_matches_in_full(pattern: str, expected: list[str]) -> None:
    assert chosen(pattern) == expected


def test_an_internal_topic_is_meant_where_it_is_named_in_full() -> None:
    assert chosen("__consumer_offsets", "flagged") == ["__consumer_offsets", "flagged"]
    assert chosen("__*") == []
    assert chosen("__*", internal=True) == ["__consumer_offsets", "__mine"]


def test_what_is_excluded_stays_out_however_it_was_included() -> None:
    assert chosen("orders", "orders-eu", exclude=("/.*-eu/",)) == ["orders"]
    assert chosen(exclude=("orders*", "payments")) == ["_schemas"]


def test_a_name_that_no_topic_has_is_missing_and_a_pattern_is_not() -> None:
    found = select_topics(NAMES, ["nope", "none*", "/never/", "orders", "gone"], ["gone"])
    assert found.missing == ("nope",)
    assert found.chosen == ("orders",)


@pytest.mark.parametrize("pattern", ["", "/", "//", "/orders", "/(/", "/[/", "orders[", "a[]", "[!]", "*["])
def test_a_pattern_that_cannot_be_meant_is_named(pattern: str) -> None:
    for include, exclude in (([pattern], []), (["orders"], [pattern])):
        with pytest.raises(UsageError) as caught:
            select_topics(NAMES, include, exclude)
        assert repr(pattern) in caught.value.message


@given(_names, st.lists(st.sampled_from(["a", "b", "a*", "*", "?", "/a.*/", "/_+/"])), st.booleans())
def test_a_topic_is_never_both_excluded_and_chosen(names: dict[str, bool], patterns: list[str], internal: bool) -> None:
    kept = set(select_topics(names, patterns, internal=True).chosen) if patterns else set()
    left = set(select_topics(names, (), patterns, internal=True).chosen)
    assert kept | left == set(names)
    assert not kept & left
    assert set(select_topics(names, patterns, internal=internal).chosen) <= set(names)


def test_every_word_that_means_no_topic_is_told() -> None:
    found = select_topics(NAMES, ["orders", "lost", "/orders/", "/^pay/", "x*"], ["tmp-*", "gone", "payments"])
    assert found.chosen == ("orders",)
    assert found.missing == ("lost",)
    assert found.unmatched == ("/^pay/", "x*")
    assert found.unused == ("gone", "tmp-*")
    assert found.wrong == "lost"
    assert select_topics({}, ["*"]).wrong is None, "all that there are may be none"


@pytest.mark.parametrize(
    ("word", "hint"),
    [("/^pay/", "whole name"), ("ordres", "did you mean orders"), ("/ordres/", "did you mean orders"), ("q", "ls")],
)
def test_the_hint_names_what_was_probably_meant(word: str, hint: str) -> None:
    error = matches_nothing(word, NAMES)
    assert error.exit_code == 2
    assert hint in str(error.hint)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12))
def test_an_exact_word_selects_its_topic_and_no_other(name: str) -> None:
    others = {"orders", "a", f"{name}x", f"x{name}", "/", "*"} - {name}
    assert select_names({name, *others}, [exact_word(name)]) == {name}
