from __future__ import annotations

from maxbrod.text import counted


def test_numbers_agree_with_their_nouns_and_verbs() -> None:
    assert [counted(number, "run") for number in (0, 1, 2, 1_000)] == ["0 runs", "1 run", "2 runs", "1,000 runs"]
    assert [counted(number, "hold", "is", "are") for number in (1, 2)] == ["1 hold is", "2 holds are"]
