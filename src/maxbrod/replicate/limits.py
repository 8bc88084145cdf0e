"""When egress archives a partition: limits of all topics, and those of topics that have their own. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from maxbrod.backup.plan.roll_limits import RollLimits
from maxbrod.errors import UsageError
from maxbrod.options import parse_bytes, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maxbrod.replicate.options import ReplicateOptions
    from maxbrod.replicate.seed.options import EgressTreeOptions

_FORM: Final = "give TOPIC:records=N,bytes=SIZE,age=TIME, or some of the three"


def limits_of(options: ReplicateOptions | EgressTreeOptions) -> tuple[RollLimits, Mapping[str, RollLimits]]:
    """The limits of all topics, and of those that are named. UsageError: one is wrong, or a topic is named twice."""
    common = RollLimits(bytes=options.roll_bytes, records=options.roll_records, age_ms=round(options.roll_age * 1000))
    found: dict[str, RollLimits] = {}
    for word in options.topic_limits:
        topic, colon, given = word.partition(":")
        if not (topic and colon and given):
            raise UsageError(f"{word!r} is not the limit of a topic", hint=_FORM)
        if topic in found:
            raise UsageError(f"the topic {topic} has limits twice", hint="give them at once, with commas")
        found[topic] = _with(common, word, given)
    return common, found


def _with(limits: RollLimits, word: str, given: str) -> RollLimits:
    for part in given.split(","):
        name, _, value = part.partition("=")
        try:
            match name:
                case "records":
                    limits = replace(limits, records=_positive(int(value)))
                case "bytes":
                    limits = replace(limits, bytes=_positive(int(str(parse_bytes(value)))))
                case "age":
                    # 0: at every interval, as for all topics.
                    limits = replace(limits, age_ms=round(float(str(parse_seconds(value))) * 1000))
                case _:
                    raise ValueError(f"there is no limit {name!r}")
        except ValueError as error:
            raise UsageError(f"{word!r} is not the limit of a topic: {error}", hint=_FORM) from error
    return limits


def _positive(value: int) -> int:
    if value < 1:
        raise ValueError("a limit must be above 0")
    return value
