"""A cluster behind TLS and SASL is backed up, and its password is nowhere: not in report, archive or error."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import cramjam
import pytest

from maxbrod.config import Config
from maxbrod.errors import MaxbrodError
from maxbrod.sandbox.spec import SASL_SSL
from maxbrod.sandbox.topics import create_topic
from support.archive_oracle import read_archive
from support.backups import back_up
from support.clusters import start_cluster
from support.ledger import Ledger

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

pytestmark = pytest.mark.full

PASSWORD = "correct-horse-battery"


def config_of(cluster: Cluster, archive: Path, topic: str, password: str) -> Config:
    kafka: dict[str, Any] = {
        "bootstrap": cluster.bootstrap_for(SASL_SSL),
        "security_protocol": SASL_SSL,
        "tls": {"ca_file": cluster.client_properties(SASL_SSL)["ssl_cafile"]},
        "sasl": {"mechanism": "SCRAM-SHA-512", "username": "admin", "password": password},
    }
    return Config.model_validate(
        {"archive": str(archive), "kafka": kafka, "backup": {"topics": [topic], "patience": "15s"}}
    )


def test_no_password_appears_in_report_archive_or_error(topic: str, tmp_path: Path) -> None:
    users = {"admin": PASSWORD, "alice": "alice-secret"}
    with start_cluster(tmp_path / "cluster", listeners=[SASL_SSL], users=users) as cluster:
        create_topic(cluster, topic, config={"retention.ms": "-1"})
        ledger = Ledger()
        ledger.write(cluster, topic, 100)
        archive = tmp_path / "archive"
        config = config_of(cluster, archive, topic, PASSWORD)
        report = back_up(config)
        assert (report.exit_code, report.records) == (0, 100), report.notices
        held = read_archive(str(archive))
        held.assert_equals(ledger)
        (snapshot,) = (archive / "snapshots").iterdir()
        told = [
            json.dumps(report.as_dict()),
            repr(report),
            repr(config),
            bytes(cramjam.zstd.decompress(snapshot.read_bytes())).decode(),
        ]
        told += [json.dumps(row, default=str) for row in held.runs]
        assert not [text for text in told if PASSWORD in text]
        # The snapshot knows its users, by name.
        assert "admin" in told[3]
        with pytest.raises(MaxbrodError) as caught:
            back_up(config_of(cluster, tmp_path / "other", topic, f"{PASSWORD}-wrong"))
        assert PASSWORD not in str(caught.value) + json.dumps(caught.value.as_dict()) + repr(caught.value.__cause__)
