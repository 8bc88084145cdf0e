"""The rights in docs/restore.md are enough for a restore, and each missing one is reported beforehand.

Alice has no right on the cluster, so she closes holes by empty transactions. Carol may write markers.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

import pytest

from maxbrod.kafka.groups import commit_offsets
from maxbrod.kafka.state.cluster_state import Acl, CommittedOffset
from maxbrod.sandbox.surgery import delete_records
from maxbrod.sandbox.topics import create_topic, offsets
from maxbrod.sandbox.traffic import numbered, produce, produce_transaction
from support.access_rules import allow, client_of, rule
from support.backups import back_up, config_of
from support.restores import Command, read_all, stand
from support.sparkless import without_spark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

# As the table of docs/restore.md has them.
APPEND: Final = ("WRITE", "READ", "CREATE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS")
EXACT: Final = (*APPEND, "DELETE")
NAMED: Final = {
    "WRITE": "Write",
    "READ": "Read",
    "CREATE": "Create",
    "ALTER_CONFIGS": "AlterConfigs",
    "DELETE": "Delete",
}


@pytest.fixture(scope="module")
def source(fenced: Cluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """An archive of a topic that begins late, has a hole behind a transaction, and a group that stands within."""
    topic, archive = f"topic-{uuid.uuid4().hex[:12]}", tmp_path_factory.mktemp("rights") / "archive"
    create_topic(fenced, topic, config={"retention.ms": "-1"})
    for _ in range(3):
        produce(fenced, topic, numbered(10))
    delete_records(fenced, topic, before_offset=10)
    produce_transaction(fenced, topic, numbered(5), transactional_id=topic)
    produce_transaction(fenced, topic, numbered(3), transactional_id=topic, commit=False)
    produce(fenced, topic, numbered(5))
    with client_of(fenced) as client:
        offset = CommittedOffset(topic=topic, topic_id=None, partition=0, offset=17, leader_epoch=-1, metadata="")
        assert all(each.done for each in commit_offsets(client, topic, [offset]).values())
    assert back_up(config_of(fenced, archive, topic)).complete
    return topic, archive


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with without_spark():
        yield


@pytest.fixture
def suffix() -> str:
    """A target of this test alone, so that no other test has allowed anything on it."""
    return f"-{uuid.uuid4().hex[:8]}"


def on_topic(user: str, name: str, operations: tuple[str, ...]) -> list[Acl]:
    return [rule(user, "TOPIC", name, operation) for operation in operations]


def told(plan: dict[str, Any]) -> list[tuple[str, bool, str]]:
    return [(each["kind"], each["fatal"], each["what"]) for each in plan["obstacles"]]


def committed(cluster: Cluster, topic: str) -> list[tuple[int, bytes]]:
    return read_all(cluster, topic, isolation_level="read_committed")


def assert_restored(cluster: Cluster, topic: str, target: str) -> None:
    assert read_all(cluster, target) == committed(cluster, topic)
    assert offsets(cluster, target) == offsets(cluster, topic)


def test_exact_offsets_with_markers_need_no_more_than_is_written(
    fenced: Cluster, source: tuple[str, Path], suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, archive = source
    cluster_rules = [rule("carol", "CLUSTER", "kafka-cluster", each) for each in ("DESCRIBE", "CLUSTER_ACTION")]
    allow(fenced, *on_topic("carol", topic + suffix, EXACT), *cluster_rules)
    carol = Command(fenced, archive, capsys, user="carol")
    words = ("restore", "--suffix", suffix, "--offsets", "exact")
    assert told(carol.json(*words, "--dry-run")) == []
    carol(*words)
    assert_restored(fenced, topic, topic + suffix)


def test_exact_offsets_without_markers_and_groups_need_no_more_than_is_written(
    fenced: Cluster, source: tuple[str, Path], suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, archive = source
    alice = Command(fenced, archive, capsys, user="alice")
    words = ("restore", "--suffix", suffix, "--offsets", "exact", "--groups", topic)
    allow(fenced, *on_topic("alice", topic + suffix, EXACT))
    # All at once, each by its name.
    plan = alice.json(*words, "--dry-run", exits=5)
    fatal = [what for kind, fatal, what in told(plan) if kind == "permission" and fatal]
    assert len(fatal) == 2
    assert any("Read the groups" in what for what in fatal)
    assert any("transactional id" in what for what in fatal)

    allow(
        fenced,
        rule("alice", "GROUP", topic, "READ"),
        rule("alice", "TRANSACTIONAL_ID", "maxbrod-", "WRITE", "PREFIXED"),
    )
    plan = alice.json(*words, "--dry-run")
    assert [(kind, fatal) for kind, fatal, _ in told(plan)] == [("permission", False)], "markers would be faster"
    report = alice.json(*words)
    assert report["complete"]
    assert_restored(fenced, topic, topic + suffix)
    assert stand(fenced, topic)[topic + suffix, 0] == 17
    allow(fenced, rule("alice", "GROUP", topic, "DELETE"))
    alice("groups", "rollback", "--restore", report["restore_id"])
    assert (topic + suffix, 0) not in stand(fenced, topic)


def test_append_needs_no_more_than_is_written(
    fenced: Cluster, source: tuple[str, Path], suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, archive = source
    allow(fenced, *on_topic("alice", topic + suffix, APPEND))
    alice = Command(fenced, archive, capsys, user="alice")
    words = ("restore", "--suffix", suffix, "--offsets", "append")
    assert told(alice.json(*words, "--dry-run")) == []
    alice(*words)
    found = [value for _, value in read_all(fenced, topic + suffix)]
    assert found == [value for _, value in committed(fenced, topic)]


@pytest.mark.parametrize("lacking", sorted(NAMED))
def test_a_right_that_is_missing_is_named_before_anything_is_done(
    fenced: Cluster, source: tuple[str, Path], suffix: str, capsys: pytest.CaptureFixture[str], lacking: str
) -> None:
    topic, archive = source
    allow(fenced, *on_topic("alice", topic + suffix, tuple(each for each in EXACT if each != lacking)))
    alice = Command(fenced, archive, capsys, user="alice")
    refused = alice.json("restore", "--suffix", suffix, "--offsets", "exact", exits=5)
    named = [each for each in refused["obstacles"] if each["what"] == f"this user may not {NAMED[lacking]}"]
    assert [(each["kind"], each["fatal"], each["where"]) for each in named] == [("permission", True, topic + suffix)]
    with fenced.admin() as admin:
        assert topic + suffix not in admin.list_topics()


def test_a_topic_that_is_hidden_is_never_taken_for_one_that_is_not_there(
    fenced: Cluster, source: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, archive = source
    refused = Command(fenced, archive, capsys, user="carol").json("restore", exits=5)
    missing = {each["what"] for each in refused["obstacles"] if each["fatal"]}
    assert missing >= {f"this user may not {right}" for right in ("Write", "Read", "Create", "AlterConfigs")}


def test_access_needs_rights_on_the_cluster_and_says_so(
    fenced: Cluster, source: tuple[str, Path], suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, archive = source
    allow(fenced, *on_topic("carol", topic + suffix, EXACT), rule("carol", "CLUSTER", "kafka-cluster", "DESCRIBE"))
    allow(fenced, rule("nobody", "TOPIC", topic, "READ"))
    assert back_up(config_of(fenced, archive, topic)).complete, "which keeps the rule in the archive"
    carol = Command(fenced, archive, capsys, user="carol")
    refused = carol.json("restore", "--suffix", suffix, "--with-acls", exits=5)
    assert "this user may not Alter the cluster" in {each["what"] for each in refused["obstacles"] if each["fatal"]}
