"""A drill proves what it says, and leaves nothing behind, however it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.catalog.rows import Gap, Segment, decode_rows
from maxbrod.cli.main import run
from maxbrod.compare.run import Comparison
from maxbrod.drill.run import DEAD_AFTER_MS, Drill, DrillOwner, own_drill
from maxbrod.errors import UnavailableError
from maxbrod.model import GapReason
from maxbrod.sandbox.surgery import compact, delete_records
from maxbrod.sandbox.topics import create_topic, delete_topic
from maxbrod.sandbox.traffic import numbered, produce, produce_transaction
from support.archives import damage
from support.backups import back_up, config_of
from support.drills import partitions_of, remembered, scratch_topics
from support.restores import Command
from support.sparkless import without_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.sandbox.cluster import Cluster


@pytest.fixture
def archive(cluster: Cluster, topic: str, tmp_path: Path) -> Path:
    """Two topics of three partitions, one of which has nothing in it; one is compacted."""
    for name, policy in ((topic, "delete"), (f"{topic}-keys", "compact")):
        create_topic(cluster, name, partitions=3, config={"cleanup.policy": policy})
        produce(cluster, name, numbered(30, keys=5))
        produce(cluster, name, numbered(10, keys=5), partition=1)
    compact(cluster, f"{topic}-keys")
    produce_transaction(cluster, topic, numbered(5), transactional_id=f"bad-{topic}", commit=False)
    assert back_up(config_of(cluster, tmp_path / "archive", topic, f"{topic}-keys")).complete
    return tmp_path / "archive"


@pytest.fixture
def command(
    cluster: Cluster, archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Command]:
    monkeypatch.chdir(tmp_path)
    with without_spark():
        yield Command(cluster, archive, capsys)
    assert scratch_topics(cluster) == [], "no test leaves one"


def drilled(command: Command, *words: str, exits: int = 0) -> dict[str, Any]:
    return command.json("drill", "--report-dir", "reports", *words, exits=exits)


def test_a_drill_proves_all_that_is_archived_and_leaves_nothing_behind(
    topic: str, archive: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    document = drilled(command)
    report = document["report"]
    assert (report["verdict"], report["seed"], report["partitions_known"]) == ("proven", None, 4)
    assert partitions_of(document) == [(name, each) for name in (topic, f"{topic}-keys") for each in (0, 1)]
    assert report["records"] == report["restore"]["records"] > 40
    assert {each["match"] for each in report["comparison"]["partitions"]} == {"exact"}
    assert all(each["equal"] for each in report["comparison"]["partitions"])
    assert report["restore"]["warnings"] == []
    assert remembered(archive) == []
    assert run(["status", "--archive", str(archive), "--json"]) == 0
    (status,) = json.loads(capsys.readouterr().out)["archives"]
    promises = {each["name"]: each for each in status["promises"]}
    assert {promises[name]["state"] for name in ("backup", "recovery point", "offsets", "objects", "drill")} == {"OK"}
    assert "4 of 4 partitions" in promises["drill"]["text"]
    assert promises["recovery time"]["state"] == "OK"
    assert promises["deep check"]["state"] == "WARN", "a drill is no check"
    told = command("drill", "--report-dir", "reports")
    assert "proven: every sampled record" in told
    assert "unsigned report" in told


def test_a_sample_is_drawn_by_its_seed(command: Command) -> None:
    first = drilled(command, "--sample", "50%")
    seed = first["report"]["seed"]
    assert len(partitions_of(first)) == 2
    assert partitions_of(drilled(command, "--sample", "50%", "--seed", str(seed))) == partitions_of(first)
    one = drilled(command, "--sample", "1")
    assert len(partitions_of(one)) == 1
    assert f"--seed {seed}" in command("drill", "--sample", "50%", "--seed", str(seed))


def test_reports_are_signed_and_readable(
    tmp_path: Path, topic: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, other = tmp_path / "key", tmp_path / "other"
    key.write_text("0123456789abcdef\n")
    other.write_text("fedcba9876543210\n")
    key.chmod(0o600)
    other.chmod(0o600)
    document = drilled(command, "--key-file", str(key))
    data, page = document["files"]
    assert {(tmp_path / each).stat().st_mode & 0o777 for each in (data, page)} == {0o600}
    text = (tmp_path / page).read_text()
    assert "Proven" in text
    assert f"{topic}-0" in text
    assert "http" not in text.replace("http-equiv", ""), "nothing is loaded from elsewhere"
    assert verified(command, data, "--key-file", str(key)) == 0
    assert verified(command, data, "--key-file", str(other)) == 4
    assert verified(command, data) == 2, "a signed report needs its key"
    with monkeypatch.context() as environment:
        environment.setenv("MAXBROD_DRILL_KEY", "0123456789abcdef")
        assert verified(command, data) == 0
    stored = json.loads((tmp_path / data).read_text())
    assert stored["report"] == document["report"]
    stored["report"]["records"] += 1
    (tmp_path / "forged.json").write_text(json.dumps(stored))
    assert verified(command, "forged.json", "--key-file", str(key)) == 4


def verified(command: Command, path: str, *words: str) -> int:
    from maxbrod.cli.main import run  # noqa: PLC0415 - `Command` adds an archive, which this verb has not

    code = run(["drill", "verify", path, *words])
    command._capsys.readouterr()
    return code


def test_what_is_not_equal_is_never_proven(cluster: Cluster, topic: str, archive: Path, command: Command) -> None:
    compare = Comparison.run

    def losing(self: Comparison) -> Any:
        (name,) = (each for each in scratch_topics(cluster) if each.endswith(topic))
        delete_records(cluster, name, before_offset=30)
        produce(cluster, name, numbered(1), partition=1)
        return compare(self)

    with patch.object(Comparison, "run", losing):
        report = drilled(command, "--topic", topic, exits=3)["report"]
        assert "differs" in command("drill", "--topic", topic, exits=3)
    assert report["verdict"] == "differs"
    assert [each["equal"] for each in report["comparison"]["partitions"]] == [False, True]
    assert report["comparison"]["differences"][0]["field"] == "record"
    assert remembered(archive) == []


def test_a_drill_that_fails_cleans_up_and_says_so(archive: Path, command: Command) -> None:
    for step, where in ((Drill, "_restore"), (Comparison, "run")):
        with patch.object(step, where, side_effect=UnavailableError("the lights went out")):
            document = drilled(command, exits=1)
        assert document["report"]["verdict"] == "failed"
        assert document["report"]["error"]["message"] == "the lights went out"
        assert remembered(archive) == []
    assert drilled(command, "--topic", "nonsense", exits=2)["report"]["verdict"] == "failed"


def test_a_damaged_archive_is_never_proven(topic: str, archive: Path, command: Command) -> None:
    for path in (archive / "packs").glob("*"):
        path.chmod(0o644)
        damage(path)
    document = drilled(command, exits=4)
    report = document["report"]
    assert report["verdict"] == "failed"
    assert remembered(archive) == []
    # Document, page and words name what failed: partition, offset, object and error.
    (first, *_) = report["failures"]
    assert (first["topic"], first["partition"], first["error"]) == (topic, 0, "CorruptDataError")
    assert first["object_name"]
    assert report["error"] in report["failures"]
    page = Path(document["files"][1]).read_text()
    for word in ("Not proven", "What failed", f'<td class="">{topic}-0</td>', first["message"], "not compared"):
        assert word in page
    assert "nothing" not in page
    assert f"{topic}-0: {first['message']}" in command("drill", "--report-dir", "reports", exits=4)


def test_the_page_of_a_drill_that_is_refused_names_the_offsets(topic: str, archive: Path, command: Command) -> None:
    opened = open_archive(str(archive))
    rows = decode_rows(opened.catalog.rows(topic=topic, partition=1))
    lost = [replace_row(row) for row in rows if isinstance(row, Segment)]
    opened.catalog.commit(lost, replaced=rows)
    document = drilled(command, exits=3)
    (failure,) = document["report"]["failures"]
    assert (failure["where"], failure["offset"], failure["error"]) == (f"{topic}-1", 0, "unexplained")
    assert f"{topic}-1" in Path(document["files"][1]).read_text()
    # What was accepted is said beside the verdict.
    accepted = drilled(command, "--accept-gaps")
    assert (accepted["report"]["verdict"], accepted["report"]["lacking"]) == ("proven", 1)
    assert "but for 1 range of offsets that the archive lacks" in Path(accepted["files"][1]).read_text()


def replace_row(row: Segment) -> Gap:
    return Gap(
        topic=row.topic,
        topic_id=row.topic_id,
        partition=row.partition,
        base_offset=row.base_offset,
        end_offset=row.end_offset,
        reason=GapReason.UNEXPLAINED,
        run_id=row.run_id,
        written_at=row.written_at,
    )


class Killed(BaseException):
    pass


@pytest.fixture
def killed(cluster: Cluster, archive: Path, command: Command) -> list[str]:
    """The topics of a drill that was killed in its comparison, when nothing was cleaned up yet."""
    with (
        patch.object(Comparison, "run", side_effect=Killed),
        patch.object(Drill, "_clean_up", lambda *_: None),
        pytest.raises(Killed),
    ):
        drilled(command)
    assert len(remembered(archive)) == 5
    return scratch_topics(cluster)


def owners(archive: Path) -> list[tuple[Path, DrillOwner]]:
    return [(path, DrillOwner(**json.loads(path.read_text()))) for path in (archive / "drills").iterdir()]


def become(archive: Path, **changes: Any) -> None:
    ((path, owner),) = owners(archive)
    path.chmod(0o644)
    path.write_text(json.dumps({**{name: getattr(owner, name) for name in owner.__slots__}, **changes}))


def test_the_next_drill_removes_what_a_killed_one_has_left(
    cluster: Cluster, archive: Path, command: Command, killed: list[str]
) -> None:
    assert len(killed) == 2
    become(archive, born="another process had this number")
    report = drilled(command)["report"]
    assert report["leftovers"] == killed
    assert report["verdict"] == "proven"
    assert remembered(archive) == []


def test_a_drill_under_way_is_never_disturbed_by_another(
    cluster: Cluster, archive: Path, command: Command, killed: list[str]
) -> None:
    """Its process lives: it is this one. Nor is one on another machine, unless it began long ago."""
    assert drilled(command)["report"]["leftovers"] == []
    become(archive, machine="elsewhere", born="")
    assert drilled(command)["report"]["leftovers"] == []
    assert scratch_topics(cluster) == killed
    become(archive, started_at_ms=own_drill("", "", sandbox=False).started_at_ms - DEAD_AFTER_MS - 1000)
    assert drilled(command)["report"]["leftovers"] == killed


def test_a_topic_that_only_looks_like_a_drills_is_never_deleted(
    cluster: Cluster, topic: str, archive: Path, command: Command, killed: list[str]
) -> None:
    become(archive, born="")
    stranger = f"maxbrod-drill-0123456789abcdef-{topic}"
    create_topic(cluster, stranger)
    try:
        (archive / "drills" / "0123456789abcdef.json").write_text("not a drill's")
        assert drilled(command)["report"]["leftovers"] == killed
        assert scratch_topics(cluster) == [stranger]
    finally:
        delete_topic(cluster, stranger)


def test_leftovers_in_another_cluster_are_remembered_until_that_is_drilled_in(
    archive: Path, command: Command, killed: list[str]
) -> None:
    ((_, owner),) = owners(archive)
    become(archive, born="", cluster_id="another")
    assert drilled(command)["report"]["leftovers"] == []
    become(archive, cluster_id=owner.cluster_id)
    assert drilled(command)["report"]["leftovers"] == killed
