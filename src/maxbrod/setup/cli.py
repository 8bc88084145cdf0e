"""`maxbrod init`, `maxbrod config` and `maxbrod doctor` on the command line."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer
from rich.markdown import Markdown

from maxbrod.cli.commands import Call, command
from maxbrod.cli.output import out as console
from maxbrod.cli.output import print_line, print_promises, table
from maxbrod.cli.process import raising_interrupt
from maxbrod.cli.verbs import at_work, end, load
from maxbrod.errors import EXIT_DONE, UsageError
from maxbrod.option_values import parse_seconds, show_seconds
from maxbrod.options import PLACE, ArchiveOptions, ClusterOptions, JsonOption, SparkOptions, StorageOptions, declared
from maxbrod.setup.options import FOREVER, VERBS, ConfigOptions, DoctorOptions, InitOptions

if TYPE_CHECKING:
    from maxbrod.setup.doctor import DoctorReport
    from maxbrod.setup.init import InitAnswers
    from maxbrod.setup.settings import ConfigReport

T = TypeVar("T")

_EVERY: Final = "60s"
_ALL: Final = "all"


@command("config", ConfigOptions, after=(*PLACE, ClusterOptions, SparkOptions, JsonOption))
def config(call: Call[ConfigOptions]) -> None:
    """Show the configuration that is in force, and where each setting comes from.

    A flag overrides the environment, and that overrides the file. The file is the one of --config, else of the variable
    MAXBROD_CONFIG, else maxbrod.yaml in this folder, else maxbrod/maxbrod.yaml in the user's configuration folder
    (XDG_CONFIG_HOME, or ~/.config). MAXBROD_ARCHIVE names an archive. Secrets are not shown.

    For example:

      maxbrod config

      maxbrod config --all --json
    """
    models = (*PLACE, ClusterOptions, SparkOptions)
    flags = {option.name: option for model in models for option in declared(model) if option.option.setting}
    report = load("setup.settings:show_config")(call.config, call.given, flags, os.environ, defaults=call.options.all)
    end(call, report, _print_config)


def _print_config(report: ConfigReport, *, quiet: bool) -> None:
    del quiet
    if report.file is None:
        print_line(
            "no configuration file was found: 'maxbrod init' writes one, 'maxbrod config --help' says where it may be"
        )
    else:
        print_line(f"configuration file: {report.file} ({report.named_by})")
    if report.settings:
        shown = table("", "*setting", "*value", "*from")
        for setting in report.settings:
            shown.add_row(setting.name, setting.text, setting.source)
        console.print(shown)


@command(
    "doctor",
    DoctorOptions,
    before=PLACE,
    after=(ClusterOptions, SparkOptions, JsonOption),
    looks=lambda _: True,
)
def doctor(call: Call[DoctorOptions]) -> None:
    """Try what a backup, a restore or a query needs, and say what is missing and how to get it.

    Java and, with --start-spark, Spark; every broker, by the name that it advertises; the rights of the user; the
    storage (list, create, read and delete one small object), its clock, conditional puts and free space. Nothing else
    is changed. The exit code is that of the gravest failure; warnings do not count.

    For example:

      maxbrod doctor --bootstrap broker1:9092 --archive s3://backups/kafka

      maxbrod doctor -c maxbrod.yaml --for backup --for restore --topic 'orders-*' --start-spark
    """
    unknown = [verb for verb in call.options.for_ if verb not in VERBS]
    if unknown:
        raise UsageError(f"--for {unknown[0]}: {', '.join(VERBS)} can be tried", hint="name one of these verbs")
    with at_work(call, meanwhile="nothing was changed") as work:
        report = load("setup.doctor:doctor")(work, call.options)
    end(call, report, _print_findings)


def _print_findings(report: DoctorReport, *, quiet: bool) -> None:
    print_promises([finding for finding in report.findings if not quiet or finding.state != "OK"])


@command("init", InitOptions, after=(ArchiveOptions, StorageOptions, ClusterOptions))
def init(call: Call[InitOptions]) -> None:
    """Write a commented configuration file from a few answers, and try whether it works.

    Asks for the cluster, the archive, the topics, how often to look for new records, and how long to keep them; flags
    answer instead. Secrets are never asked for nor written: the file names a variable of the environment instead.

    For example:

      maxbrod init

      maxbrod init --bootstrap broker1:9092 --archive s3://backups/kafka --topic 'orders-*' --every 60s --keep 90d --yes
    """
    options = call.options
    # Before the questions: nobody wants to answer them in vain.
    load("setup.init:refuse_existing")(options.file, force=options.force)
    answers = _answers(call)
    written = load("setup.init:write_config")(options.file, answers, force=options.force)
    print_line(f"wrote {options.file}; trying it:")
    with at_work(call, meanwhile="nothing was changed") as work:
        work.config = written.model_copy(
            update={"kafka": answers.kafka, "storage": call.config.storage, "patience": call.config.patience}
        )
        report = load("setup.doctor:doctor")(work, DoctorOptions(topics=answers.topics))
    _print_findings(report, quiet=False)
    _print_next(options.file, show_seconds(answers.every_s), well=report.exit_code == EXIT_DONE)
    raise typer.Exit(report.exit_code)


def _answers(call: Call[InitOptions]) -> InitAnswers:
    """What flags, an existing configuration and the user say."""
    options, given = call.options, call.given
    asks = not options.yes and sys.stdin.isatty()
    if asks:
        print_line(f"The answers go into {options.file}. Enter takes what is in brackets.")
    kafka = call.config.kafka
    if "bootstrap" not in given and (kafka is None or asks):
        before = "localhost:9092" if kafka is None else kafka.bootstrap
        brokers = _answer("Brokers of the cluster, as host:port", before, _brokers, asks=asks, flag="--bootstrap")
        model = load("config:KafkaConfig")
        kafka = model(bootstrap=brokers) if kafka is None else kafka.model_copy(update={"bootstrap": brokers})
    archive = call.config.archive
    if "archive" not in given and (archive is None or asks):
        question = "Archive: a folder, s3://bucket/prefix, gs://… or az://…"
        archive = _answer(question, archive or "backups", str.strip, asks=asks, flag="--archive")
    topics, every, keep = options.topics, options.every, options.keep
    if not topics:
        question = f"Topics to back up, such as orders-*, separated by blanks; or {_ALL}"
        topics = _answer(question, _ALL, _topics, asks=asks)
    if every is None:
        every = _answer("Look for new records every", _EVERY, _seconds, asks=asks)
    if keep is None:
        question = f"Keep records for a time such as 90d, or {FOREVER}"
        keep = _answer(question, FOREVER, _keep, asks=asks)
    found: InitAnswers = load("setup.init:InitAnswers")(
        kafka=kafka, archive=archive, storage=call.config.storage, topics=topics, every_s=every, keep=_keep(keep)
    )
    return found


def _answer(question: str, default: str, read: Callable[[str], T], *, asks: bool, flag: str | None = None) -> T:
    """The answer to a question, asked until `read` understands it."""
    while asks:
        try:
            with raising_interrupt():
                answer = typer.prompt(question, default=default, type=str)
            return read(answer)
        except UsageError as error:
            print_line(f"  {error}")
    if flag is not None:
        raise UsageError(f"{flag} is missing, and there is no terminal to ask on", hint=f"give {flag}")
    return read(default)


def _brokers(text: str) -> str:
    wrong = [broker for broker in text.split(",") if not re.fullmatch(r"\s*\S+:\d{1,5}\s*", broker)]
    if wrong:
        raise UsageError(f"{wrong[0].strip()!r} is not of the form host:port")
    return ",".join(broker.strip() for broker in text.split(","))


def _topics(text: str) -> tuple[str, ...]:
    words = () if text.strip() == _ALL else tuple(text.split())
    load("archive.selection:select_topics")({}, words)  # raises for invalid patterns
    return words


def _seconds(text: str) -> float:
    try:
        return float(str(parse_seconds(text)))
    except ValueError as error:
        raise UsageError(f"{text!r} {error}") from None


def _keep(text: str) -> str:
    if text != FOREVER and not re.fullmatch(r"\d+[smhd]", text):
        raise UsageError(f"{text!r} is not a time such as 90d", hint=f"a number and d or h, or {FOREVER}")
    return text


def _print_next(file: Path, every: str, *, well: bool) -> None:
    named = "" if str(file) == "maxbrod.yaml" else f" -c {file}"
    follow = {
        f"maxbrod backup{named}": "back up once; the first run archives everything",
        f"maxbrod status{named}": "see whether the archive keeps its promises",
        f"maxbrod backup{named} --follow": f"go on, with a run every {every}",
    }
    if not well:
        follow = {f"maxbrod doctor{named}": "try again, after what FAILED above is mended", **follow}
    print_line("next:")
    width = max(map(len, follow))
    for line, what in follow.items():
        print_line(f"  {line:<{width}}   # {what}")


def help_page(
    page: Annotated[
        str | None, typer.Argument(metavar="PAGE", help="The name of a page; without it, all are listed.")
    ] = None,
) -> None:
    """Print a page of the documentation, or list the pages.

    For example:

      maxbrod help trouble

      maxbrod help howto/topic-is-gone
    """
    if page is None:
        for name, path in load("setup.pages:list_pages")().items():
            print_line(f"{name:<34} {load('setup.pages:title_of')(path)}")
        print_line("'maxbrod help tutorial' is the page to begin with; 'maxbrod VERB --help' has the options of a verb")
        return
    text = load("setup.pages:find_page")(page).read_text(encoding="utf-8")
    if not console.is_terminal:
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        return
    with console.pager(styles=True):
        console.print(Markdown(text))
