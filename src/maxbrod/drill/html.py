"""A drill's report as one HTML page: verdict first, no external resources, printable, all text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Any, Final

from maxbrod.archive.archive import Proof, ProofKind
from maxbrod.errors import EXIT_DONE
from maxbrod.text import counted

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

_WIDTH, _HEIGHT = 760, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 20, 40, 56
_GOOD, _BAD = "#15803d", "#b91c1c"
TITLE: Final = "Drills of this archive"
TREND_HEADINGS: Final = ("ended", "verdict", ">partitions", ">records", ">restore", ">records/s")


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
    took = [f"{name} {seconds:,.1f} s" for name, seconds in report["durations_s"].items()]
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
            ("Took", f"{took_s:,.1f} s ({', '.join(took)})"),
            ("Versions", ", ".join(f"{name} {version}" for name, version in report["versions"].items())),
        ]
    )


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
            *("" if failure.get(name) is None else failure[name] for name in ("where", "offset")),
            f"{failure['error']}: {failure['message']}",
            failure.get("object_name") or "",
        ]
        for failure in report["failures"]
    ]
    return _table("What failed", ["partition", ">at offset", "error", "object"], rows)


def _differences(report: Mapping[str, Any]) -> str:
    found = [] if report["comparison"] is None else report["comparison"]["differences"]
    if not found:
        return ""
    rows = [
        [
            f"{difference['source_topic']}-{difference['partition']}",
            *("none" if difference[name] is None else difference[name] for name in ("source_offset", "target_offset")),
            *(difference[name] for name in ("field", "source", "target")),
        ]
        for difference in found
    ]
    return _table(
        "The first differences", ["partition", ">archive", ">restored", "field", "archive has", "restored is"], rows
    )


def _partitions(report: Mapping[str, Any]) -> str:
    if report["comparison"] is None:
        return ""
    rows = []
    for partition in report["comparison"]["partitions"]:
        name = (
            partition["source_topic"]
            if partition["partition"] < 0
            else f"{partition['source_topic']}-{partition['partition']}"
        )
        verdict = "equal" if partition["equal"] else "not read" if partition["failure"] else "differs"
        records = (f"{partition['source_records']:,}", f"{partition['target_records']:,}")
        rows.append(
            [name, partition["match"], *records, partition["source_digest"], verdict, "; ".join(partition["notes"])]
        )
    headings = ["partition", "how", ">archive", ">restored", "digest of the archive", "verdict", "notes"]
    return _table("Partitions", headings, rows)


def _coverage(report: Mapping[str, Any]) -> str:
    rows = [
        [
            f"{partition['topic']}-{partition['partition']}",
            f"{partition['first_offset']:,}",
            f"{partition['end_offset']:,}",
            ", ".join(f"{count:,} {reason}" for reason, count in partition["gaps"].items()) or "none",
            counted(partition["lacking"], "range") if partition["lacking"] else "none",
            partition["outcome"],
        ]
        for partition in report["covered"]
    ]
    headings = ["partition", ">from offset", ">to offset", "explained gaps (offsets)"]
    headings += ["known to be lacking", "came back"]
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


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[object]], *, above: str = "") -> str:
    classes = ["n" if heading.startswith(">") else "" for heading in headings]
    head = "".join(
        f'<th class="{kind}">{_text(title.lstrip(">"))}</th>' for kind, title in zip(classes, headings, strict=True)
    )
    body = "".join(
        f"<tr>{''.join(_cell(value, kind) for kind, value in zip(classes, row, strict=True))}</tr>\n"
        for row in rows[:_ROWS_MAX]
    )
    more = f"<p>and {len(rows) - _ROWS_MAX:,} more; the JSON file has all</p>" if len(rows) > _ROWS_MAX else ""
    return f"<h2>{_text(title)}</h2>{above}<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>{more}"


def _cell(value: object, kind: str) -> str:
    kind = "no" if value in {"differs", "not read", "failed", "not compared"} else kind
    return f'<td class="{kind}">{_text(value)}</td>'


def _pairs(rows: Iterable[tuple[str, object]]) -> str:
    return f"<dl>{''.join(f'<dt>{_text(name)}</dt><dd>{_text(value)}</dd>' for name, value in rows)}</dl>\n"


def _time(timestamp_ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=timestamp_ms)).strftime("%Y-%m-%d %H:%M:%S UTC")


def _text(value: object) -> str:
    """Escaped text, with a replacement for each control character."""
    return escape("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(value)))


def trend_section(proofs: Sequence[Proof]) -> str:
    """The drills of an archive over time, a picture and a table, as HTML; empty if no drill is recorded.

    Samples differ in size, so what is compared is the speed: records restored in a second. What a drill did not measure
    is not drawn, and a drill that proved nothing is drawn in another colour and with another mark.
    """
    drills = sorted(
        (proof for proof in proofs if proof.kind is ProofKind.DRILL), key=lambda proof: proof.finished_at_ms
    )
    if not drills:
        return ""
    measured = [(drill, speed) for drill in drills if (speed := speed_of(drill)) is not None]
    picture = _picture(measured) if len(measured) > 1 else "<p>A trend needs two drills that restored records.</p>"
    return _table(TITLE, TREND_HEADINGS, [trend_cells(drill) for drill in reversed(drills)], above=picture)


def speed_of(proof: Proof) -> float | None:
    """Records restored in a second; None if the drill did not measure it."""
    records, took = proof.details.get("records"), proof.details.get("restore_s")
    if not isinstance(records, int) or not isinstance(took, int | float) or records <= 0 or took <= 0:
        return None
    return records / took


def _picture(measured: Sequence[tuple[Proof, float]]) -> str:
    first, last = measured[0][0].finished_at_ms, measured[-1][0].finished_at_ms
    top = max(speed for _, speed in measured) * 1.1
    across, up = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(proof: Proof, speed: float) -> tuple[float, float]:
        x = _LEFT + across * ((proof.finished_at_ms - first) / max(last - first, 1))
        return round(x, 1), round(_TOP + up * (1 - speed / top), 1)

    points = [(*place(proof, speed), proof, speed) for proof, speed in measured]
    line = " ".join(f"{x},{y}" for x, y, _, _ in points)
    grid = "".join(_grid_line(top * part / 4, _TOP + up * (1 - part / 4)) for part in range(5))
    marks = "".join(_trend_mark(*point) for point in points)
    bottom, middle = _HEIGHT - _BOTTOM, _LEFT + across / 2
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="trend-title" '
        'xmlns="http://www.w3.org/2000/svg" style="width:100%;height:auto;font:12px system-ui,sans-serif">'
        '<title id="trend-title">Speed of the restores in drills of this archive</title>'
        f'<text x="{middle}" y="18" text-anchor="middle" font-weight="600">Speed of the restores in drills</text>'
        f"{grid}"
        f'<polyline points="{line}" fill="none" stroke="#555" stroke-width="1.5"/>{marks}'
        f'<text x="{_LEFT}" y="{bottom + 18}">{_day(first)}</text>'
        f'<text x="{_WIDTH - _RIGHT}" y="{bottom + 18}" text-anchor="end">{_day(last)}</text>'
        f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">end of the drill (UTC)</text>'
        f'<text x="14" y="{_TOP + up / 2}" text-anchor="middle" transform="rotate(-90 14 {_TOP + up / 2})">'
        "records per second</text></svg>"
    )


def _grid_line(value: float, y: float) -> str:
    return (
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:,.0f}</text>'
    )


def _trend_mark(x: float, y: float, proof: Proof, speed: float) -> str:
    told = f"<title>{escape(proof.verdict)}, {_day(proof.finished_at_ms)}: {speed:,.0f} records per second</title>"
    if proof.sound:
        return f'<circle cx="{x}" cy="{y}" r="4" fill="{_GOOD}">{told}</circle>'
    return f'<rect x="{x - 4}" y="{y - 4}" width="8" height="8" fill="{_BAD}">{told}</rect>'


def trend_cells(proof: Proof) -> list[str]:
    """One drill as a line under `TREND_HEADINGS`."""
    details, speed = proof.details, speed_of(proof)
    tried, known = details.get("partitions"), details.get("partitions_known")
    records, took = details.get("records"), details.get("restore_s")
    return [
        _day(proof.finished_at_ms),
        proof.verdict,
        f"{tried:,} of {known:,}" if isinstance(tried, int) and isinstance(known, int) else "unknown",
        f"{records:,}" if isinstance(records, int) else "none",
        f"{took:,.1f} s" if isinstance(took, int | float) else "not measured",
        "not measured" if speed is None else f"{speed:,.0f}",
    ]


def _day(timestamp_ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=timestamp_ms)).strftime("%Y-%m-%d %H:%M")
