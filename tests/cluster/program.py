"""The driver of a real cluster: `python -m cluster.program MASTER BOOTSTRAP TOPIC FOLDER S3`. Prints one document."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import maxbrod
from backup.spark_program import LOOPBACK, fateful_job
from maxbrod.archive.foreign_target import TargetRequest
from maxbrod.archive.opening import open_archive
from maxbrod.backup import run as engine
from maxbrod.check.deep import deep_check
from maxbrod.config import KafkaConfig, S3Config, SparkConfig, StorageConfig
from maxbrod.convert.run import Convert, ConvertRequest
from maxbrod.engine.preflight import check_workers
from maxbrod.engine.reach import Needs, Place
from maxbrod.engine.session import open_configured, open_session
from maxbrod.errors import MaxbrodError

CONF = {**LOOPBACK, "spark.executor.memory": "512m", "spark.executor.instances": "2", "spark.ui.enabled": "false"}


def work(master: str, bootstrap: str, topic: str, folder: Path, s3: dict[str, str]) -> dict[str, Any]:
    said: dict[str, Any] = {}
    archive, marks = str(folder / "archive"), folder / "marks"
    marks.mkdir()
    with open_session(master=master, conf=CONF) as session:
        said["reach"] = refusals(session, s3)
        with patch.object(engine, "run_backup_job", fateful_job("machine", marks)):
            report = maxbrod.backup(bootstrap=bootstrap, archive=archive, topics=[topic], session=session)
        said["backup"] = [report.exit_code, report.records]
        said["marks"] = sorted(each.name for each in marks.iterdir())
        restored = maxbrod.restore(bootstrap=bootstrap, archive=archive, suffix="-back", session=session)
        said["restore"] = restored.exit_code
        compared = maxbrod.compare(bootstrap=bootstrap, archive=archive, suffix="-back", session=session)
        said["compare"] = [compared.exit_code, compared.source_records]
        said["check"] = deep_check(open_archive(archive), SparkConfig(), session=session, restart=True).exit_code
        request = ConvertRequest(
            source_url=archive,
            source=StorageConfig(),
            target_url=str(folder / "converted"),
            target=StorageConfig(),
            to=TargetRequest(layout="parquet", accept_loss=True),
        )
        with Convert(request, SparkConfig(), session=session) as convert:
            said["convert"] = convert.run().exit_code
        counted = maxbrod.query(archive, "select count(*) as n from records", session=session)
        said["query"] = counted.to_pylist()
        maxbrod.register(session)
        said["table"] = session.read.format("maxbrod").load(archive).where("offset >= 10").count()
    return said


def refusals(session: Any, s3: dict[str, str]) -> list[list[str]]:
    """What the preflight says about a broker that does not answer, and about keys that only the driver has."""
    os.environ.update(AWS_ACCESS_KEY_ID=s3["access_key_id"], AWS_SECRET_ACCESS_KEY=s3["secret_access_key"])
    storage = StorageConfig(s3=S3Config(endpoint=s3["endpoint"], region="us-east-1"))
    dead = KafkaConfig(bootstrap="127.0.0.1:1")
    refused = [
        refusal(session, Needs(clusters=(dead,), patience_s=1)),
        refusal(session, Needs(places=(Place(url=f"s3://{s3['bucket']}/kafka", storage=storage),))),
    ]
    keys = {"access_key_id": s3["access_key_id"], "secret_access_key": s3["secret_access_key"]}
    given = StorageConfig(s3=S3Config.model_validate({"endpoint": s3["endpoint"], "region": "us-east-1", **keys}))
    refused.append(refusal(session, Needs(places=(Place(url=f"s3://{s3['bucket']}/kafka", storage=given),))))
    return refused


def refusal(session: Any, needs: Needs) -> list[str]:
    try:
        check_workers(session, needs)
    except MaxbrodError as error:
        return [type(error).__name__, str(error), error.hint or ""]
    return []


def bare(master: str, python: str) -> list[str]:
    """A session whose workers have Python and nothing else."""
    try:
        with open_configured(SparkConfig(master=master, conf={**CONF, "spark.pyspark.python": python}), needs=Needs()):
            return []
    except MaxbrodError as error:
        return [type(error).__name__, str(error), error.hint or ""]


if __name__ == "__main__":
    master, bootstrap, topic, place, server, python = sys.argv[1:]
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    said = {"bare": bare(master, python), **work(master, bootstrap, topic, Path(place), json.loads(server))}
    sys.stdout.write(json.dumps(said))
