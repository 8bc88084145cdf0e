"""The verbs that look after an archive, and replication, in a session of a cluster or of Spark Connect."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import maxbrod
from compact.archives import Making
from compact.keyed_archives import Keyed, batch
from maxbrod.config import Config
from maxbrod.drill.plan import DrillRequest
from maxbrod.drill.run import Drill
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.repair.run import repair_archive
from maxbrod.replicate.egress import beat
from maxbrod.replicate.ingress.run import Ingress
from maxbrod.replicate.verify import verify
from maxbrod.restore.plan.request import RestoreRequest

if TYPE_CHECKING:
    from pathlib import Path


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
        "drill": str(Drill(config, DrillRequest(selection=RestoreRequest()), session=session).run().verdict),
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
    report = repair_archive(config, session=session)
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
