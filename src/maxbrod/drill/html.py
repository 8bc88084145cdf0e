"""A drill's report as one HTML page, the verdict first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from maxbrod.archive.archive import Proof, ProofKind
from maxbrod.errors import EXIT_DONE
from maxbrod.page import (
    html_list,
    html_page,
    html_pairs,
    html_signature,
    html_table,
    html_time,
    html_verdict,
)
from maxbrod.text import counted

_ALARMING: Final = frozenset({"differs", "not read", "failed", "not compared"})
_WORDS: Final = {
    "proven": "Proven: what was restored equals the archive, record by record",
    "differs": "Not proven: what was restored differs from the archive",
    "failed": "Not proven: the drill could not be carried out",
    "stopped": "Not proven: the drill was stopped",
}
_SCHEMAS_LACK: Final = "Not proven: restored records need schemas that were not captured"
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
    return html_page(
        f"Restore drill {report['drill_id']}: {verdict}",
        f"Restore drill {report['drill_id']}",
        [
            html_verdict(_words(report), good=good),
            _summary(report),
            _error(report),
            _failures(report),
            _differences(report),
            _partitions(report),
            _coverage(report),
            _schemas(report),
            _lists(report),
            trend_section(proofs),
            html_signature(signature, "maxbrod drill verify"),
        ],
    )


def _words(report: Mapping[str, Any]) -> str:
    verdict = str(report["verdict"])
    words = _WORDS.get(verdict, verdict)
    if verdict == "differs" and report["comparison"] and report["comparison"]["equal"]:
        words = _SCHEMAS_LACK
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
    return html_pairs(
        [
            ("Archive", report["archive"]),
            ("As of run", report["run_id"] or "unknown"),
            ("Restored into", f"{report['cluster']} (cluster {report['cluster_id'] or 'unknown'})"),
            ("Sample", drawn),
            ("Records compared", f"{report['records']:,}"),
            ("Began", html_time(report["started_at_ms"])),
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
    return f"<h2>What went wrong</h2>{html_pairs(rows)}"


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
    return html_table("What failed", ["partition", ">at offset", "error", "object"], rows)


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
    return html_table(
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
    return html_table("Partitions", headings, rows, alarming=_ALARMING)


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
    return html_table("What the archive says it covers", headings, rows, alarming=_ALARMING)


def _schemas(report: Mapping[str, Any]) -> str:
    """The captured registry: what of it was tested, and what not."""
    schemas = report.get("schemas")
    if schemas is None:
        return "<h2>Schema registry</h2><p>Not tested: no registry was captured, or the drill did not come so far.</p>"
    versions, subjects = counted(schemas["versions"], "version"), counted(schemas["subjects"], "subject")
    looked = counted(schemas["records"], "restored record")
    rows = [
        ("Captured from", f"{schemas['url']}, {html_time(schemas['taken_at_ms'])}, by run {schemas['captured_run']}"),
        ("Read", f"{versions} of {subjects}"),
        ("Schema ids found", f"{schemas['found']:,}, in {looked} of {counted(schemas['partitions'], 'partition')}"),
    ]
    if schemas["imported_into"] is not None:
        imported = counted(schemas["imported"], "version")
        rows.append(("Imported", f"{imported} into {schemas['imported_into']}, with the same ids, and deleted again"))
    rows.append(("Not tested", "; ".join(schemas["untested"])))
    unknown = [
        [f"{one['topic']}-{one['partition']}", one["offset"], one["part"], one["schema"]] for one in schemas["unknown"]
    ]
    headings = ["partition", ">first offset", "part", "schema id or GUID"]
    tables = html_table("Schemas that were not captured", headings, unknown) if unknown else ""
    if schemas["unresolved"]:
        tables += html_table("References that lead nowhere", ["version"], [[one] for one in schemas["unresolved"]])
    return f"<h2>Schema registry</h2>{html_pairs(rows)}{tables}"


def _lists(report: Mapping[str, Any]) -> str:
    restore = report["restore"] or {}
    shown = (
        ("Warnings of the restore", restore.get("warnings", ())),
        ("Leftovers of earlier drills that were removed", report["leftovers"]),
        ("Topics that could not be removed: delete them by hand", report["remains"]),
    )
    return "".join(html_list(title, items) for title, items in shown)


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
    return html_table(
        TITLE, TREND_HEADINGS, [trend_cells(drill) for drill in reversed(drills)], above=picture, alarming=_ALARMING
    )


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
        f'<text x="{_LEFT}" y="{bottom + 18}">{html_time(first, seconds=False)}</text>'
        f'<text x="{_WIDTH - _RIGHT}" y="{bottom + 18}" text-anchor="end">{html_time(last, seconds=False)}</text>'
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
    ended = html_time(proof.finished_at_ms, seconds=False)
    told = f"<title>{escape(proof.verdict)}, {ended}: {speed:,.0f} records per second</title>"
    if proof.sound:
        return f'<circle cx="{x}" cy="{y}" r="4" fill="{_GOOD}">{told}</circle>'
    return f'<rect x="{x - 4}" y="{y - 4}" width="8" height="8" fill="{_BAD}">{told}</rect>'


def trend_cells(proof: Proof) -> list[str]:
    """One drill as a line under `TREND_HEADINGS`."""
    details, speed = proof.details, speed_of(proof)
    tried, known = details.get("partitions"), details.get("partitions_known")
    records, took = details.get("records"), details.get("restore_s")
    return [
        html_time(proof.finished_at_ms, seconds=False),
        proof.verdict,
        f"{tried:,} of {known:,}" if isinstance(tried, int) and isinstance(known, int) else "unknown",
        f"{records:,}" if isinstance(records, int) else "none",
        f"{took:,.1f} s" if isinstance(took, int | float) else "not measured",
        "not measured" if speed is None else f"{speed:,.0f}",
    ]
