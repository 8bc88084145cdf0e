"""`maxbrod restore`: from an archive into a cluster. The plan that is shown is the plan that runs."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import typer

from maxbrod.backup.cli_options import (
    BootstrapOption,
    CommandConfigOption,
    MasterOption,
    PatienceOption,
    QuietFlag,
    with_flags,
)
from maxbrod.cli.options import (
    ArchiveOption,
    ConfigOption,
    LayoutOption,
    S3EndpointOption,
    S3PathStyleOption,
    S3RegionOption,
    find_place,
)
from maxbrod.cli.output import JsonFlag, err, print_json
from maxbrod.errors import UsageError
from maxbrod.restore.cli_options import (
    AcceptGapsOption,
    AgainOption,
    AsOfOption,
    ConfigSetOption,
    DryRunOption,
    ExcludeOption,
    ForceGroupsOption,
    GroupsOption,
    LeaderEpochsOption,
    OffsetsOption,
    PartitionCountOption,
    PartitionOption,
    PrefixOption,
    ProvenanceOption,
    RangeOption,
    RateOption,
    RenameOption,
    SelectOption,
    SinceOption,
    StagingOption,
    StrictOption,
    SuffixOption,
    ToLogdirOption,
    TopicIdOption,
    TopicOption,
    UntilOption,
    WhereOption,
    WithAclsOption,
    WithQuotasOption,
    YesOption,
    request_of,
)

if TYPE_CHECKING:
    from maxbrod.config import Config
    from maxbrod.restore.plan.request import RestoreRequest
    from maxbrod.restore.report import RestoreReport
_MEANWHILE: Final = "what was written stays, and the same command goes on from there"


def restore(
    bootstrap: BootstrapOption = None,
    command_config: CommandConfigOption = None,
    archive: ArchiveOption = None,
    layout: LayoutOption = None,
    config: ConfigOption = None,
    s3_endpoint: S3EndpointOption = None,
    s3_region: S3RegionOption = None,
    s3_path_style: S3PathStyleOption = None,
    topic: TopicOption = None,
    exclude: ExcludeOption = None,
    partition: PartitionOption = None,
    ranges: RangeOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    as_of: AsOfOption = None,
    topic_id: TopicIdOption = None,
    where: WhereOption = None,
    select: SelectOption = None,
    rename: RenameOption = None,
    prefix: PrefixOption = "",
    suffix: SuffixOption = "",
    to_logdir: ToLogdirOption = None,
    leader_epochs: LeaderEpochsOption = "keep",
    partition_count: PartitionCountOption = None,
    config_set: ConfigSetOption = None,
    offsets: OffsetsOption = "auto",
    strict: StrictOption = False,
    accept_gaps: AcceptGapsOption = False,
    again: AgainOption = False,
    rate: RateOption = None,
    provenance: ProvenanceOption = False,
    groups: GroupsOption = None,
    force_groups: ForceGroupsOption = False,
    with_acls: WithAclsOption = False,
    with_quotas: WithQuotasOption = False,
    staging: StagingOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    patience: PatienceOption = None,
    master: MasterOption = None,
    quiet: QuietFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Restore topics of an archive into a cluster.

    Everything that stands in the way is told before anything is changed. Killed at any instant, it goes on exactly
    where it was: run the same command again.

    For example:

      maxbrod restore -a /backups/kafka --bootstrap broker1:9092 --dry-run

      maxbrod restore -a /backups/kafka --bootstrap broker1:9092 --topic orders --groups '*'

      maxbrod restore -a /backups/kafka --to-logdir /var/lib/kafka --topic orders

      maxbrod restore -c maxbrod.yaml --topic orders --until 2026-01-31T12:00:00Z --suffix -before

      maxbrod restore -c test.yaml --topic orders --where "key != 'user-17'" --select "sha2(key, 256) as key"
    """
    place = find_place(archive, config, layout=layout, endpoint=s3_endpoint, region=s3_region, path_style=s3_path_style)
    settings = with_flags(
        place.config, bootstrap=bootstrap, command_config=command_config, master=master, start=None, patience=patience
    ).model_copy(update={"archive": place.url, "storage": place.storage})
    request = request_of(
        topic=topic,
        exclude=exclude,
        partition=partition,
        ranges=ranges,
        since=since,
        until=until,
        as_of=as_of,
        topic_id=topic_id,
        rename=rename,
        prefix=prefix,
        suffix=suffix,
        partition_count=partition_count,
        config_set=config_set,
        offsets=offsets,
        strict=strict,
        accept_gaps=accept_gaps,
        again=again,
        rate=rate,
        groups=groups,
        force_groups=force_groups,
        provenance=provenance,
        with_acls=with_acls,
        with_quotas=with_quotas,
        where=where,
        select=select,
        staging=staging,
    )
    if to_logdir:
        from maxbrod.restore.cold.cli import restore_logdirs  # noqa: PLC0415 - Arrow and Delta: not for `--help`

        if bootstrap is not None or command_config is not None:
            raise UsageError("either a cluster is restored into, or log directories", hint="leave out --bootstrap")
        code = restore_logdirs(
            settings,
            request,
            to_logdir,
            leader_epochs=leader_epochs,
            dry_run=dry_run,
            yes=yes,
            quiet=quiet,
            as_json=as_json,
        )
        raise typer.Exit(code)
    if leader_epochs != "keep":
        raise UsageError("brokers give leader epochs themselves", hint="leave out --leader-epochs, or say --to-logdir")
    code = _run(settings, request, dry_run=dry_run, yes=yes, quiet=quiet, as_json=as_json)
    raise typer.Exit(code)


def _run(settings: Config, request: RestoreRequest, *, dry_run: bool, yes: bool, quiet: bool, as_json: bool) -> int:
    from maxbrod.cli.log import showing_log  # noqa: PLC0415
    from maxbrod.cli.progress import progress_bar  # noqa: PLC0415
    from maxbrod.cli.signals import stopping_by_signals  # noqa: PLC0415
    from maxbrod.restore.cli_deciding import decide  # noqa: PLC0415
    from maxbrod.restore.run import Restore  # noqa: PLC0415 - Kafka, Arrow and Delta: not for `--help`
    from maxbrod.restore.transforming import transform_session  # noqa: PLC0415

    with showing_log(quiet=quiet), ExitStack() as spark:
        with progress_bar(shown=not quiet) as on_progress:
            # Expressions are checked by Spark, and the session that did so goes on with the work.
            session = spark.enter_context(transform_session(settings, request, on_progress=on_progress))
            with Restore(settings, request, session=session, on_progress=on_progress) as work:
                plan = work.plan()
        code = decide(plan, dry_run=dry_run, yes=yes, quiet=quiet, as_json=as_json)
        if code is not None:
            return code
        stop = threading.Event()
        with (
            progress_bar(shown=not quiet) as on_progress,
            stopping_by_signals(stop, what=_MEANWHILE),
            Restore(settings, request, session=session, on_progress=on_progress, stop=stop) as work,
        ):
            report = work.run(plan)
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
