"""`maxbrod key`: makes keys, and says who may open an encrypted archive."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from maxbrod.cli.commands import Call, command
from maxbrod.cli.output import out, print_json, print_line, print_marked, table
from maxbrod.cli.verbs import load, looking
from maxbrod.errors import UsageError
from maxbrod.key.options import KeyOptions
from maxbrod.options import ArchiveOptions, JsonOption, LookOptions, StorageOptions
from maxbrod.text import counted, human_time

if TYPE_CHECKING:
    from maxbrod.key.report import CreatedKey, KeysReport

app = typer.Typer(no_args_is_help=True, help="Keys: who may open an encrypted archive.")
_SHARED = (ArchiveOptions, StorageOptions, LookOptions, JsonOption)
_RECIPIENT = ["public_key", "passphrase_file", "kms", "command"]


@app.command()
@command("key", KeyOptions, after=(JsonOption,), without=_RECIPIENT)
def create(call: Call[KeyOptions]) -> None:
    """Make a new key: FILE, which is private, and FILE.pub, with which one can write and read no record.

    Keep a copy of FILE where neither the archive nor this machine can take it along.

    For example:

      maxbrod key create ops.key --label ops

      maxbrod backup -a /backups/kafka --archive-key ops.key.pub
    """
    file = _file(call.options)
    made: CreatedKey = load("key.verb:create_key")(file, call.options)
    if call.as_json:
        print_json(asdict(made))
        return
    if made.public_key is not None:
        print_line(f"key {made.id}: {made.public_key}")
    print_line(f"private: {made.file}    public: {made.public_file}")


@app.command(name="list")
@command("key", KeyOptions, after=_SHARED, without=["name", "label", "signing", *_RECIPIENT])
def list_(call: Call[KeyOptions]) -> None:
    """List who may open an archive, and how its keys were changed."""
    _run(call, "list_keys", call.config)


@app.command()
@command("key", KeyOptions, after=_SHARED, without=["name", "signing"])
def add(call: Call[KeyOptions]) -> None:
    """Let another key open an archive, with all that was written before. In an empty place, begin an encrypted archive.

    For example:

      maxbrod key add -a /backups/kafka --archive-key ops.key --public-key vault.key.pub --label vault
    """
    _run(call, "add_key", call.config, call.options)


@app.command()
@command("key", KeyOptions, after=_SHARED, without=["label", "signing", *_RECIPIENT])
def remove(call: Call[KeyOptions]) -> None:
    """Remove a key. It opens nothing that is written from now on; what was written before, it may have copied."""
    if call.options.name is None:
        raise UsageError("no key is named", hint="see 'maxbrod key list'")
    _run(call, "remove_key", call.config, call.options.name)


@app.command()
@command("key", KeyOptions, after=_SHARED, without=["name", "label", "signing", *_RECIPIENT])
def rotate(call: Call[KeyOptions]) -> None:
    """Make new keys of the archive, for the same holders. No data is rewritten."""
    _run(call, "rotate_keys", call.config)


@app.command()
@command("key", KeyOptions, after=_SHARED, without=["label", "signing", *_RECIPIENT])
def export(call: Call[KeyOptions]) -> None:
    """Copy the document of the archive's keys to FILE. Without the document no key opens the archive; it opens nothing
    by itself.
    """
    _run(call, "export_keys", call.config, _file(call.options))


@app.command(name="import")
@command("key", KeyOptions, after=_SHARED, without=["label", "signing", *_RECIPIENT])
def import_(call: Call[KeyOptions]) -> None:
    """Put a document of keys back into an archive that has lost it. See 'maxbrod key export'."""
    _run(call, "import_keys", call.config, _file(call.options))


def _file(options: KeyOptions) -> Path:
    if options.name is None:
        raise UsageError("no file is named", hint="see --help")
    return Path(options.name)


def _run(call: Call[KeyOptions], function: str, *arguments: Any) -> None:  # noqa: ANN401 - of that function
    with looking(call):
        report: KeysReport = load(f"key.verb:{function}")(*arguments)
    if call.as_json:
        print_json(report.as_dict())
        return
    shown = table("Keys", "*label", "id", "kind", "since", "")
    for known in report.keys:
        shown.add_row(
            known.label, known.id, known.kind, human_time(known.added_at_ms), "at hand" if known.at_hand else ""
        )
    out.print(shown)
    if report.epochs > 1:
        print_line(f"rotated {counted(report.epochs - 1, 'time')}, last at {human_time(report.epoch_since_ms)}")
    for warning in report.warnings:
        print_marked("warning", warning, style="bold yellow")
