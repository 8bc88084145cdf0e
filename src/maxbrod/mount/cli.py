"""`maxbrod mount`: a read-only Kafka cluster over archives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.cli.commands import Call, command
from maxbrod.cli.output import print_line
from maxbrod.cli.verbs import at_work, end
from maxbrod.mount.heap import collector_paused, share_one_heap
from maxbrod.mount.options import MountOptions
from maxbrod.options import PLACE, JsonOption, QuietOption
from maxbrod.text import counted, human_bytes

if TYPE_CHECKING:
    from maxbrod.mount.report import MountReport
    from maxbrod.mount.verb import Mounted


@command("mount", MountOptions, before=PLACE, after=(QuietOption, JsonOption))
def mount(call: Call[MountOptions]) -> None:
    """Serve archives as a read-only Kafka cluster: any client reads archived topics at their offsets, at once.

    Consumers, kcat, Connect sinks, Flink, Spark and user interfaces read while a restore runs, or look at the cluster
    as it was (--as-of). Nothing can be written. The command runs until it is stopped.

    For example:

      maxbrod mount /backups/kafka

      maxbrod mount s3://backups/kafka --topic 'orders-*' --listen 127.0.0.1:19092
    """
    share_one_heap()
    with at_work(call, meanwhile="clients get the answers that they wait for") as work:
        with collector_paused():
            from maxbrod.mount.verb import mount as serve  # noqa: PLC0415 - not for `--help`

        report = serve(work, _print_ready if not call.silent else lambda _: None)
    end(call, report, _print)


def _print_ready(mounted: Mounted) -> None:
    what = f"{counted(mounted.topics, 'topic')} with {counted(mounted.partitions, 'partition')}"
    print_line(f"mounted {what} of {', '.join(mounted.archives) or 'no archive'}, read-only")
    print_line(f"commits of consumer groups are kept in {mounted.state}")
    print_line(f"--bootstrap-server {mounted.bootstrap}")


def _print(report: MountReport, *, quiet: bool) -> None:
    if not quiet:
        took_s = (report.finished_at_ms - report.started_at_ms) / 1000
        sent = f"{human_bytes(report.bytes)} of records in answers to {counted(report.requests, 'request')}"
        print_line(f"unmounted after {took_s:,.1f} s: {sent}")
