"""The pages say what is true: the segments annotated there are those that the tests are held to."""

from __future__ import annotations

import re
from pathlib import Path

import kbs.test_segments
import pytest

import kbak.test_segments

PAGES = Path(__file__).parents[3] / "docs" / "layouts"
_LINE = re.compile(r"((?:[0-9a-f]{2} )+) +\S.*")


@pytest.mark.parametrize(("name", "golden"), [("kbak", kbak.test_segments.GOLDEN), ("kbs", kbs.test_segments.GOLDEN)])
def test_the_annotated_segment_is_the_golden_one(name: str, golden: bytes) -> None:
    lines = (PAGES / f"{name}.md").read_text(encoding="utf-8").splitlines()
    annotated = [match[1] for line in lines if (match := _LINE.fullmatch(line))]

    assert bytes.fromhex("".join(annotated)) == golden
