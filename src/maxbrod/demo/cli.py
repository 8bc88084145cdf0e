"""`maxbrod demo`: backup, loss and restore from start to end, on a temporary cluster."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from maxbrod.backup.cli import print_notices
from maxbrod.cli.output import JsonFlag, err, out, print_json, table
from maxbrod.cli.verbs import load
from maxbrod.errors import IncompleteError, UsageError
from maxbrod.text import human_bytes

if TYPE_CHECKING:
    from maxbrod.demo.mount_story import MountTale, Moved
    from maxbrod.demo.story import Findings, Resumed

SPEED: Final = 8
_WIDTH: Final = 108
_STYLE: Final = (
    "@keyframes appear { from { opacity: 0.35 } to { opacity: 1 } }\n"
    "    @media (prefers-reduced-motion: no-preference) { .later { animation: appear 0.2s linear both } }\n"
)


def demo(
    records: Annotated[int, typer.Option(min=100, help="Approximate number of records to produce.")] = 300_000,
    brokers: Annotated[int, typer.Option(min=1, max=9, help="Number of brokers.")] = 1,
    mount: Annotated[
        bool, typer.Option("--mount", help="Lose the whole cluster, and read on from a mount while it is restored.")
    ] = False,
    record: Annotated[Path | None, typer.Option(help="Draw what is printed as a moving picture: an SVG file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Start a real Kafka cluster, fill it, back it up, delete every topic, restore them, and account for every record.

    A consumer group reads a part of the records before and the rest afterwards, and none twice. With --mount the whole
    cluster is lost, and the group reads on from the archive itself until a new cluster is restored. All of it is in a
    temporary folder, which is removed at the end. The first run downloads Kafka.
    """
    if record is not None:
        with _writable(record):
            record.touch()
    screen = Recording()
    step = partial(_step, screen)
    if mount:
        _report_mount(load("demo.mount_story:tell")(step, records, brokers), screen, as_json=as_json)
    else:
        _report(load("demo.story:tell")(step, records, brokers), screen, as_json=as_json)
    if record is not None:
        screen.save(record, title="maxbrod demo --mount" if mount else "make demo")


@contextmanager
def _step(screen: Recording, name: str) -> Iterator[None]:
    """Print the step and its duration to standard error; standard output is for the result."""
    started = time.monotonic()
    with err.status(f"{name} …"):
        yield
    screen.print(err, Text.assemble(("✓ ", "green"), f"{name} ", (f"{time.monotonic() - started:.1f} s", "dim")))


def _report(findings: Findings[Resumed], screen: Recording, *, as_json: bool) -> None:
    if as_json:
        print_json(_document(findings))
    else:
        screen.print(out, _table(findings))
        group = load("demo.story:GROUP")
        for reader in findings.resumed:
            line = (
                f"{group} had read {reader.before:,} of {reader.topic}, went on at offset {reader.went_on_at:,}, "
                f"and read {reader.after:,} more"
            )
            screen.print(out, Text(line), soft_wrap=True)
        print_notices(findings.run, out)
    _demand_complete(findings)
    if not as_json:
        total = _total(findings)
        text = f": all {total:,} acknowledged records were archived byte for byte, lost, and restored at their offsets"
        screen.print(out, Text.assemble(("complete", "bold green"), text), soft_wrap=True)
        screen.print(out, Text("equal in every field; the group read each record once"))


def _report_mount(tale: MountTale, screen: Recording, *, as_json: bool) -> None:
    findings = tale.findings
    if as_json:
        waits = {"first_record_s": tale.first_record_s, "restored_s": tale.restored_s}
        print_json({**_document(findings), **waits})
    else:
        screen.print(out, _table(findings))
        screen.print(out, _moved(findings))
        print_notices(findings.run, out)
    _demand_complete(findings)
    if not as_json:
        text = (
            f": {tale.first_record_s:.1f} s after the loss of the cluster consumers read on from the archive; "
            f"the restore ended after {tale.restored_s:.1f} s"
        )
        screen.print(out, Text.assemble(("complete", "bold green"), text), soft_wrap=True)
        text = f"all {_total(findings):,} acknowledged records are in the new cluster; the group read each record once"
        screen.print(out, Text(text), soft_wrap=True)


def _document(findings: Findings[Any]) -> dict[str, Any]:
    topics = [{**topic.as_dict(), "restored": findings.restored(topic.inventory.topic)} for topic in findings.archived]
    return {
        "complete": findings.complete,
        "topics": topics,
        "group": [{**asdict(reader), "exact": reader.exact} for reader in findings.resumed],
        "run": findings.run.as_dict(),
        "comparison": findings.compared.as_dict(),
    }


def _demand_complete(findings: Findings[Any]) -> None:
    if not findings.complete:
        what = f"records are missing or not as they were: {', '.join(findings.lacking) or 'see the notices'}"
        raise IncompleteError(what, hint="this is a bug in maxbrod: please report it")


def _total(findings: Findings[Any]) -> int:
    return sum(topic.acknowledged for topic in findings.archived)


def _moved(findings: Findings[Moved]) -> Table:
    """What the group read where."""
    numbers = (">lost cluster", ">mount", ">new cluster", ">together", ">each once")
    shown = table(f"Read by {load('demo.story:GROUP')}", "topic", *numbers)
    for reader in findings.resumed:
        counts = (reader.before, reader.on_mount, reader.after, reader.before + reader.on_mount + reader.after)
        once = "yes" if reader.exact else "no"
        shown.add_row(reader.topic, *(f"{count:,}" for count in counts), once)
    return shown


def _table(findings: Findings[Any]) -> Table:
    numbers = (">parts", ">acknowledged", ">archived", ">aborted", ">log", ">stored", ">restored")
    shown = table("Backed up, lost, restored, compared", "topic", *numbers)
    for topic in findings.archived:
        held = topic.inventory
        counts = (held.partitions, topic.acknowledged, held.records, held.aborted)
        sizes = (held.bytes, topic.stored_bytes)
        back = findings.restored(held.topic)
        shown.add_row(
            held.topic,
            *(f"{count:,}" for count in counts),
            *map(human_bytes, sizes),
            f"{back:,}" if back >= 0 else "differs",
        )
    return shown


class Recording:
    """Prints to a console, and draws what was printed as a picture that plays by itself.

    The picture is one SVG file without scripts, fonts or other files, so that a README can show it. Lines appear in the
    order and in the pace of the run, `SPEED` times as fast. A reader who asked for less motion sees the last state at
    once.
    """

    def __init__(self) -> None:
        self.console: Final = Console(record=True, width=_WIDTH, file=StringIO(), force_terminal=True, emoji=False)
        self._started = time.monotonic()
        self._appeared: list[float] = []

    def print(self, shown: Console, what: RenderableType, **options: Any) -> None:  # noqa: ANN401 - rich's own
        shown.print(what, **options)
        self.console.print(what, **options)
        self.mark()

    def mark(self) -> None:
        """Give the lines that were printed since the last call the current time."""
        lines = self.console.export_text(clear=False).count("\n")
        self._appeared += [time.monotonic() - self._started] * (lines - len(self._appeared))

    def save(self, path: Path, *, title: str) -> None:
        self.mark()
        picture = self.console.export_svg(title=title, theme=DIMMED_MONOKAI)
        # Rich names fonts on the network: the reader's own monospaced font does as well.
        picture = re.sub(r"@font-face \{.*?\n    \}\n", "", picture, flags=re.DOTALL)
        picture = picture.replace("<style>", f"<style>\n    {_STYLE}", 1)
        with _writable(path):
            path.write_text(re.sub(r'<text ([^>]*-line-(\d+)\)")>', self._timed, picture), encoding="utf-8")

    def _timed(self, found: re.Match[str]) -> str:
        """An element of a line, with the class and the delay that let it appear at its time."""
        attributes = re.sub(r'class="([^"]*)"', r'class="\1 later"', found[1], count=1)
        return f'<text {attributes} style="animation-delay: {self._appeared[int(found[2])] / SPEED:.2f}s">'


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "give a file in a folder that exists"
        raise UsageError(f"cannot write {path}: {error.strerror}", hint=hint) from None
