"""Both layouts of this tool on a real object store, which has no folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.layouts.foreign import WriteOptions
from maxbrod.layouts.registry import detect_layout, layout_of
from support.record_examples import to_arrow, to_records
from support.tool_backups import FACTS, WHERE, some

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage


@pytest.mark.parametrize("name", ["kbak", "kbs"])
def test_a_backup_in_an_object_store_grows_and_is_read(direct_storage: Storage, name: str) -> None:
    layout = layout_of(name)
    for first in (0, 5):
        survey = layout.survey(direct_storage)
        options = WriteOptions(segment_records_max=2)
        written = layout.write(direct_storage, WHERE, [to_arrow(some(first, 5))], options, survey=survey)
        layout.publish(direct_storage, survey, written, options, FACTS)
    survey = layout.survey(direct_storage)

    assert detect_layout(direct_storage) == name
    assert survey.faults == ()
    batches = [batch for segment in survey.segments for batch in layout.read(direct_storage, segment)]
    assert [record for batch in batches for record in to_records(batch)] == some(0, 10)
