"""Metadata of which any part may be anything: a survey reports it, and never breaks."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.errors import MaxbrodError
from support.tool_backups import FACTS, TOOLS, Tool, some

if TYPE_CHECKING:
    from collections.abc import Callable

    from maxbrod.storage.interface import Storage

junk = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 70), 1 << 70),
        st.floats(allow_nan=True),
        st.sampled_from(["", "..", "../../x", "a/b", "\0", "1.0", "9.9", "orders", "x" * 2000, "\ud800"]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["0", "orders", "x", ".."]), inner),
    max_leaves=5,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in inner for place in _places(each, (*path, key)))]


def _exchanged(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    changed = copy.copy(value)
    changed[path[0]] = _exchanged(value[path[0]], path[1:], other)
    return changed


@pytest.mark.parametrize(
    ("tool", "name"),
    [(tool, name) for tool in TOOLS for name in tool.documents],
    ids=lambda each: getattr(each, "name", each),
)
@given(data=st.data())
def test_anything_in_any_place_never_breaks_a_survey(
    tool: Tool, shelf: Callable[[], Storage], name: str, data: st.DataObject
) -> None:
    storage = shelf()
    tool.add(storage, some(0, 3), FACTS)
    tool.add(storage, some(3, 3), FACTS)
    document = json.loads(bytes(storage.get(f"maxbrod/{name}")))
    place = data.draw(st.sampled_from(_places(document)))
    storage.replace(f"maxbrod/{name}", json.dumps(_exchanged(document, place, data.draw(junk))).encode())
    try:
        survey = tool.layout.survey(storage)
    except MaxbrodError:
        return
    for segment in survey.segments:
        try:
            rows = sum(batch.num_rows for batch in tool.layout.read(storage, segment))
        except MaxbrodError:
            continue
        assert rows <= 6
    list(tool.layout.check(storage, survey, deep=True))
    try:
        tool.add(storage, some(100, 1), FACTS)
    except MaxbrodError:
        return
    assert 101 in {segment.end_offset for segment in tool.layout.survey(storage).segments}
