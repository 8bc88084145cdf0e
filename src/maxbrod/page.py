"""One HTML page of a report: no script, no external resources, printable, all text escaped."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Any, Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ROWS_MAX: Final = 5000
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


def html_page(title: str, heading: str, parts: Iterable[str]) -> str:
    """A whole page; `parts` are HTML."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{html_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{html_text(heading)}</h1>\n{''.join(parts)}</body>\n</html>\n"
    )


def html_verdict(words: str, *, good: bool) -> str:
    """The line at the top."""
    return f'<p class="verdict {"good" if good else "bad"}">{html_text(words)}</p>'


def html_table(
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    above: str = "",
    alarming: Collection[object] = (),
) -> str:
    """A table under its title. A heading that begins with `>` is that of numbers; `alarming` values stand out."""
    classes = ["n" if heading.startswith(">") else "" for heading in headings]
    head = "".join(
        f'<th class="{kind}">{html_text(name.lstrip(">"))}</th>' for kind, name in zip(classes, headings, strict=True)
    )
    body = "".join(
        f"<tr>{''.join(_cell(value, kind, alarming) for kind, value in zip(classes, row, strict=True))}</tr>\n"
        for row in rows[:_ROWS_MAX]
    )
    more = f"<p>and {len(rows) - _ROWS_MAX:,} more; the JSON file has all</p>" if len(rows) > _ROWS_MAX else ""
    return (
        f"<h2>{html_text(title)}</h2>{above}<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>{more}"
    )


def _cell(value: object, kind: str, alarming: Collection[object]) -> str:
    return f'<td class="{"no" if value in alarming else kind}">{html_text(value)}</td>'


def html_pairs(rows: Iterable[tuple[str, object]]) -> str:
    """Names and their values."""
    return f"<dl>{''.join(f'<dt>{html_text(name)}</dt><dd>{html_text(value)}</dd>' for name, value in rows)}</dl>\n"


def html_list(title: str, items: Sequence[object]) -> str:
    """A list under its title; nothing if it is empty."""
    if not items:
        return ""
    return f"<h2>{html_text(title)}</h2><ul>{''.join(f'<li>{html_text(item)}</li>' for item in items)}</ul>"


def html_signature(signature: Mapping[str, Any], command: str) -> str:
    """The end of the page: who signed the document, and the `command` that verifies it."""
    if signature["key"] is None:
        how = "unsigned; SHA-256 of the report"
    else:
        how = f"{signature['algorithm']}, key {signature['key']}"
    return (
        f"<footer><p>{html_text(how)}: <code>{html_text(signature['value'])}</code></p>"
        f"<p>The JSON file beside this page is what is signed: <code>{html_text(command)}</code> checks it.</p>"
        "</footer>"
    )


def html_time(timestamp_ms: int, *, seconds: bool = True) -> str:
    """A time as text. One that no calendar has stays a number: whoever wrote it may have written anything."""
    form = "%Y-%m-%d %H:%M:%S UTC" if seconds else "%Y-%m-%d %H:%M"
    try:
        return (_EPOCH + timedelta(milliseconds=timestamp_ms)).strftime(form)
    except OverflowError:
        return f"{timestamp_ms} ms since 1970"


def html_text(value: object) -> str:
    """Escaped text, with a replacement for each control character."""
    return escape("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(value)))
