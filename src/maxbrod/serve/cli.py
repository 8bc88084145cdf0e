"""`maxbrod serve`: a dashboard of archives for browsers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rich.text import Text

from maxbrod.cli.commands import Call, command
from maxbrod.cli.output import err, out, print_line
from maxbrod.cli.verbs import at_work, end
from maxbrod.options import PLACE, ClusterOptions, JsonOption, QuietOption
from maxbrod.serve.options import ServeOptions
from maxbrod.text import counted, human_age

if TYPE_CHECKING:
    from rich.console import Console

    from maxbrod.serve.report import ServeReport
    from maxbrod.serve.verb import Served


@command(
    "serve",
    ServeOptions,
    before=(ClusterOptions, *PLACE),
    after=(QuietOption, JsonOption),
    looks=lambda _: True,
)
def serve(call: Call[ServeOptions]) -> None:
    """Show archives in a browser: what can be restored, to when, what is missing and why, down to single records.

    The dashboard reads archives and changes nothing; backups do not need it. It shows many archives at once, also those
    of other tools, plans restores, and simulates retention. It is for this machine alone, unless it has a certificate;
    and only for those who have its token. The command runs until it is stopped.

    With --bootstrap, the restore planner can ask that cluster what stands in the way. It asks no other one.

    For example:

      maxbrod serve /backups/kafka

      maxbrod serve s3://backups/kafka s3://backups/other --listen 127.0.0.1:9000

      maxbrod serve -c maxbrod.yaml --listen 0.0.0.0:8321 --tls-cert cert.pem --tls-key key.pem --token-file token
    """
    with at_work(call, meanwhile="browsers get the answers that they wait for") as work:
        from maxbrod.serve.verb import serve as run  # noqa: PLC0415 - not for `--help`

        # The address is the only way in: it is printed whatever else is not, but never into a document.
        report = run(work, partial(_print_ready, console=err if call.as_json else out))
    end(call, report, _print)


def _print_ready(served: Served, *, console: Console) -> None:
    archives = f"{counted(len(served.archives), 'archive')}, read-only: {', '.join(served.archives)}"
    for line in (f"showing {archives}", served.secret_address or served.address):
        console.print(Text(line), soft_wrap=True)


def _print(report: ServeReport, *, quiet: bool) -> None:
    if not quiet:
        took = human_age(report.finished_at_ms - report.started_at_ms)
        print_line(f"ended after {took}: {counted(report.requests, 'request')}, {report.refused:,} refused")
