"""Erasure in a bucket that locks objects: the new object counts, the old one is kept until its date."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.config import Config
from maxbrod.erase.verb import erase_archive
from maxbrod.errors import EXIT_INCOMPLETE
from maxbrod.model import now_ms
from maxbrod.work.work import Work
from support.keyed_archives import Keyed, batch, without_spark
from support.native_archives import TOPIC, Making

if TYPE_CHECKING:
    import pytest

    from support.immutable_s3 import LockingS3Server

DAY_MS = 24 * 3600 * 1000


def test_a_locked_object_is_kept_until_its_date_and_the_certificate_says_so(
    locking_s3: LockingS3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_spark(monkeypatch)
    url = f"{locking_s3.url}/erased"
    storage = locking_s3.config(lock="30d", lock_mode="compliance")
    Keyed(Making(url, storage)).backup({0: [batch(0, (b"anne", b"1"), (b"ben", b"1"))]})
    config = Config.model_validate({"archive": url, "erase": {"topics": [TOPIC], "keys": ["anne"]}})
    with Work(config.model_copy(update={"storage": storage})) as work:
        report = erase_archive(work)
    assert (report.exit_code, report.rewritten, report.deleted, report.found_again) == (EXIT_INCOMPLETE, 1, 0, 0)
    (kept,) = report.kept
    assert kept.path.startswith("packs/")
    assert abs((kept.until_ms or 0) - now_ms() - 30 * DAY_MS) < 600_000
