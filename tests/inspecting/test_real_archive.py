"""What a real backup of a real cluster leaves is listed, shown, checked and cleaned as it is."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from kafka import KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata

from maxbrod.backup.run import Backup
from maxbrod.check.run import check_archive
from maxbrod.cli.main import run
from maxbrod.config import Config
from maxbrod.inspect.garbage import collect_garbage
from maxbrod.inspect.listing import list_topics
from maxbrod.inspect.topic import show_topic
from maxbrod.sandbox.topics import create_topic, delete_topic
from maxbrod.sandbox.traffic import numbered, produce, produce_transaction

if TYPE_CHECKING:
    import pytest

    from maxbrod.backup.report import BackupReport
    from maxbrod.sandbox.cluster import Cluster
    from support.archives import Place


def back_up(place: Place, cluster: Cluster, topic: str, spark: Any) -> BackupReport:
    settings = {"archive": place.url, "kafka": {"bootstrap": cluster.bootstrap}, "backup": {"topics": [topic]}}
    with Backup(Config.model_validate(settings), session=spark) as backup:
        return backup.run()


def commit_offset(cluster: Cluster, topic: str, offset: int) -> None:
    consumer = KafkaConsumer(group_id=f"group-{topic}", **cluster.running_client_properties())
    consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(offset, "", -1)})
    consumer.close()


def test_a_real_backup_is_listed_shown_checked_and_cleaned(
    local_place: Place, cluster: Cluster, topic: str, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic, partitions=2, config={"retention.ms": "86400000"})
    produce(cluster, topic, numbered(30))
    produce_transaction(cluster, topic, numbered(5), transactional_id=topic, commit=False)
    commit_offset(cluster, topic, 10)
    first = back_up(local_place, cluster, topic, spark)
    produce(cluster, topic, numbered(4))
    back_up(local_place, cluster, topic, spark)

    archive = local_place.open()
    (summary,) = list_topics(archive, [topic]).topics
    # 34 records, 5 aborted ones and the marker.
    assert (summary.partitions, summary.offsets, summary.records) == (2, 40, 40)
    (shown,) = show_topic(archive, topic).topics
    assert [(each.first_offset, each.end_offset, len(each.aborted)) for each in shown.partitions] == [
        (0, 40, 1),
        (0, 0, 0),
    ]
    assert shown.configs == {"retention.ms": "86400000"}
    assert [(each.group_id, each.lag) for each in shown.groups] == [(f"group-{topic}", 30)]
    (before,) = show_topic(archive, topic, as_of=first.run_id).topics
    assert before.partitions[0].end_offset == 36
    report = check_archive(archive)
    assert (report.problems, report.snapshots, report.snapshots_read) == ((), 2, 2)

    for found in list(archive.storage.list()):
        os.utime(local_place.folder / found.path, (0, 0))
    assert collect_garbage(archive, delete=True).objects == ()
    assert run(["ls", "--runs", "--json", *local_place.arguments]) == 0
    assert [each["exit_code"] for each in json.loads(capsys.readouterr().out)] == [0, 0]


def test_a_topic_created_again_is_shown_as_another(
    local_place: Place, cluster: Cluster, topic: str, spark: Any
) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(7))
    back_up(local_place, cluster, topic, spark)
    delete_topic(cluster, topic)
    create_topic(cluster, topic)
    back_up(local_place, cluster, topic, spark)
    newest, past = list_topics(local_place.open(), [topic]).topics
    assert (newest.newest, newest.records, past.newest, past.records) == (True, 0, False, 7)
    assert check_archive(local_place.open()).problems == ()
