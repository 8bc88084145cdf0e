"""The topics that an ingress follows, and where their records go. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from maxbrod.replicate.seed.options import IngressTreeOptions


@dataclass(frozen=True, slots=True)
class SourceTopic:
    region: str
    topic: str


def sources_of(options: IngressTreeOptions) -> dict[SourceTopic, str]:
    """The destination topic of each source. UsageError: one is wrong, or two are the same."""
    found: dict[SourceTopic, str] = {}
    for word in options.sources:
        named, _, destination = word.partition("=")
        region, slash, topic = named.partition("/")
        if not (region and slash and topic) or "/" in topic:
            raise UsageError(f"the source {word!r} is not of the form REGION/TOPIC or REGION/TOPIC=DESTINATION")
        if region == options.local_region:
            raise UsageError(f"the source {word!r} is of the local region", hint="it would replicate in a circle")
        source = SourceTopic(region, topic)
        if source in found:
            raise UsageError(f"the source {named} is given twice")
        try:
            found[source] = destination or options.destination.format(region=region, topic=topic)
        except (KeyError, IndexError, ValueError) as error:
            raise UsageError(
                f"{options.destination!r} cannot be the name of destination topics",
                hint="{region} and {topic} are known",
            ) from error
    if not found:
        raise UsageError("no source is named", hint="give --source REGION/TOPIC")
    return found
