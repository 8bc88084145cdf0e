"""Pruning of other tools' archives: their own metadata follows, and a crash in between loses nothing else."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import obstore
import pyarrow as pa
import pytest

from maxbrod.batch.columns import conform
from maxbrod.cli.main import run
from maxbrod.layouts.foreign import ClusterFacts, ForeignTopic, Survey, WriteOptions
from maxbrod.layouts.kbs.format import EMPTY_BYTES
from maxbrod.layouts.registry import layout_of
from maxbrod.model import TopicPartition
from maxbrod.storage.local import LocalStorage
from maxbrod.storage.stores import open_storage
from support.clocks import set_clocks
from support.kill_sweeps import Killed
from support.storages import s3_options

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.s3 import S3Server

WHERE = TopicPartition(topic="orders", partition=0)
DAY_MS = 24 * 3600 * 1000


def records(first: int, *, age_days: float) -> pa.RecordBatch:
    at = round(time.time() * 1000 - age_days * DAY_MS)
    columns = {
        "offset": pa.array(range(first, first + 10), pa.int64()),
        "timestamp_ms": pa.array([at] * 10, pa.int64()),
        "timestamp_type": pa.array([0] * 10, pa.int8()),
        "key": pa.array([b"k"] * 10, pa.binary()),
        "value": pa.array([b"v" * 100] * 10, pa.binary()),
    }
    return conform(pa.record_batch(columns))


def tree(layout_name: str, path: Path, **configs: str) -> LocalStorage:
    """Segments of ten records, 40, 30, 20, 10 and 0 days old."""
    storage, layout = LocalStorage(path), layout_of(layout_name)
    options = WriteOptions(segment_records_max=10)
    survey = Survey(layout=layout_name, segments=())
    given = [records(number * 10, age_days=40 - number * 10) for number in range(5)]
    written = layout.write(storage, WHERE, given, options, survey=survey)
    facts = ClusterFacts(topics={"orders": ForeignTopic(name="orders", partition_count=1, configs=configs)})
    layout.publish(storage, survey, written, options, facts)
    return storage


def told(capsys: pytest.CaptureFixture[str], path: Path, *words: str, exits: int = 0) -> Any:
    capsys.readouterr()
    assert run([words[0], *words[1:], "-a", str(path), "--json"]) == exits
    return json.loads(capsys.readouterr().out)


LAYOUTS = pytest.mark.parametrize("name", ["kbak", "kbs", "parquet", "avro", "binlog"])


@LAYOUTS
def test_ages_count_up_to_the_newest_object_if_this_machines_clock_is_ahead(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(name, tmp_path)
    set_clocks(monkeypatch, own_ms=round(time.time() * 1000) + 400 * DAY_MS)
    planned = told(capsys, tmp_path, "prune", "--older-than", "15d")
    assert (planned["going"]["segments"], planned["idle_ms"] // DAY_MS) == (3, 400)
    assert told(capsys, tmp_path, "prune", "--older-than", "15d", "--trust-clock")["going"]["segments"] == 4
    set_clocks(monkeypatch, own_ms=round(time.time() * 1000) - 400 * DAY_MS)
    refused = told(capsys, tmp_path, "prune", "--older-than", "15d", "--apply", exits=5)
    assert "this machine's clock is 400 d behind the store's" in refused["message"]


@LAYOUTS
def test_old_segments_go_and_the_tree_stays_whole(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = tree(name, tmp_path)
    before = sorted(info.path for info in storage.list())
    planned = told(capsys, tmp_path, "prune", "--older-than", "15d")
    assert (planned["going"]["segments"], planned["kept"]["segments"], planned["applied"]) == (3, 2, False)
    assert sorted(info.path for info in storage.list()) == before
    done = told(capsys, tmp_path, "prune", "--older-than", "15d", "--apply")
    assert done["items"] == planned["items"]
    layout = layout_of(name)
    survey = layout.survey(storage)
    assert [each.base_offset for each in survey.segments] == [30, 40]
    assert not [each for each in layout.check(storage, survey, deep=True) if each.fatal]
    assert told(capsys, tmp_path, "check")["verdict"] == "whole"
    # A backup continues where it would have without the pruning.
    assert survey.positions == {WHERE: 50}
    written = layout.write(storage, WHERE, [records(50, age_days=0)], WriteOptions(), survey=survey)
    layout.publish(storage, survey, written, WriteOptions(), ClusterFacts())
    assert [each.base_offset for each in layout.survey(storage).segments] == [30, 40, 50]
    assert told(capsys, tmp_path, "check")["verdict"] == "whole"


def die() -> None:
    raise Killed


@LAYOUTS
def test_a_pruning_that_was_cut_short_harms_nothing_and_the_next_finishes_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = tree(name, tmp_path)
    with monkeypatch.context() as patched:
        # The layout's own metadata is written before; in the layout kbs, segments are replaced.
        replace = LocalStorage.replace
        patched.setattr(LocalStorage, "delete", lambda *_: die())
        patched.setattr(LocalStorage, "replace", lambda *a: die() if a[1].endswith(".kbs") else replace(*a))
        with pytest.raises(Killed):
            run(["prune", "--older-than", "15d", "--apply", "-a", str(tmp_path)])
    layout = layout_of(name)
    assert not [each for each in layout.check(storage, layout.survey(storage), deep=True) if each.fatal]
    told(capsys, tmp_path, "prune", "--older-than", "15d", "--apply")
    assert [each.base_offset for each in layout.survey(storage).segments] == [30, 40]
    left = [info for info in storage.list() if not info.path.endswith(("json", "db")) and info.size != EMPTY_BYTES]
    assert len([info for info in left if "0000000" in info.path and "_index" not in info.path]) == 2


def test_a_pruned_backup_of_the_layout_kbs_has_every_segment_that_its_manifest_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a reader of the documented format sees it, which knows nothing of our part of the manifest."""
    storage = tree("kbs", tmp_path)
    told(capsys, tmp_path, "prune", "--older-than", "15d", "--apply")
    manifest = json.loads(bytes(storage.get("maxbrod/manifest.json")))
    (entry,) = manifest["topics"][0]["partitions"]
    assert entry == {"partition": 0, "first_offset": 30, "last_offset": 49, "records": 20, "segments": 5}
    stored = [bytes(storage.get(f"maxbrod/topics/orders/0/segment-{each:08d}.kbs")) for each in range(5)]
    assert [int.from_bytes(each[16:24], "big") for each in stored] == [0, 0, 0, 10, 10]
    assert manifest["statistics"]["compressed_bytes"] == sum(map(len, stored))
    assert (manifest["statistics"]["segments"], manifest["statistics"]["records"]) == (5, 20)
    del manifest["maxbrod"]["emptied"]
    storage.replace("maxbrod/manifest.json", json.dumps({**manifest, "maxbrod": {}}).encode())
    survey = layout_of("kbs").survey(storage)
    assert [(each.base_offset, each.records) for each in survey.segments if each.records] == [(30, 10), (40, 10)]
    assert not [each for each in survey.faults if each.fatal]


def test_by_size_and_as_the_source_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree("kbak", tmp_path, **{"retention.ms": str(25 * DAY_MS)})
    assert told(capsys, tmp_path, "prune", "--as-source")["going"]["segments"] == 2
    sizes = told(capsys, tmp_path, "prune", "--topic-bytes", "0")
    assert (sizes["going"]["segments"], sizes["kept"]["segments"]) == (4, 1)


def test_held_segments_stay_and_what_is_behind_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree("avro", tmp_path)
    since, until = (round(time.time() * 1000 - age * DAY_MS) for age in (35, 25))
    told(
        capsys, tmp_path, "hold", "add", "--topic", "orders", "--since", str(since), "--until", str(until), "--why", "x"
    )
    report = told(capsys, tmp_path, "prune", "--older-than", "15d", "--apply")
    assert [(each["first_offset"], each["keep"]) for each in report["items"]][:2] == [(0, False), (10, True)]
    assert [each.base_offset for each in layout_of("avro").survey(LocalStorage(tmp_path)).segments] == [10, 20, 30, 40]


def test_what_a_layout_cannot_do_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree("avro", tmp_path / "avro")
    assert "records no runs" in told(capsys, tmp_path / "avro", "prune", "--keep-last", "1", exits=2)["message"]
    assert "cannot come back" in told(capsys, tmp_path / "avro", "prune", "--undo", exits=2)["message"]
    assert "nothing says what" in told(capsys, tmp_path / "avro", "prune", exits=2)["message"]


def test_objects_of_the_avro_layout_carry_the_time_of_their_last_message(s3: S3Server) -> None:
    """Where the store keeps metadata. In a folder, the header of the file says it."""
    storage = open_storage(f"{s3.url}/avro", s3_options(s3))
    written = layout_of("avro").write(
        storage, WHERE, [records(0, age_days=3)], WriteOptions(), survey=Survey(layout="avro", segments=())
    )
    found = obstore.get(storage._clients.once, written[0].path, options={"head": True})  # type: ignore[attr-defined]
    assert found.attributes["maxbrodlastmessagems"] == str(written[0].max_timestamp)
    assert layout_of("avro").survey(storage).segments[0].max_timestamp == written[0].max_timestamp
