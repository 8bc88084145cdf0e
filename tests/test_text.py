from __future__ import annotations

from maxbrod.text import counted, did_you_mean


def test_numbers_agree_with_their_nouns_and_verbs() -> None:
    assert [counted(number, "run") for number in (0, 1, 2, 1_000)] == ["0 runs", "1 run", "2 runs", "1,000 runs"]
    assert [counted(number, "hold", "is", "are") for number in (1, 2)] == ["1 hold is", "2 holds are"]


def test_a_mistyped_name_gets_the_nearest_known_one_and_a_strange_name_none() -> None:
    known = ["orders", "order-events", "payments"]
    assert did_you_mean("ordres", known) == "did you mean orders?"
    assert did_you_mean("Order", known) == "did you mean orders?", "case and the plural do not matter"
    assert did_you_mean("order_events", ["order-events", "order.events"], most=2) is not None
    assert did_you_mean("paymets", [*known, "payment"], most=2) == "did you mean payments or payment?"
    assert did_you_mean("xyz", known) is None
    assert did_you_mean("orders", []) is None
