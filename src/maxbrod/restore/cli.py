"""`maxbrod restore`: from an archive into a cluster, or onto disks. The plan that is shown is the plan that runs."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING

import typer

from maxbrod.cli.commands import Call, command
from maxbrod.cli.metrics import report_figures
from maxbrod.cli.verbs import at_work, end, load
from maxbrod.errors import UsageError
from maxbrod.options import PLACE, ClusterOptions, JsonOption, QuietOption, SparkOptions
from maxbrod.restore.options import RestoreOptions

if TYPE_CHECKING:
    from maxbrod.restore.cold.run import ColdRestore
    from maxbrod.restore.plan.request import RestoreRequest
    from maxbrod.restore.report import RestoreReport
    from maxbrod.restore.run import Restore
    from maxbrod.work.work import Work


@command(
    "restore",
    RestoreOptions,
    before=(ClusterOptions, *PLACE),
    after=(SparkOptions, QuietOption, JsonOption),
    looks=lambda given: "dry_run" in given,
)
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
    if call.options.to_logdir and ("bootstrap" in call.given or "command_config" in call.given):
        raise UsageError("a restore goes to a cluster or to log directories, not both", hint="omit --bootstrap")
    if not call.options.to_logdir and call.options.leader_epochs != "keep":
        raise UsageError(
            "brokers assign leader epochs themselves", hint="omit --leader-epochs, or restore with --to-logdir"
        )
    report = _run(call, load("restore.functions:request_of")(call.options))
    report_figures(last_records=report.records)
    end(call, report, load("restore.summary:print_report"))


def _run(call: Call[RestoreOptions], request: RestoreRequest) -> RestoreReport:
    """Plan, show the plan, and carry it out."""
    cold = bool(call.options.to_logdir)
    meanwhile = "the directories stay unchanged" if cold else "records already written stay; the same command resumes"
    with ExitStack() as spark:
        with at_work(call, meanwhile="nothing was changed") as work:
            # Spark checks the expressions; the work then uses the same session.
            session = None if cold else spark.enter_context(load("restore.staging:transform_session")(work, request))
            work.session = session
            with _open(work, call.options, request) as restoring:
                plan = restoring.plan()
        code = load("restore.summary:decide")(
            plan, dry_run=call.options.dry_run, yes=call.options.yes, quiet=call.quiet, as_json=call.as_json
        )
        if code is not None:
            raise typer.Exit(code)
        with at_work(call, meanwhile=meanwhile) as work:
            work.session = session
            with _open(work, call.options, request) as restoring:
                return restoring.run(plan)


def _open(
    work: Work, options: RestoreOptions, request: RestoreRequest
) -> AbstractContextManager[Restore | ColdRestore]:
    if not options.to_logdir:
        hot: Restore = load("restore.run:Restore")(work, request)
        return hot
    return nullcontext(load("restore.cold.run:ColdRestore")(work, request, options.to_logdir, options.leader_epochs))
