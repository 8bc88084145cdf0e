"""The drills of an archive over time, as a section of the page: a picture and a table.

Samples differ in size, so what is compared is the speed: records restored in a second. What a drill did not measure is
not drawn, and a drill that proved nothing is drawn in another colour and with another mark.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from html import escape
from typing import TYPE_CHECKING, Final

from maxbrod.archive.proofs import Proof, ProofKind

if TYPE_CHECKING:
    from collections.abc import Sequence

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WIDTH, _HEIGHT = 760, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 20, 40, 56
_GOOD, _BAD = "#15803d", "#b91c1c"
TITLE: Final = "Drills of this archive"


def trend_section(proofs: Sequence[Proof]) -> str:
    """HTML; empty if no drill is recorded."""
    drills = sorted((proof for proof in proofs if proof.kind is ProofKind.DRILL), key=lambda each: each.finished_at_ms)
    if not drills:
        return ""
    measured = [(drill, speed) for drill in drills if (speed := speed_of(drill)) is not None]
    picture = _picture(measured) if len(measured) > 1 else "<p>A trend needs two drills that restored records.</p>"
    return f"<h2>{TITLE}</h2>{picture}{_table(drills)}"


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
    marks = "".join(_mark(*point) for point in points)
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


def _mark(x: float, y: float, proof: Proof, speed: float) -> str:
    told = f"<title>{escape(proof.verdict)}, {_day(proof.finished_at_ms)}: {speed:,.0f} records per second</title>"
    if proof.sound:
        return f'<circle cx="{x}" cy="{y}" r="4" fill="{_GOOD}">{told}</circle>'
    return f'<rect x="{x - 4}" y="{y - 4}" width="8" height="8" fill="{_BAD}">{told}</rect>'


def _table(drills: Sequence[Proof]) -> str:
    headings = ("ended", "verdict", ">partitions", ">records", ">restore", ">records/s")
    head = "".join(f"<th{_number(heading)}>{heading.lstrip('>')}</th>" for heading in headings)
    rows = "".join(f"<tr>{_row(drill)}</tr>\n" for drill in reversed(drills))
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table>"


def _row(proof: Proof) -> str:
    details, speed = proof.details, speed_of(proof)
    tried, known = details.get("partitions"), details.get("partitions_known")
    records, took = details.get("records"), details.get("restore_s")
    cells = (
        ("", _day(proof.finished_at_ms)),
        ("" if proof.sound else ' class="no"', escape(proof.verdict)),
        (_number(">"), f"{tried:,} of {known:,}" if isinstance(tried, int) and isinstance(known, int) else "unknown"),
        (_number(">"), f"{records:,}" if isinstance(records, int) else "none"),
        (_number(">"), f"{took:,.1f} s" if isinstance(took, int | float) else "not measured"),
        (_number(">"), "not measured" if speed is None else f"{speed:,.0f}"),
    )
    return "".join(f"<td{kind}>{text}</td>" for kind, text in cells)


def _number(heading: str) -> str:
    return ' class="n"' if heading.startswith(">") else ""


def _day(timestamp_ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=timestamp_ms)).strftime("%Y-%m-%d %H:%M")
