"""One partition's trouble is its own: those that share its task are archived all the same."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.kafka.fetch import ranges
from maxbrod.kafka.fetch.request import FetchAnswer, read_answer
from maxbrod.sandbox.topics import create_topic, topic_id
from support.archive_oracle import read_archive
from support.backups import back_up, config_of
from support.ledger import Ledger

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster


@pytest.mark.parametrize(("code", "message"), [(29, "TOPIC_AUTHORIZATION_FAILED"), (-1, "")])
def test_a_topic_that_cannot_be_read_never_keeps_its_neighbours_out_of_the_archive(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, message: str
) -> None:
    denied = f"{topic}-denied"
    ledger = Ledger()
    for name in (topic, denied):
        create_topic(cluster, name)
    ledger.write(cluster, topic, 40)
    Ledger().write(cluster, denied, 40)
    its_id = topic_id(cluster, denied)

    def deny(frame: Any, names: Any) -> FetchAnswer:
        answer = read_answer(frame, names)
        partitions = {
            key: replace(found, error_code=code, records=found.records[:0]) if key[0] == its_id else found
            for key, found in answer.partitions.items()
        }
        return replace(answer, partitions=partitions)

    monkeypatch.setattr(ranges, "read_answer", deny)
    report = back_up(config_of(cluster, tmp_path / "archive", f"{topic}*"))
    assert (report.exit_code, report.records) == (3, 40)
    (notice,) = (each for each in report.notices if each.exit_code)
    assert (notice.kind, notice.topic, notice.partition) == ("failed", denied, 0)
    assert message in notice.message
    assert notice.hint
    read_archive(str(tmp_path / "archive")).assert_equals(ledger)
