"""`maxbrod compare`: whether a cluster has exactly what an archive, or another cluster, has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
from maxbrod.compare.cli_options import (
    AsOfOption,
    DifferencesOption,
    ExcludeOption,
    IgnoreOption,
    OffsetsOption,
    PartitionOption,
    PrefixOption,
    RangeOption,
    RenameOption,
    RestoreOption,
    SinceOption,
    SourceConfigOption,
    SourceOption,
    SuffixOption,
    TopicIdOption,
    TopicOption,
    UntilOption,
    compare_request_of,
)
from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.compare.plan.pairs import CompareRequest
    from maxbrod.config import Config, KafkaConfig


def compare(
    bootstrap: BootstrapOption = None,
    command_config: CommandConfigOption = None,
    archive: ArchiveOption = None,
    layout: LayoutOption = None,
    config: ConfigOption = None,
    s3_endpoint: S3EndpointOption = None,
    s3_region: S3RegionOption = None,
    s3_path_style: S3PathStyleOption = None,
    source: SourceOption = None,
    source_command_config: SourceConfigOption = None,
    topic: TopicOption = None,
    exclude: ExcludeOption = None,
    partition: PartitionOption = None,
    ranges: RangeOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    as_of: AsOfOption = None,
    topic_id: TopicIdOption = None,
    rename: RenameOption = None,
    prefix: PrefixOption = "",
    suffix: SuffixOption = "",
    restore: RestoreOption = None,
    offsets: OffsetsOption = "auto",
    ignore: IgnoreOption = None,
    differences: DifferencesOption = 10,
    patience: PatienceOption = None,
    master: MasterOption = None,
    quiet: QuietFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Compare an archive with live topics, or live topics with others: every record, every field.

    Only committed records count. The topics of --bootstrap are the target. Ends with 0 if all is equal, with 3 if
    anything differs, and with another code where something could not be read.

    For example:

      maxbrod compare -a /backups/kafka --bootstrap broker1:9092 --topic orders

      maxbrod compare -a /backups/kafka --bootstrap broker1:9092 --restore 1f0c

      maxbrod compare --source broker1:9092 --bootstrap dr1:9092 --topic 'orders-*' --ignore timestamp
    """
    live = source is not None or source_command_config is not None
    if live and archive is not None:
        raise UsageError("an archive and a cluster cannot both be compared with", hint="give --archive or --source")
    settings = _settings(
        config, archive, live=live, layout=layout, endpoint=s3_endpoint, region=s3_region, path_style=s3_path_style
    )
    settings = with_flags(
        settings, bootstrap=bootstrap, command_config=command_config, master=master, start=None, patience=patience
    )
    request = compare_request_of(
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
        restore=restore,
        offsets=offsets,
        ignore=ignore,
        differences=differences,
    )
    cluster = _source(settings, source, source_command_config) if live else None
    raise typer.Exit(_run(settings, request, cluster, quiet=quiet, as_json=as_json))


def _settings(config: Path | None, archive: str | None, *, live: bool, **s3: Any) -> Config:  # noqa: ANN401 - flags
    from maxbrod.config import Config, load_config  # noqa: PLC0415 - pydantic: not for `--help`

    if live:
        return Config() if config is None else load_config(config)
    place = find_place(archive, config, **s3)
    return place.config.model_copy(update={"archive": place.url, "storage": place.storage})


def _source(settings: Config, bootstrap: str | None, command_config: Path | None) -> KafkaConfig:
    empty = settings.model_copy(update={"kafka": None})
    found = with_flags(empty, bootstrap=bootstrap, command_config=command_config, master=None, start=None).kafka
    if found is None:
        raise UsageError("no cluster is named to compare with", hint="give --source HOST:PORT")
    return found


def _run(settings: Config, request: CompareRequest, source: KafkaConfig | None, *, quiet: bool, as_json: bool) -> int:
    from maxbrod.cli.log import showing_log  # noqa: PLC0415
    from maxbrod.cli.progress import progress_bar  # noqa: PLC0415
    from maxbrod.compare.run import Comparison  # noqa: PLC0415 - Kafka, Arrow and Delta: not for `--help`
    from maxbrod.compare.summary import print_comparison, print_differences  # noqa: PLC0415

    with (
        showing_log(quiet=quiet),
        progress_bar(shown=not quiet) as on_progress,
        Comparison(settings, request, source=source, on_progress=on_progress) as work,
    ):
        report = work.run()
    if as_json:
        print_json(report.as_dict())
    elif quiet:
        print_differences(report, err)
    else:
        print_comparison(report)
    return report.exit_code
