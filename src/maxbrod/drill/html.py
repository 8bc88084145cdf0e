"""A drill's report as one HTML page: verdict first, no external resources, printable, all text escaped."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from html import escape
from typing import TYPE_CHECKING, Any, Final

from maxbrod.drill.trend import trend_section
from maxbrod.errors import EXIT_DONE
from maxbrod.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from maxbrod.archive.proofs import Proof

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ROWS_MAX: Final = 5000
_WORDS: Final = {
    "proven": "Proven: what was restored equals the archive, record by record",
    "differs": "Not proven: what was restored differs from the archive",
    "failed": "Not proven: the drill could not be carried out",
    "stopped": "Not proven: the drill was stopped",
}
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.3rem } h2 { font-size: 1.05rem; margin-top: 2rem }
.verdict { padding: 1rem 1.2rem; border-radius: .4rem; border: 2px solid; font-size: 1.2rem; font-weight: 600 }
.good { color: #14532d; border-color: #15803d; background: #f0fdf4 }
.bad { color: #7f1d1d; border-color: #b91c1c; background: #fef2f2 }
table { border-collapse: collapse; width: 100%; font-size: .9rem }
th, td { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid #ddd; vertical-align: top }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
td.no { color: #b91c1c; font-weight: 600 }
code { font: .85em ui-monospace, monospace; word-break: break-all }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.2rem } dt { color: #555 } dd { margin: 0 }
footer { margin-top: 2rem; color: #555; font-size: .85rem }
@media print { body { margin: 0; max-width: none; font-size: 11px } tr { break-inside: avoid } }
@media print { thead { display: table-header-group } }
"""


def render(document: Mapping[str, Any], proofs: Sequence[Proof] = ()) -> str:
    """The page of a signed document, as `report.sign_report` makes it, with a trend over the archive's drills."""
    report, signature = document["report"], document["signature"]
    verdict = str(report["verdict"])
    good = report["exit_code"] == EXIT_DONE
    parts = [
        f'<p class="verdict {"good" if good else "bad"}">{_text(_words(report))}</p>',
        _summary(report),
        _error(report),
        _failures(report),
        _differences(report),
        _partitions(report),
        _coverage(report),
        _lists(report),
        trend_section(proofs),
        _footer(signature),
    ]
    title = f"Restore drill {report['drill_id']}: {verdict}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>Restore drill {_text(report['drill_id'])}</h1>\n{''.join(parts)}</body>\n</html>\n"
    )


def _words(report: Mapping[str, Any]) -> str:
    verdict = str(report["verdict"])
    words = _WORDS.get(verdict, verdict)
    if report["lacking"] and verdict == "proven":
        words += f", but for {counted(report['lacking'], 'range')} of offsets that the archive lacks"
    if report["remains"]:
        words += "; topics of the drill could not be removed"
    return words


def _summary(report: Mapping[str, Any]) -> str:
    took_s = (report["finished_at_ms"] - report["started_at_ms"]) / 1000
    seed = "" if report["seed"] is None else f", drawn with seed {report['seed']}"
    drawn = f"{report['sample']}: {len(report['covered'])} of {counted(report['partitions_known'], 'partition')}{seed}"
    return _pairs(
        [
            ("Archive", report["archive"]),
            ("As of run", report["run_id"] or "unknown"),
            ("Restored into", f"{report['cluster']} (cluster {report['cluster_id'] or 'unknown'})"),
            ("Sample", drawn),
            ("Records compared", f"{report['records']:,}"),
            ("Began", _time(report["started_at_ms"])),
            ("Took", f"{took_s:,.1f} s ({', '.join(_duration(item) for item in report['durations_s'].items())})"),
            ("Versions", ", ".join(f"{name} {version}" for name, version in report["versions"].items())),
        ]
    )


def _duration(each: tuple[str, float]) -> str:
    return f"{each[0]} {each[1]:,.1f} s"


def _error(report: Mapping[str, Any]) -> str:
    error = report["error"]
    if error is None:
        return ""
    named = ("where", "message", "object_name", "offset", "hint")
    rows = [(name, error[name]) for name in named if error.get(name) is not None]
    return f"<h2>What went wrong</h2>{_pairs(rows)}"


def _failures(report: Mapping[str, Any]) -> str:
    if not report["failures"]:
        return ""
    rows = [
        [
            *("" if each.get(name) is None else each[name] for name in ("where", "offset")),
            f"{each['error']}: {each['message']}",
            each.get("object_name") or "",
        ]
        for each in report["failures"]
    ]
    return _table("What failed", ["partition", ">at offset", "error", "object"], rows)


def _differences(report: Mapping[str, Any]) -> str:
    found = [] if report["comparison"] is None else report["comparison"]["differences"]
    if not found:
        return ""
    rows = [
        [
            f"{each['source_topic']}-{each['partition']}",
            _offset(each["source_offset"]),
            _offset(each["target_offset"]),
            each["field"],
            each["source"],
            each["target"],
        ]
        for each in found
    ]
    return _table(
        "The first differences", ["partition", ">archive", ">restored", "field", "archive has", "restored is"], rows
    )


def _partitions(report: Mapping[str, Any]) -> str:
    if report["comparison"] is None:
        return ""
    rows = []
    for each in report["comparison"]["partitions"]:
        name = each["source_topic"] if each["partition"] < 0 else f"{each['source_topic']}-{each['partition']}"
        verdict = "equal" if each["equal"] else "not read" if each["failure"] else "differs"
        records = (f"{each['source_records']:,}", f"{each['target_records']:,}")
        rows.append([name, each["match"], *records, each["source_digest"], verdict, "; ".join(each["notes"])])
    headings = ["partition", "how", ">archive", ">restored", "digest of the archive", "verdict", "notes"]
    return _table("Partitions", headings, rows)


def _coverage(report: Mapping[str, Any]) -> str:
    rows = [
        [
            f"{each['topic']}-{each['partition']}",
            f"{each['first_offset']:,}",
            f"{each['end_offset']:,}",
            ", ".join(f"{count:,} {reason}" for reason, count in each["gaps"].items()) or "none",
            counted(each["lacking"], "range") if each["lacking"] else "none",
            each["outcome"],
        ]
        for each in report["covered"]
    ]
    headings = [
        "partition",
        ">from offset",
        ">to offset",
        "explained gaps (offsets)",
        "known to be lacking",
        "came back",
    ]
    return _table("What the archive says it covers", headings, rows)


def _lists(report: Mapping[str, Any]) -> str:
    restore = report["restore"] or {}
    shown = (
        ("Warnings of the restore", restore.get("warnings", ())),
        ("Leftovers of earlier drills that were removed", report["leftovers"]),
        ("Topics that could not be removed: delete them by hand", report["remains"]),
    )
    return "".join(
        f"<h2>{_text(title)}</h2><ul>{''.join(f'<li>{_text(item)}</li>' for item in items)}</ul>"
        for title, items in shown
        if items
    )


def _footer(signature: Mapping[str, Any]) -> str:
    if signature["key"] is None:
        how = "unsigned; SHA-256 of the report"
    else:
        how = f"{signature['algorithm']}, key {signature['key']}"
    return (
        f"<footer><p>{_text(how)}: <code>{_text(signature['value'])}</code></p>"
        "<p>The JSON file beside this page is what is signed: <code>maxbrod drill verify</code> checks it.</p></footer>"
    )


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    classes = ["n" if heading.startswith(">") else "" for heading in headings]
    head = "".join(
        f'<th class="{kind}">{_text(each.lstrip(">"))}</th>' for kind, each in zip(classes, headings, strict=True)
    )
    body = "".join(
        f"<tr>{''.join(_cell(each, kind) for kind, each in zip(classes, row, strict=True))}</tr>\n"
        for row in rows[:_ROWS_MAX]
    )
    more = f"<p>and {len(rows) - _ROWS_MAX:,} more; the JSON file has all</p>" if len(rows) > _ROWS_MAX else ""
    return f"<h2>{_text(title)}</h2><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>{more}"


def _cell(value: object, kind: str) -> str:
    kind = "no" if value in {"differs", "not read", "failed", "not compared"} else kind
    return f'<td class="{kind}">{_text(value)}</td>'


def _pairs(rows: Iterable[tuple[str, object]]) -> str:
    return f"<dl>{''.join(f'<dt>{_text(name)}</dt><dd>{_text(value)}</dd>' for name, value in rows)}</dl>\n"


def _offset(value: int | None) -> str:
    return "none" if value is None else str(value)


def _time(timestamp_ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=timestamp_ms)).strftime("%Y-%m-%d %H:%M:%S UTC")


def _text(value: object) -> str:
    """Escaped text, with a replacement for each control character."""
    return escape("".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in str(value)))
