"""A transformation and its changes, printed for a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from maxbrod.cli.output import out, print_line, table
from maxbrod.text import counted
from maxbrod.transform.plan import FIELDS, Changes, TransformPlan

LINES_SHOWN_MAX: Final = 60


def print_transform(transform: TransformPlan | None) -> None:
    """Print the expressions, and the changes once it has run."""
    if transform is None:
        return
    if transform.where is not None:
        print_line(f"only records where {transform.where}")
    if transform.select is not None:
        print_line(f"rewritten: {', '.join(transform.fields)}, as {transform.select}")
    if not transform.topics:
        print_line(f"records are staged in {transform.staging}; counts and offsets are planned again from the result")
        return
    print_changes(transform.topics)


def print_changes(topics: Sequence[Changes]) -> None:
    shown = table("Transformed", "*topic", ">read", ">kept", ">dropped", *(f">{name} changed" for name in FIELDS))
    for topic in topics[:LINES_SHOWN_MAX]:
        changed = (topic.changed.get(name, 0) for name in FIELDS)
        shown.add_row(topic.topic, *(f"{count:,}" for count in (topic.read, topic.kept, topic.dropped, *changed)))
    out.print(shown)
    if len(topics) > LINES_SHOWN_MAX:
        print_line(f"and {counted(len(topics) - LINES_SHOWN_MAX, 'more topic')}; --json shows all")
