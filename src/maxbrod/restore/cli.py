"""`maxbrod restore`: from an archive into a cluster. The plan that is shown is the plan that runs."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import typer

from maxbrod.cli.commands import Call, command
from maxbrod.cli.metrics import report_figures
from maxbrod.cli.output import err, print_json
from maxbrod.errors import UsageError
from maxbrod.options import PLACE, ClusterOptions, JsonOption, QuietOption, SparkOptions
from maxbrod.restore.options import RestoreOptions

if TYPE_CHECKING:
    from maxbrod.config import Config
    from maxbrod.restore.plan.request import RestoreRequest
    from maxbrod.restore.report import RestoreReport

_MEANWHILE: Final = "records already written stay; the same command resumes"


@command("restore", RestoreOptions, before=(ClusterOptions, *PLACE), after=(SparkOptions, QuietOption, JsonOption))
def restore(call: Call[RestoreOptions]) -> None:
    """Restore topics of an archive into a cluster.

    All obstacles are reported before anything is changed. A restore that was killed resumes where it stopped: run the
    same command again.

    For example:

      maxbrod restore -a /backups/kafka --bootstrap broker1:9092 --dry-run

      maxbrod restore -a /backups/kafka --bootstrap broker1:9092 --topic orders --groups '*'

      maxbrod restore -a /backups/kafka --to-logdir /var/lib/kafka --topic orders

      maxbrod restore -c maxbrod.yaml --topic orders --until 2026-01-31T12:00:00Z --suffix -before

      maxbrod restore -c test.yaml --topic orders --where "key != 'user-17'" --select "sha2(key, 256) as key"
    """
    from maxbrod.restore.functions import request_of  # noqa: PLC0415 - numpy: not for `--help`

    options = call.options
    settings = call.config.model_copy(update={"archive": call.archive})
    request = request_of(options)
    if options.to_logdir:
        from maxbrod.restore.cold.cli import restore_logdirs  # noqa: PLC0415 - Arrow and Delta: not for `--help`

        if "bootstrap" in call.given or "command_config" in call.given:
            raise UsageError("a restore goes to a cluster or to log directories, not both", hint="omit --bootstrap")
        raise typer.Exit(restore_logdirs(settings, request, options, quiet=call.quiet, as_json=call.as_json))
    if options.leader_epochs != "keep":
        raise UsageError(
            "brokers assign leader epochs themselves", hint="omit --leader-epochs, or restore with --to-logdir"
        )
    raise typer.Exit(_run(settings, request, options, quiet=call.quiet, as_json=call.as_json))


def _run(settings: Config, request: RestoreRequest, options: RestoreOptions, *, quiet: bool, as_json: bool) -> int:
    from maxbrod.cli.log import showing_log  # noqa: PLC0415
    from maxbrod.cli.progress import progress_bar  # noqa: PLC0415
    from maxbrod.cli.signals import stopping_by_signals  # noqa: PLC0415
    from maxbrod.restore.run import Restore  # noqa: PLC0415 - Kafka, Arrow and Delta: not for `--help`
    from maxbrod.restore.staging import transform_session  # noqa: PLC0415
    from maxbrod.restore.summary import decide  # noqa: PLC0415

    with showing_log(quiet=quiet), ExitStack() as spark:
        with progress_bar(shown=not quiet) as on_progress:
            # Spark checks the expressions; the work then uses the same session.
            session = spark.enter_context(transform_session(settings, request, on_progress=on_progress))
            with Restore(settings, request, session=session, on_progress=on_progress) as work:
                plan = work.plan()
        code = decide(plan, dry_run=options.dry_run, yes=options.yes, quiet=quiet, as_json=as_json)
        if code is not None:
            return code
        stop = threading.Event()
        with (
            progress_bar(shown=not quiet) as on_progress,
            stopping_by_signals(stop, what=_MEANWHILE),
            Restore(settings, request, session=session, on_progress=on_progress, stop=stop) as work,
        ):
            report = work.run(plan)
    report_figures(last_records=report.records)
    _show_report(report, quiet=quiet, as_json=as_json)
    return report.exit_code


def _show_report(report: RestoreReport, *, quiet: bool, as_json: bool) -> None:
    from maxbrod.restore.summary import print_failures, print_report, print_retention  # noqa: PLC0415

    if as_json:
        print_json(report.as_dict())
    elif quiet:
        print_failures(report, err)
        print_retention(report.retention, err)
    else:
        print_report(report)
