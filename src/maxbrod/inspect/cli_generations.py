"""A generation of a compacted topic in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.text import counted, human_time

if TYPE_CHECKING:
    from maxbrod.inspect.generations import GenerationSummary


def describe_generation(generation: GenerationSummary) -> str:
    each = generation
    name = f"generation {each.number} {each.stage}"
    began = f"begun {human_time(each.began_at)}"
    match each.stage:
        case "building":
            read = sum(min(end, each.targets.get(partition, 0)) for partition, end in each.read.items())
            return f"{name}: {began}, read to {read:,} of {counted(sum(each.targets.values()), 'offset')}"
        case "active":
            offsets = counted(sum(each.log_ends.values()), "offset")
            return f"{name}: {began}, complete {human_time(each.activated_at)} at {offsets}"
        case "retired":
            return f"{name}: {began}, until {human_time(each.ended_at)}"
        case _:
            return f"{name} {human_time(each.ended_at)}: {each.why}"
