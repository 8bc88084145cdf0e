"""`maxbrod compare`: compares a cluster with an archive or with another cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from maxbrod.cli.commands import Call, command, kafka_of
from maxbrod.cli.output import err, print_json
from maxbrod.compare.options import CompareOptions
from maxbrod.errors import UsageError
from maxbrod.options import PLACE, ClusterOptions, JsonOption, QuietOption, SparkOptions

if TYPE_CHECKING:
    from maxbrod.compare.plan.pairs import CompareRequest
    from maxbrod.config import Config, KafkaConfig


@command("compare", CompareOptions, before=(ClusterOptions, *PLACE), after=(SparkOptions, QuietOption, JsonOption))
def compare(call: Call[CompareOptions]) -> None:
    """Compare an archive with live topics, or live topics with others: every record, every field.

    Only committed records count. The topics of --bootstrap are the target. The exit code is 0 if everything is equal, 3
    if anything differs, and another code if something could not be read.

    For example:

      maxbrod compare -a /backups/kafka --bootstrap broker1:9092 --topic orders

      maxbrod compare -a /backups/kafka --bootstrap broker1:9092 --restore 1f0c

      maxbrod compare --source broker1:9092 --bootstrap dr1:9092 --topic 'orders-*' --ignore timestamp
    """
    from maxbrod.compare.functions import compare_request_of  # noqa: PLC0415 - numpy: not for `--help`

    options, settings = call.options, call.config
    source = None
    if options.source is not None or options.source_command_config is not None:
        if "archive" in call.given:
            raise UsageError("compare either with an archive or with a cluster", hint="give --archive or --source")
        source = kafka_of(None, options.source, options.source_command_config)
        settings = settings.model_copy(update={"archive": None})
    else:
        settings = settings.model_copy(update={"archive": call.archive})
    request = compare_request_of(options)
    raise typer.Exit(_run(settings, request, source, quiet=call.quiet, as_json=call.as_json))


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
