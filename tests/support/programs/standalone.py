"""The driver of a real cluster: `python -m support.programs.standalone MASTER BOOTSTRAP TOPIC FOLDER S3 PYTHON`, or
`connect PORT BOOTSTRAP TOPIC FOLDER` for a server of Spark Connect. Prints one document.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import maxbrod
from maxbrod.archive.archive import open_archive
from maxbrod.check.deep import deep_check
from maxbrod.cli.main import run
from maxbrod.config import Config, KafkaConfig, S3Config, SparkConfig, StorageConfig
from maxbrod.convert.options import ConvertOptions
from maxbrod.convert.verb import Conversion
from maxbrod.drill.plan import DrillRequest
from maxbrod.drill.run import Drill
from maxbrod.errors import MaxbrodError, UnavailableError
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.repair.run import repair_archive
from maxbrod.replicate.egress import beat
from maxbrod.replicate.ingress.run import Ingress
from maxbrod.replicate.verify import verify
from maxbrod.restore.items import restore_items
from maxbrod.restore.plan.request import RestoreRequest
from maxbrod.work.jobs import SparkExecutor
from maxbrod.work.preflight import check_workers
from maxbrod.work.reach import Needs, Place
from maxbrod.work.session import open_configured, open_session
from maxbrod.work.work import Work
from support.keyed_archives import Keyed, batch
from support.native_archives import Making
from support.programs.fateful_backup import LOOPBACK, fateful_run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maxbrod.restore.items import Restored


def upkeep(session: Any, bootstrap: str, topic: str, archive: str, folder: Path) -> dict[str, Any]:
    config = Config.model_validate(
        {
            "archive": archive,
            "kafka": {"bootstrap": bootstrap},
            "backup": {"topics": [topic]},
            "replicate": {"link": f"link-{topic}", "topics": [topic], "rename": [f"{topic}={topic}-mirror"]},
        }
    )
    return {
        **compactions(session, folder),
        "drill": str(Drill(Work(config, session=session), DrillRequest(selection=RestoreRequest())).run().verdict),
        "repair": repaired(session, archive, folder),
        "replicate": replicated(session, config),
    }


def compactions(session: Any, folder: Path) -> dict[str, Any]:
    Making(str(folder / "small")).many(3, partitions=2)
    merged = maxbrod.compact(archive=folder / "small", session=session, min_segment_count=2, min_segment_size=1)
    keyed = Keyed(Making(str(folder / "keyed")))
    for number in range(2):
        keyed.backup({0: [batch(2 * number, (b"a", b"1"), (b"b", b"2"))]}, commit=True)
    newest = maxbrod.compact(archive=folder / "keyed", by_key=True, session=session)
    return {
        "compact": [merged.exit_code, merged.total("segments"), merged.total("new_segments")],
        "by key": [newest.exit_code, newest.total("records"), newest.total("removed")],
    }


def repaired(session: Any, archive: str, folder: Path) -> list[Any]:
    """A copy that has lost its catalog."""
    copy = folder / "without-catalog"
    shutil.copytree(archive, copy)
    shutil.rmtree(copy / "catalog")
    config = Config.model_validate({"archive": str(copy), "repair": {"apply": True}})
    with Work(config, session=session) as work:
        report = repair_archive(work)
    return [report.exit_code, report.applied, report.topics]


def replicated(session: Any, config: Config) -> list[Any]:
    assert config.kafka is not None
    with KafkaClient(config.kafka) as client:
        beat(config, client)
    # So little would be appended without Spark.
    with Ingress(config, session=session) as ingress:
        report = ingress.run()
    compared = verify(config, session=session).report
    assert compared is not None
    return [report.states, report.appended, [each.equal for each in compared.partitions]]


SUFFIX = "-back"

CONF = {
    **LOOPBACK,
    "spark.executor.memory": "512m",
    "spark.executor.instances": "2",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # for processes of seconds
    "spark.ui.enabled": "false",
}


def work(master: str, bootstrap: str, topic: str, folder: Path, s3: dict[str, str]) -> dict[str, Any]:
    said: dict[str, Any] = {}
    archive, marks = str(folder / "archive"), folder / "marks"
    marks.mkdir()
    with open_session(master=master, conf=CONF) as session:
        said["reach"] = refusals(session, s3)
        with patch.object(SparkExecutor, "run", fateful_run("machine", marks)):
            report = maxbrod.backup(bootstrap=bootstrap, archive=archive, topics=[topic], session=session)
        said["backup"] = [report.exit_code, report.records]
        said["marks"] = sorted(each.name for each in marks.iterdir())
        with patch.object(SparkExecutor, "run", fateful_restore(marks)):
            said |= verbs(session, bootstrap, archive, folder)
        said |= upkeep(session, bootstrap, topic, archive, folder)
        said["restore marks"] = sorted(each.name for each in marks.iterdir() if "restore" in each.name)
    return said


def verbs(session: Any, bootstrap: str, archive: str, folder: Path) -> dict[str, Any]:
    """What every verb that needs Spark says about an archive."""
    said: dict[str, Any] = {}
    restored = maxbrod.restore(bootstrap=bootstrap, archive=archive, suffix=SUFFIX, session=session)
    said["restore"] = restored.exit_code
    compared = maxbrod.compare(bootstrap=bootstrap, archive=archive, suffix=SUFFIX, session=session)
    said["compare"] = [compared.exit_code, compared.source_records]
    said["check"] = deep_check(Work(Config(), session=session), open_archive(archive), restart=True).exit_code
    options = ConvertOptions(source=archive, target=str(folder / "converted"), to="parquet", accept_loss=True)
    with Work(Config(), session=session) as work:
        said["convert"] = Conversion(work, options).run().exit_code
    # The filter: a plain count would not need Spark.
    counted = maxbrod.query(archive, "select count(*) as n from records where offset >= 0", session=session)
    said["query"] = counted.to_pylist()
    maxbrod.register(session)
    said["table"] = session.read.format("maxbrod").load(archive).where("offset >= 10").count()
    return said


def fateful_restore(marks: Path) -> Callable[..., list[Restored]]:
    """`SparkExecutor.run` in which a machine dies when its task has written, and before the driver knows that."""

    really = SparkExecutor.run

    def run(self: SparkExecutor, task: Any, context: Any, tasks: Sequence[Any], **options: Any) -> list[Any]:
        if task is not restore_items:
            return really(self, task, context, tasks, **options)
        alone = [[item] for items in tasks for item in items]
        return really(self, _dying_once(str(marks)), context, alone, name="restore")

    return run


def _dying_once(marks: str) -> Callable[[Any, Any], Any]:
    """A nested function, which travels to the workers by value: these cannot import the tests."""

    def dying(settings: Any, items: Any) -> Any:
        import time  # noqa: PLC0415
        from pathlib import Path  # noqa: PLC0415

        import psutil  # noqa: PLC0415
        from pyspark import TaskContext  # noqa: PLC0415

        from maxbrod.restore.items import restore_items  # noqa: PLC0415

        context = TaskContext.get()
        number, attempt = context.partitionId(), context.attemptNumber()
        answer = restore_items(settings, items)
        (Path(marks) / f"restore-{number}-{attempt}").touch()
        if (number, attempt) == (0, 0):
            for parent in reversed([each for each in psutil.Process().parents() if each.name() == "java"]):
                parent.kill()
            time.sleep(60)
        return answer

    return dying


def connect(port: str, bootstrap: str, topic: str, folder: Path) -> dict[str, Any]:
    """The same verbs over Spark Connect: in a session that is handed in, and one more as configured."""
    archive = str(folder / "archive")
    with open_session(master=f"sc://127.0.0.1:{port}") as session:
        report = maxbrod.backup(bootstrap=bootstrap, archive=archive, topics=[topic], session=session)
        said = {"backup": [report.exit_code, report.records], **verbs(session, bootstrap, archive, folder)}
        said |= upkeep(session, bootstrap, topic, archive, folder)
        said["jobs"] = jobs(session, folder)
    configured = folder / "maxbrod.yaml"
    configured.write_text(f"archive: {archive}\nspark:\n  master: sc://127.0.0.1:{port}\n")
    with redirect_stdout(StringIO()):
        said["configured"] = run(["check", "--config", str(configured), "--deep", "--restart"])
    return said


def jobs(session: Any, folder: Path) -> dict[str, Any]:
    """How far a job is, and that one which is stopped ends."""
    done: list[int] = []
    gate = folder / "gate"

    def waiting(_context: None, payloads: Any) -> Any:
        import time  # noqa: PLC0415
        from pathlib import Path  # noqa: PLC0415

        (payload,), until = payloads, time.monotonic() + 120
        while payload and not Path(payload).exists() and time.monotonic() < until:
            time.sleep(0.05)
        return ["done"]

    class Meter:
        def seen(self, tasks: int, size: int) -> None:
            assert size == 0, "workers of another machine cannot tell"
            done.append(tasks)
            if tasks:
                gate.touch()

    executor = SparkExecutor(session)
    executor.run(waiting, None, [[""], [str(gate)]], name="waiting", meter=Meter())
    stop = threading.Event()
    stop.set()
    try:
        executor.run(waiting, None, [[str(folder / "never")]], name="endless", stop=stop)
    except UnavailableError:
        return {"seen": max(done), "stopped": True}
    return {}


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


if __name__ == "__main__" and sys.argv[1] == "connect":
    port, bootstrap, topic, place = sys.argv[2:]
    sys.stdout.write(json.dumps(connect(port, bootstrap, topic, Path(place))))
elif __name__ == "__main__":
    master, bootstrap, topic, place, server, python = sys.argv[1:]
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    said = {"bare": bare(master, python), **work(master, bootstrap, topic, Path(place), json.loads(server))}
    sys.stdout.write(json.dumps(said))
