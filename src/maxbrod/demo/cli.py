"""`maxbrod demo`: backup, loss and restore from start to end, on a temporary cluster."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from maxbrod.backup.summary import print_notices
from maxbrod.cli.output import JsonFlag, err, out, print_json, table
from maxbrod.demo import story
from maxbrod.demo.recording import Recording, check_writable
from maxbrod.errors import IncompleteError
from maxbrod.text import human_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from maxbrod.backup.report import BackupReport
    from maxbrod.compare.report import CompareReport
    from maxbrod.demo.story import Archived, Resumed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Findings:
    """The findings of the demo."""

    archived: list[Archived]
    run: BackupReport
    compared: CompareReport
    resumed: list[Resumed]

    def restored(self, topic: str) -> int:
        """The number of restored records that are equal at their offsets; -1 if one differs."""
        mine = [partition for partition in self.compared.partitions if partition.source_topic == topic]
        return sum(each.target_records for each in mine) if mine and all(each.equal for each in mine) else -1

    @property
    def lacking(self) -> list[str]:
        """Topics with a record that is missing, differs, or was read twice or never."""
        lost = [
            each.inventory.topic
            for each in self.archived
            if not each.complete or self.restored(each.inventory.topic) != each.acknowledged
        ]
        return [*lost, *(each.topic for each in self.resumed if not each.exact and each.topic not in lost)]

    @property
    def complete(self) -> bool:
        return self.run.complete and self.compared.equal and not self.lacking


def demo(
    records: Annotated[int, typer.Option(min=100, help="Approximate number of records to produce.")] = 300_000,
    brokers: Annotated[int, typer.Option(min=1, max=9, help="Number of brokers.")] = 1,
    record: Annotated[Path | None, typer.Option(help="Draw what is printed as a moving picture: an SVG file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Start a real Kafka cluster, fill it, back it up, delete every topic, restore them, and account for every record.

    A consumer group reads a part of the records before and the rest afterwards, and none twice. Cluster and archive are
    in a temporary folder, which is removed at the end. The first run downloads Kafka.
    """
    from maxbrod.backup.functions import backup  # noqa: PLC0415 - kafka-python and numba: not for `--help`
    from maxbrod.config import SparkConfig  # noqa: PLC0415
    from maxbrod.sandbox.cluster import Cluster  # noqa: PLC0415
    from maxbrod.sandbox.jars import KAFKA_VERSION, kafka_release  # noqa: PLC0415
    from maxbrod.sandbox.topics import delete_topic  # noqa: PLC0415
    from maxbrod.work.session import open_configured  # noqa: PLC0415

    if record is not None:
        check_writable(record)
    screen = Recording()
    step = partial(_step, screen)
    with tempfile.TemporaryDirectory(prefix="maxbrod-demo-") as folder:
        with step(f"get Kafka {KAFKA_VERSION} (the first time it is downloaded)"):
            kafka_release()
        with step(f"start {brokers} broker{'s'[: brokers > 1]}"):
            cluster = Cluster.start(Path(folder) / "cluster", brokers=brokers)
        archive = Path(folder) / "archive"
        with cluster, ExitStack() as undo:
            with step("produce"):
                acknowledged = story.fill(cluster, records)
            with step(f"a consumer group, {story.GROUP}, reads a part of it"):
                before = story.read_a_part(cluster, acknowledged)
            with step("start Spark"):
                session = undo.enter_context(open_configured(SparkConfig()))
            with step("back up"):
                report = backup(bootstrap=cluster.bootstrap, archive=archive, session=session)
            with step("read the archive, and the brokers' own logs"):
                found = story.look(cluster, archive, acknowledged)
            with step("lose every topic, and with them what the group had read"):
                for topic in story.PARTITIONS:
                    delete_topic(cluster, topic)
            with step("restore topics and group from the archive"):
                story.restore(cluster, archive, session)
            with step("compare every record with the archive"):
                compared = story.compare(cluster, archive, session)
            with step(f"{story.GROUP} reads on"):
                resumed = story.read_on(cluster, before, acknowledged)
    _report(_Findings(archived=found, run=report, compared=compared, resumed=resumed), screen, as_json=as_json)
    if record is not None:
        screen.save(record, title="make demo")


@contextmanager
def _step(screen: Recording, name: str) -> Iterator[None]:
    """Print the step and its duration to standard error; standard output is for the result."""
    started = time.monotonic()
    with err.status(f"{name} …"):
        yield
    screen.print(err, Text.assemble(("✓ ", "green"), f"{name} ", (f"{time.monotonic() - started:.1f} s", "dim")))


def _report(findings: _Findings, screen: Recording, *, as_json: bool) -> None:
    if as_json:
        topics = [{**each.as_dict(), "restored": findings.restored(each.inventory.topic)} for each in findings.archived]
        group = [{**asdict(each), "exact": each.exact} for each in findings.resumed]
        print_json(
            {
                "complete": findings.complete,
                "topics": topics,
                "group": group,
                "run": findings.run.as_dict(),
                "comparison": findings.compared.as_dict(),
            }
        )
    else:
        screen.print(out, _table(findings))
        for each in findings.resumed:
            line = (
                f"{story.GROUP} had read {each.before:,} of {each.topic}, went on at offset {each.went_on_at:,}, "
                f"and read {each.after:,} more"
            )
            screen.print(out, Text(line), soft_wrap=True)
        print_notices(findings.run, out)
    if not findings.complete:
        what = f"records are missing or not as they were: {', '.join(findings.lacking) or 'see the notices'}"
        raise IncompleteError(what, hint="this is a bug in maxbrod: please report it")
    if not as_json:
        total = sum(each.acknowledged for each in findings.archived)
        text = f": all {total:,} acknowledged records were archived byte for byte, lost, and restored at their offsets"
        screen.print(out, Text.assemble(("complete", "bold green"), text), soft_wrap=True)
        screen.print(out, Text("equal in every field; the group read each record once"))


def _table(findings: _Findings) -> Table:
    numbers = (">parts", ">acknowledged", ">archived", ">aborted", ">log", ">stored", ">restored")
    shown = table("Backed up, lost, restored, compared", "topic", *numbers)
    for each in findings.archived:
        held = each.inventory
        counts = (held.partitions, each.acknowledged, held.records, held.aborted)
        sizes = (held.bytes, each.stored_bytes)
        back = findings.restored(held.topic)
        shown.add_row(
            held.topic,
            *(f"{count:,}" for count in counts),
            *map(human_bytes, sizes),
            f"{back:,}" if back >= 0 else "differs",
        )
    return shown
