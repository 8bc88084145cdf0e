"""The evidence of an archive as one HTML page: what is not known and not tested stands on top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from maxbrod.archive.archive import Proof
from maxbrod.drill.html import trend_section
from maxbrod.page import html_list, html_page, html_pairs, html_signature, html_table, html_time, html_verdict
from maxbrod.text import counted, human_bytes

_ALARMING: Final = frozenset({"damaged", "incomplete", "differs", "failed", "stopped", "never", "none"})
_RUNS_SHOWN: Final = 200


def render_evidence(document: Mapping[str, Any], proofs: Sequence[Proof] = ()) -> str:
    """The page of a signed document, as `report.sign_evidence` makes it, with a trend over the drills."""
    found = document["evidence"]
    return html_page(
        f"Evidence of {found['archive']}",
        f"Evidence of {found['archive']}",
        [
            html_verdict(_words(found), good=not found["not_tested"]),
            _summary(found),
            html_list("Not tested", found["not_tested"]),
            html_list("Not known", found["unknown"]),
            _topics(found),
            _gaps(found),
            _commands(found),
            _drills(found),
            trend_section(proofs),
            _checks(found),
            _copies(found),
            _prunes(found),
            _erasures(found),
            _holds(found),
            _keys(found),
            _runs(found),
            html_signature(document["signature"], "maxbrod evidence verify"),
        ],
    )


def _words(found: Mapping[str, Any]) -> str:
    point = found["recovery_point_ms"]
    until = "there is no recovery point" if point is None else f"everything before {html_time(point)} is archived"
    left = found["not_tested"]
    return f"{counted(len(found['topics']), 'topic')}: {until}; " + (
        f"{counted(len(left), 'thing')} not tested, see below" if left else "drills and deep checks cover it"
    )


def _summary(found: Mapping[str, Any]) -> str:
    since = found["since_ms"]
    signature = found["catalog_signature"]
    if signature is None:
        signed = "no: another tool's layout"
    elif signature["signed"]:
        signed = f"says so, by key {signature['key']}; not verified here"
    else:
        signed = "no"
    return html_pairs(
        [
            ("Archive", found["archive"]),
            ("Id of its catalog", found["archive_id"] or "none"),
            ("Version of its catalog", found["version"]),
            ("Layout", found["layout"]),
            ("Period", f"{'the beginning' if since is None else html_time(since)} to {html_time(found['until_ms'])}"),
            ("Made", f"{html_time(found['made_at_ms'])}, by maxbrod {found['maxbrod']}"),
            ("Partitions behind", f"{found['behind']:,} at the last backup"),
            ("Encrypted by maxbrod", "yes" if found["encrypted"] else "no"),
            ("Catalog signed", signed),
        ]
    )


def _topics(found: Mapping[str, Any]) -> str:
    rows = [
        [
            topic["topic"] + ("" if topic["newest"] else f" (earlier incarnation {topic['topic_id']})"),
            f"{topic['partitions']:,}",
            f"{topic['records']:,}",
            human_bytes(topic["bytes"]),
            _time_or(topic["recovery_point_ms"], "none"),
            ", ".join(f"{count:,} {reason}" for reason, count in topic["gaps"].items()) or "-",
            _time_or(topic["drilled_at_ms"], "never"),
        ]
        for topic in found["topics"]
    ]
    headings = ["topic", ">partitions", ">records", ">stored", "recovery point", "offsets without data", "drilled"]
    return html_table("Coverage", headings, rows, alarming=_ALARMING)


def _gaps(found: Mapping[str, Any]) -> str:
    rows = [
        [
            gap["topic"],
            gap["reason"],
            f"{gap['ranges']:,}",
            f"{gap['offsets']:,}",
            html_time(gap["first_recorded_ms"]),
            html_time(gap["last_recorded_ms"]),
        ]
        for gap in found["gaps"]
    ]
    headings = ["topic", "reason", ">ranges", ">offsets", "first recorded", "last recorded"]
    return html_table("Gaps recorded in this period", headings, rows) if rows else ""


def _commands(found: Mapping[str, Any]) -> str:
    rows = [
        [
            command["command"],
            *(f"{command[name]:,}" for name in ("runs", "succeeded", "failed", "unknown")),
            "-" if command["longest_pause_ms"] is None else f"{command['longest_pause_ms'] / 3_600_000:,.1f} h",
        ]
        for command in found["commands"]
    ]
    headings = ["command", ">runs", ">succeeded", ">failed", ">outcome unknown", ">longest time between successes"]
    return html_table("Runs that changed the archive", headings, rows)


def _drills(found: Mapping[str, Any]) -> str:
    rows = [
        [
            html_time(drill["finished_at_ms"]),
            drill["verdict"],
            f"{_number(drill['partitions'])} of {_number(drill['partitions_known'])}",
            _number(drill["records"]),
            "not measured" if drill["restore_s"] is None else f"{drill['restore_s']:,.1f} s",
        ]
        for drill in found["drills"]
    ]
    headings = ["ended", "verdict", ">partitions", ">records", ">restore took"]
    return html_table("Drills, and the recovery times that they measured", headings, rows, alarming=_ALARMING)


def _checks(found: Mapping[str, Any]) -> str:
    rows = [
        [
            html_time(check["finished_at_ms"]),
            "every byte" if check["kind"] == "deep-check" else "catalog and names of objects",
            check["verdict"],
            "-" if check["share"] is None else f"{check['share']:.1%}",
        ]
        for check in found["checks"]
    ]
    return html_table("Checks", ["ended", "what was read", "verdict", ">share"], rows, alarming=_ALARMING)


def _copies(found: Mapping[str, Any]) -> str:
    rows = [
        [html_time(copy["at_ms"]), copy["target"], _number(copy["version"]), copy["verdict"]]
        for copy in found["copies"]
    ]
    return html_table("Copies", ["ended", "where", ">version", "verdict"], rows, alarming=_ALARMING) if rows else ""


def _prunes(found: Mapping[str, Any]) -> str:
    rows = [
        [
            html_time(prune["at_ms"]),
            prune["run_id"],
            prune["command"],
            *(_number(prune[name]) for name in ("topics", "records", "bytes")),
            "undone" if prune["undone"] else _time_or(prune["undo_until_ms"], "unknown"),
        ]
        for prune in found["prunes"]
    ]
    headings = ["when", "run", "command", ">topics", ">records", ">bytes", "can be undone until"]
    return html_table("Taken away on purpose", headings, rows) if rows else ""


def _erasures(found: Mapping[str, Any]) -> str:
    rows = [
        [
            html_time(erasure["at_ms"]),
            erasure["id"],
            erasure["how"],
            ", ".join(erasure["topics"]),
            _number(erasure["offsets"]),
            "yes" if erasure["finished"] else "never",
        ]
        for erasure in found["erasures"]
    ]
    headings = ["when", "id", "chosen by", "topics", ">records", "ended with a certificate"]
    return html_table("Erasures", headings, rows, alarming=_ALARMING) if rows else ""


def _holds(found: Mapping[str, Any]) -> str:
    rows = [
        [
            html_time(hold["at_ms"]),
            hold["what"],
            hold["who"],
            hold["why"],
            "in force"
            if hold["released_at_ms"] is None
            else f"{html_time(hold['released_at_ms'])} by {hold['released_by']}: {hold['released_why']}",
        ]
        for hold in found["holds"]
    ]
    return html_table("Holds", ["since", "what", "who", "why", "released"], rows) if rows else ""


def _keys(found: Mapping[str, Any]) -> str:
    rows = [
        [
            _time_or(key["at_ms"], "unknown"),
            key["change"] or "unknown",
            key["changed"] or "-",
            ", ".join(key["recipients"]),
        ]
        for key in found["keys"]
    ]
    return html_table("Keys", ["when", "change", "of", "could open it since"], rows) if rows else ""


def _runs(found: Mapping[str, Any]) -> str:
    newest = list(reversed(found["runs"]))
    rows = [
        [
            html_time(run["finished_at_ms"]),
            run["run_id"],
            run["command"] or "unknown",
            "unknown" if run["exit_code"] is None else run["exit_code"],
            *(_number(run[name]) for name in ("topics", "records", "bytes")),
        ]
        for run in newest[:_RUNS_SHOWN]
    ]
    left = len(newest) - len(rows) + found["runs_left_out"]
    above = html_pairs([("Not shown", f"{left:,} earlier runs; the JSON file has the newest 10,000")]) if left else ""
    headings = ["ended", "run", "command", ">exit code", ">topics", ">records", ">bytes"]
    return html_table("The newest runs", headings, rows, above=above)


def _time_or(time_ms: int | None, otherwise: str) -> str:
    return otherwise if time_ms is None else html_time(time_ms)


def _number(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"
