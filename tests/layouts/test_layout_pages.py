"""The examples on the layouts' pages are what the layouts write."""

from __future__ import annotations

import re
from pathlib import Path

from maxbrod.layouts.foreign import WriteOptions
from maxbrod.layouts.registry import layout_of
from maxbrod.model import TopicPartition
from support.given_records import Given, batch
from support.storages import fresh_storage

PAGES = Path(__file__).parents[2] / "docs" / "layouts"


def example(name: str) -> bytes:
    (block,) = re.findall(r"^```\n(.*?)^```", (PAGES / f"{name}.md").read_text(), re.DOTALL | re.MULTILINE)
    return bytes.fromhex("".join(line.split("  ")[0] for line in block.splitlines()))


def written(name: str, record: Given) -> bytes:
    layout = layout_of(name)
    with fresh_storage() as storage:
        where = TopicPartition(topic="orders", partition=3)
        (segment,) = layout.write(storage, where, [batch([record])], WriteOptions(), survey=layout.survey(storage))
        return bytes(storage.get(segment.path))


def test_the_page_about_binlog_shows_what_is_written() -> None:
    record = Given(offset=5, timestamp=1, key=b"k", value=None, headers=((b"h", None),))
    assert written("binlog", record) == example("binlog")


def test_the_page_about_avro_shows_what_is_written() -> None:
    record = Given(offset=5, timestamp=1, key=b"k", value=None, headers=((b"h", b"v"),))
    text = written("avro", record)
    assert text.endswith(example("avro") + text[-16:])
