"""Ingress from a tree into a real cluster: every record once, in order, and what happens where segments are missing."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from maxbrod.batch.columns import conform
from maxbrod.cli.main import run
from maxbrod.errors import EXIT_DONE, EXIT_FAILED, EXIT_INCOMPLETE, RefusedError, UsageError
from maxbrod.layouts.parquet.survey import LAYOUT
from maxbrod.replicate.seed.run import TreeIngress
from maxbrod.sandbox.topics import create_topic, delete_topic
from maxbrod.storage.stores import open_storage
from support.parquet_trees import rows
from support.samples import samples_of
from support.seed_trees import KEPT, REGION, Link, until

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster


def test_every_record_arrives_once_and_in_order(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    link = Link(cluster, topic, tmp_path, batch_size=30).created(partitions=2)
    link.add(0, 100)
    link.add(100, 50)
    link.add(0, 10, partition=1)
    report = link.run()
    assert (report.exit_code, report.records) == (EXIT_DONE, 160)
    assert [each.state for each in report.partitions] == ["in step", "in step"]
    assert link.numbers() == list(range(150))
    assert link.numbers(1) == list(range(10))
    link.add(150, 7)
    assert link.run().records == 7
    assert link.numbers() == list(range(157))
    offsets = [each.offset for each in link.checkpoints() if each.partition == 0]
    assert offsets == [29, 59, 89, 99, 129, 149, 156]


def test_null_and_empty_headers_and_times_survive(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """The original makes empty bytes of null, and an undefined time of none."""
    headers = [[{"key": b"h", "value": None}, {"key": b"h", "value": b""}], [], [{"key": b"", "value": b"v"}]]
    given = conform(
        pa.RecordBatch.from_pydict(
            {
                "offset": pa.array([0, 1, 2], pa.int64()),
                "timestamp_ms": pa.array([-1, 0, 1_600_000_000_123], pa.int64()),
                "timestamp_type": pa.array([-1, 1, 0], pa.int8()),
                "key": pa.array([None, b"", b"k"], pa.binary()),
                "value": pa.array([b"", None, b"v"], pa.binary()),
                "headers": pa.array(headers, pa.list_(pa.struct({"key": pa.binary(), "value": pa.binary()}))),
            }
        )
    )
    link = Link(cluster, topic, tmp_path).created()
    link.add(0, 3, batch=given)
    link.run()
    assert link.arrived().to_pylist() == pa.Table.from_batches([given]).select(list(KEPT)).to_pylist()


def test_segments_of_the_original_tool_arrive_record_by_record(cluster: Cluster, tmp_path: Path) -> None:
    shutil.copytree(samples_of("crowdstrike") / "s3" / "bucket", tmp_path / "tree")
    link = Link(cluster, "all-cases", tmp_path / "tree", checkpoint_topic="samples.checkpoints").created()
    assert link.run().exit_code == EXIT_DONE
    storage = open_storage(f"{tmp_path}/tree/data/{REGION}")
    segments = [each for each in LAYOUT.survey(storage).segments if each.where.topic == "all-cases"]
    expected = [
        row
        for each in segments
        for batch in LAYOUT.read(storage, each, columns=list(KEPT))
        for row in batch.to_pylist()
    ]
    assert len(expected) == 19
    assert link.arrived().to_pylist() == expected


def test_at_least_once_needs_no_transactions(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    link = Link(cluster, topic, tmp_path, delivery="at-least-once", batch_size=40).created()
    link.add(0, 100)
    assert link.run().exit_code == EXIT_DONE
    assert link.numbers() == list(range(100))
    assert [each.offset for each in link.checkpoints()] == [39, 79, 99]


def test_the_command_prints_a_report_and_its_exit_code(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = Link(cluster, topic, tmp_path).created()
    link.add(0, 10)
    words = ["replicate", "ingress-tree", "-a", link.tree, "--source", f"{REGION}/{topic}", "--once"]
    words += ["--bootstrap", cluster.bootstrap, "--checkpoint-topic", f"{topic}.checkpoints", "--group", topic]
    words += ["--first-segment-delay", "0", "--worker-init-delay", "0"]
    assert run([*words, "--json"]) == EXIT_DONE
    assert json.loads(capsys.readouterr().out)["records"] == 10
    assert run(words) == EXIT_DONE
    assert "0 records were produced, exactly-once" in capsys.readouterr().out
    assert link.numbers() == list(range(10))
    # A name that is wrong must not look like work that is done.
    assert run([*words, "--source", f"{REGION}/nowhere", "--json"]) == EXIT_INCOMPLETE
    assert json.loads(capsys.readouterr().out)["unmatched"] == [f"{REGION}/nowhere"]
    assert run([*words, "--source", f"{REGION}/nowhere"]) == EXIT_INCOMPLETE
    assert f"the tree has no segment of {REGION}/nowhere yet" in capsys.readouterr().err


# Missing segments


def test_a_lost_segment_is_given_up_and_reported(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    link = Link(cluster, topic, tmp_path, lost_segment_timeout=3600.0).created()
    link.add(0, 10)
    gone = link.add(10, 10)
    link.add(20, 10)
    (tmp_path / gone.path).unlink()
    waiting = link.run()
    assert (waiting.exit_code, waiting.partitions[0].state) == (EXIT_INCOMPLETE, "late segment")
    assert link.numbers() == list(range(10))
    hasty = Link(cluster, topic, tmp_path, lost_segment_timeout=0.7, late_segment_retries=3)
    with TreeIngress(hasty.config) as ingress:
        while not ingress.statuses() or ingress.statuses()[0].checkpoint != 29:
            ingress.tick()
            ingress.rest()
        assert ingress.statuses()[0].lost == ((10, 19),)
        assert ingress.report().exit_code == EXIT_INCOMPLETE
    assert link.numbers() == [*range(10), *range(20, 30)]


def test_offsets_that_never_had_a_record_cost_no_wait(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """The egress read what is between its segments: markers, aborted or compacted records."""
    link = Link(cluster, topic, tmp_path).created()
    link.add(0, 10)
    link.add(17, 10)
    report = link.run()
    assert (report.exit_code, report.partitions[0].lost) == (EXIT_DONE, ())
    assert link.numbers() == [*range(10), *range(17, 27)]


def test_a_half_copied_segment_waits_for_the_rest_of_its_bytes(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    link = Link(cluster, topic, tmp_path).created()
    link.add(0, 10)
    path = tmp_path / link.add(10, 10).path
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    report = link.run()
    assert (report.exit_code, report.partitions[0].state) == (EXIT_INCOMPLETE, "late segment")
    assert link.numbers() == list(range(10))
    path.write_bytes(whole)
    assert link.run().exit_code == EXIT_DONE
    assert link.numbers() == list(range(20))


def test_a_segment_that_was_merged_away_is_read_from_the_merged_one(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Link(cluster, topic, tmp_path / "tree").created()
    merged = Link(cluster, topic, tmp_path / "other").add(0, 40).path
    whole = (tmp_path / "other" / merged).read_bytes()
    small = [tmp_path / "tree" / link.add(start, 10).path for start in (0, 10, 20, 30)]
    level1 = (tmp_path / "tree" / merged).parents[1] / "1" / merged.rsplit("/")[-1]
    ingress = TreeIngress(link.config)
    listing = ingress._tree.listing

    def compacted_meanwhile(region: str, name: str) -> object:
        """The compaction ends after the first listing and before anything is read."""
        found = listing(region, name)
        for path in small:
            path.unlink(missing_ok=True)
        level1.parent.mkdir(exist_ok=True)
        _as_level_1(level1, whole)
        return found

    monkeypatch.setattr(ingress._tree, "listing", compacted_meanwhile)
    with ingress:
        assert ingress.run().exit_code == EXIT_DONE
    assert link.numbers() == list(range(40))


def _as_level_1(path: Path, whole: bytes) -> None:
    """The same rows with the footer of level 1."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    table = pq.read_table(pa.BufferReader(whole))
    footer = {**pq.read_metadata(pa.BufferReader(whole)).metadata, b"level": b"1"}
    with pq.ParquetWriter(path, table.schema, data_page_version="1.0", store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({key.decode(): value.decode() for key, value in footer.items()})


# Refusals


def test_a_source_partition_without_a_destination_partition_is_faulted(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """The original starts no worker for it and says nothing."""
    link = Link(cluster, topic, tmp_path).created(partitions=1)
    link.add(0, 5)
    link.add(0, 5, partition=1)
    report = link.run()
    assert report.exit_code == EXIT_FAILED
    assert report.partitions[0].state == "in step"
    assert "has 1 partitions" in str(report.partitions[1].fault)
    assert link.numbers() == list(range(5))


def test_nothing_is_in_step_with_a_destination_that_does_not_exist(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """The checkpoints say that everything was produced. The topic was deleted since, and then created again."""
    link = Link(cluster, topic, tmp_path, once=False).created()
    link.add(0, 5)
    with TreeIngress(link.config) as ingress:

        def state() -> tuple[str, str]:
            return next(((each.state, each.fault or "") for each in ingress.statuses()), ("", ""))

        until(ingress, lambda: state()[0] == "in step")
        delete_topic(cluster, link.destination)
        until(ingress, lambda: state()[0] == "faulted")
        assert "does not exist" in state()[1]
        assert ingress.report().exit_code == EXIT_FAILED
        link.created()
        until(ingress, lambda: "created again" in state()[1])
    delete_topic(cluster, link.destination)
    with TreeIngress(link.config) as ingress:
        until(ingress, lambda: state()[0] == "faulted")
        assert ingress.report().exit_code == EXIT_FAILED
        link.created()
        until(ingress, lambda: state()[0] == "in step")


def test_a_checkpoint_topic_that_deletes_records_is_refused(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    link = Link(cluster, topic, tmp_path).created()
    create_topic(cluster, f"{topic}.checkpoints")
    with pytest.raises(RefusedError, match="compact is needed"):
        link.run()


@pytest.mark.parametrize(
    "options",
    [
        {"sources": ()},
        {"sources": ("topic",)},
        {"sources": ("r/t", "r/t=other")},
        {"sources": ("r/t",), "local_region": "r"},
        {"sources": ("r/t",), "destination": "{nonsense}"},
    ],
)
def test_wrong_sources_are_refused(cluster: Cluster, topic: str, tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Link(cluster, topic, tmp_path, **options).run()


def test_several_sources_share_a_destination_and_have_checkpoints_of_their_own(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    link = Link(
        cluster, topic, tmp_path, sources=(f"{REGION}/{topic}", f"{REGION}/{topic}.b={topic}.ingress")
    ).created()
    link.add(0, 10)
    other = Link(cluster, f"{topic}.b", tmp_path)
    other.add(0, 5, batch=rows(5, start=0))
    assert link.run().records == 15
    assert sorted(link.numbers()) == sorted([*range(10), *range(5)])
    assert {(each.topic, each.offset) for each in link.checkpoints()} == {(topic, 9), (f"{topic}.b", 4)}
