"""What a conversion says of its source concerns the chosen topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from maxbrod.batch.columns import conform
from maxbrod.errors import EXIT_DONE, EXIT_INCOMPLETE
from maxbrod.layouts.foreign import ClusterFacts, Survey, WriteOptions
from maxbrod.layouts.registry import layout_of
from maxbrod.model import TopicPartition
from maxbrod.storage.local import LocalStorage
from support.conversions import convert

if TYPE_CHECKING:
    from pathlib import Path


def test_a_gap_of_a_topic_that_was_not_chosen_does_not_make_a_conversion_incomplete(tmp_path: Path) -> None:
    storage, layout, options = LocalStorage(tmp_path / "old"), layout_of("parquet"), WriteOptions()
    for topic, first in (("whole", 0), ("torn", 0), ("torn", 12)):
        batch = conform(
            pa.RecordBatch.from_pydict(
                {
                    "offset": pa.array(range(first, first + 10), pa.int64()),
                    "timestamp_ms": pa.array([1_500_000_000_000] * 10, pa.int64()),
                    "key": pa.array([None] * 10, pa.binary()),
                    "value": pa.array([b"value"] * 10, pa.binary()),
                }
            )
        )
        survey = Survey(layout="parquet", segments=())
        where = TopicPartition(topic=topic, partition=0)
        written = layout.write(storage, where, [batch], options, survey=survey)
        layout.publish(storage, survey, written, options, ClusterFacts())
    (tmp_path / "old" / "maxbrod.json").unlink(missing_ok=True)
    assert convert(tmp_path / "old", tmp_path / "one", "binlog", topics=("whole",)).exit_code == EXIT_DONE
    report = convert(tmp_path / "old", tmp_path / "all", "binlog")
    assert report.exit_code == EXIT_INCOMPLETE
    assert [each.topic for each in report.notices if each.kind == "unexplained"] == ["torn"]
