"""`maxbrod evidence`: what an auditor asks of an archive, as one signed document and a page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from maxbrod.cli.commands import Call, command
from maxbrod.cli.output import print_json, print_line
from maxbrod.cli.verbs import at_work, load
from maxbrod.evidence.options import KEY_VARIABLE, EvidenceOptions
from maxbrod.options import PLACE, JsonOption, LookOptions, QuietOption, declared
from maxbrod.text import counted, human_time

if TYPE_CHECKING:
    from maxbrod.evidence.report import EvidenceReport
    from maxbrod.signature import SigningKey

app = typer.Typer(
    invoke_without_command=True,
    no_args_is_help=True,
    help="Gather what an auditor asks of an archive, as one signed document and a page.",
)


@app.callback()
@command("evidence", EvidenceOptions, before=PLACE, after=(LookOptions, QuietOption, JsonOption), has_commands=True)
def evidence(call: Call[EvidenceOptions], context: typer.Context) -> None:
    """Gather what an auditor asks of an archive, as one signed JSON document and an HTML page.

    Coverage of each topic, gaps and their reasons, runs, drills with the recovery times that they measured, checks,
    prunes, erasures, holds and changes of keys; what was not tested, and what is not known. No cluster is contacted,
    no record is read, and nothing of it is secret.

    For example:

      maxbrod evidence s3://backups/kafka --since 2026-01-01T00:00Z --key auditing.key

      maxbrod evidence verify maxbrod-evidence/evidence-20260401T120000.000Z.json --key auditing.key.pub
    """
    if context.invoked_subcommand is not None:
        return
    key = _key(call.options.key) or _key(call.config.storage.signing.key_file)
    with at_work(call, meanwhile="nothing is changed") as work:
        report, proofs = load("evidence.verb:gather_evidence")(work)
    document = load("evidence.report:sign_evidence")(report, key)
    files = load("evidence.report:write_evidence")(document, call.options.report_dir, proofs)
    if call.as_json:
        print_json({**document, "files": [str(path) for path in files]})
    elif not call.quiet:
        _print(report, files, signed=key is not None)


def _print(report: EvidenceReport, files: tuple[Path, Path], *, signed: bool) -> None:
    runs, copies = sum(entry.runs for entry in report.commands), len(report.copies)
    print_line(
        f"{counted(len(report.topics), 'topic')}, {counted(runs, 'run')}, {counted(len(report.drills), 'drill')}, "
        f"{counted(len(report.checks), 'check')}, {copies:,} {'copy' if copies == 1 else 'copies'}, "
        f"{counted(len(report.holds), 'hold')}; "
        f"recovery point: {human_time(report.recovery_point_ms) or 'none'}"
    )
    for line in report.not_tested:
        print_line(f"not tested: {line}")
    for line in report.unknown:
        print_line(f"not known: {line}")
    print_line(f"{'signed' if signed else 'unsigned'} evidence: {', '.join(map(str, files))}")


@app.command()
@command(
    "evidence",
    EvidenceOptions,
    after=(JsonOption,),
    without=[declaration.name for declaration in declared(EvidenceOptions) if declaration.name != "key"],
)
def verify(
    call: Call[EvidenceOptions],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The JSON file.", show_default=False)],
) -> None:
    """Verify that evidence is unchanged since it was made, and that this key signed it. If not, exit with 4.

    The public half of an Ed25519 key is sufficient: bring your own copy of it.
    """
    # cryptography: not for `--help`
    from maxbrod.evidence.report import read_evidence  # noqa: PLC0415
    from maxbrod.signature import UNSIGNED, verify_document  # noqa: PLC0415

    document = read_evidence(file)
    algorithm = verify_document(document, _key(call.options.key), object_name=str(file))
    found, signature = document["evidence"], document["signature"]
    about = {name: found.get(name) for name in ("archive", "archive_id", "since_ms", "until_ms", "made_at_ms")}
    if call.as_json:
        print_json({"verified": True, "signature": signature, **about})
        return
    made = human_time(found["made_at_ms"]) if isinstance(found.get("made_at_ms"), int) else "an unknown time"
    if algorithm == UNSIGNED:
        print_line(f"unsigned, and unchanged: anybody may have written it. Evidence of {found.get('archive')}, {made}")
    else:
        print_line(
            f"signed ({algorithm}, key {signature['key']}) and unchanged. Evidence of {found.get('archive')}, {made}"
        )


def _key(path: Path | None) -> SigningKey | None:
    from maxbrod.signature import parse_key, read_key  # noqa: PLC0415 - as above

    if path is not None:
        return read_key(path)
    text = os.environ.get(KEY_VARIABLE)
    return parse_key(text.encode(), name=f"${KEY_VARIABLE}") if text else None
