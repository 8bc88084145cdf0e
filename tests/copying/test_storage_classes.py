"""Objects go into a storage class by their age; those in an archive class are named, or brought back and copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.copy import steps
from maxbrod.errors import EXIT_INCOMPLETE
from support.aws import Aws, aws_server
from support.copies import copy, three_topics
from support.native_archives import look

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def aws() -> Iterator[Aws]:
    with aws_server() as server:
        server.bucket("cold")
        server.bucket("young")  # the buckets of all servers are in one process
        yield server


def test_old_objects_are_written_in_their_class_and_brought_back_when_they_are_read(
    tmp_path: Path, aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = aws.storage_config
    three_topics(tmp_path / "a")
    copy(tmp_path / "a", "s3://cold/copy", storage=options, storage_class_after="1d=STANDARD_IA,30d=GLACIER")
    listed = aws.client("s3").list_objects_v2(Bucket="cold")["Contents"]
    classes = {(found["Key"].split("/")[1], found["StorageClass"]) for found in listed}
    # The catalog and all that is needed to plan a restore stay at hand.
    assert {folder for folder, name in classes if name == "GLACIER"} == {"segments", "packs"}
    assert {folder for folder, name in classes if name == "STANDARD"} >= {"catalog", "snapshots", "ledger", "copies"}

    report = copy("s3://cold/copy", tmp_path / "b", storage=options)
    assert (report.exit_code, report.version) == (EXIT_INCOMPLETE, None)
    (notice,) = report.notices
    assert notice.kind == "frozen"
    assert "8 objects" in notice.message
    assert "--thaw" in str(notice.hint)

    monkeypatch.setattr(steps, "THAW_POLL_S", 0.1)
    assert copy("s3://cold/copy", tmp_path / "b", storage=options, thaw=True).exit_code == 0
    assert look(tmp_path / "b") == look(tmp_path / "a")


def test_young_objects_stay_in_the_class_of_the_configuration(tmp_path: Path, aws: Aws) -> None:
    three_topics(tmp_path / "a")
    copy(tmp_path / "a", "s3://young/copy", storage=aws.storage_config, storage_class_after={"100000d": "GLACIER"})
    listed = aws.client("s3").list_objects_v2(Bucket="young")["Contents"]
    assert {found["StorageClass"] for found in listed} == {"STANDARD"}
