"""What layouts without metadata of their own cannot hold: groups, topics, the cluster, the offsets of the segments.

One object of ours beside the segments, `maxbrod.json`, which no other tool opens. A JSON object, every field optional
but the first: `version` 1, `layout`, `cluster_id`, `taken_at_ms`, `topics` by name (`partition_count`,
`replication_factor`, `configs`), `groups` by id (topic, partition as text, next offset), `log_ends` of the source at
that time by topic, partition, `offsets` by topic, partition (see `layouts.coverage`). Without it every record can still
be read, but missing records cannot be detected.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from maxbrod import strict_json
from maxbrod.errors import CorruptDataError, ObjectNotFoundError, UnsupportedFormatError, naming
from maxbrod.layouts.coverage import Coverage, decode_coverage, encode_coverage, without_segments
from maxbrod.layouts.documents import INT64_MAX, by_topic
from maxbrod.layouts.foreign import ClusterFacts, Fault, ForeignGroup, ForeignTopic, Survey
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from maxbrod.storage.interface import Storage

PATH: Final = "maxbrod.json"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    cluster_id: str | None = None
    taken_at_ms: int | None = None
    topics: Mapping[str, ForeignTopic] = field(default_factory=dict)
    groups: tuple[ForeignGroup, ...] = ()
    log_ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    coverage: Mapping[TopicPartition, Coverage] = field(default_factory=dict)


def is_published(storage: Storage, layout: str) -> bool:
    """Whether the object exists and is of this layout: an archive of empty topics has nothing else."""
    try:
        return bool(strict_json.parse(storage.get(PATH))["layout"] == layout)
    except (ObjectNotFoundError, ValueError, KeyError, TypeError, CorruptDataError):
        return False


def surveyed_facts(storage: Storage, faults: list[Fault]) -> Facts:
    """The facts; if the object is damaged, no facts and a fault."""
    try:
        return read_facts(storage)
    except (CorruptDataError, UnsupportedFormatError) as error:
        faults.append(Fault(path=PATH, message=error.message))
        return Facts()


def read_facts(storage: Storage) -> Facts:
    """CorruptDataError, UnsupportedFormatError: the object is damaged, or of a later version."""
    try:
        text = bytes(storage.get(PATH))
    except ObjectNotFoundError:
        return Facts()
    with naming(storage.name_of(PATH)):
        try:
            return decode_facts(strict_json.parse(text))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptDataError(f"the facts about topics and groups cannot be read: {error}") from error


def decode_facts(document: dict[str, Any]) -> Facts:
    """ValueError, KeyError, TypeError, AttributeError: `encode_facts` has not written this."""
    version = document["version"]
    if version != _VERSION:
        raise UnsupportedFormatError(f"the facts have version {version!r}; version 1 is known")
    topics = {
        name: ForeignTopic(
            name=name,
            partition_count=_number(topic.get("partition_count")),
            replication_factor=_number(topic.get("replication_factor")),
            configs={str(key): str(value) for key, value in topic.get("configs", {}).items()},
        )
        for name, topic in document.get("topics", {}).items()
    }
    cluster_id = document.get("cluster_id")
    return Facts(
        cluster_id=None if cluster_id is None else str(cluster_id),
        taken_at_ms=_number(document.get("taken_at_ms")),
        topics=topics,
        groups=tuple(_decode_group(group, offsets) for group, offsets in document.get("groups", {}).items()),
        log_ends=_decode_offsets(document.get("log_ends", {})),
        coverage=decode_coverage(document.get("offsets")),
    )


def _decode_group(group_id: str, topics: dict[str, dict[str, int]]) -> ForeignGroup:
    return ForeignGroup(group_id=group_id, offsets=_decode_offsets(topics))


def _decode_offsets(topics: dict[str, dict[str, int]]) -> dict[TopicPartition, int]:
    offsets = {}
    for topic, partitions in topics.items():
        for partition, offset in partitions.items():
            number, next_offset = _number(int(partition)), _number(offset)
            if number is None or next_offset is None:
                raise ValueError("an offset is missing")
            offsets[TopicPartition(topic=topic, partition=number)] = next_offset
    return offsets


def _number(value: Any) -> int | None:  # noqa: ANN401 - JSON
    if value is not None and (type(value) is not int or not 0 <= value <= INT64_MAX):
        raise ValueError(f"{value!r} is not a possible number")
    return value


def write_facts(
    storage: Storage, survey: Survey, facts: ClusterFacts, coverage: Mapping[TopicPartition, Coverage]
) -> None:
    """Writes the new facts over the old ones. If the source has no groups at all, the old ones are kept."""
    document = encode_facts(survey, facts, coverage)
    storage.replace(PATH, json.dumps(document, indent=2, ensure_ascii=False).encode())


def encode_facts(survey: Survey, facts: ClusterFacts, coverage: Mapping[TopicPartition, Coverage]) -> dict[str, Any]:
    groups = {group.group_id: by_topic(group.offsets) for group in facts.groups or survey.groups if group.offsets}
    topics = {
        name: {
            "partition_count": topic.partition_count,
            "replication_factor": topic.replication_factor,
            "configs": dict(topic.configs),
        }
        for name, topic in sorted({**survey.topics, **facts.topics}.items())
    }
    return {
        "version": _VERSION,
        "layout": survey.layout,
        "cluster_id": facts.cluster_id or survey.cluster_id,
        "taken_at_ms": facts.taken_at_ms or survey.taken_at_ms,
        "topics": topics,
        "groups": groups,
        "log_ends": by_topic(facts.log_ends),
        "offsets": encode_coverage(coverage),
    }


def forget_segments(storage: Storage, survey: Survey, going: Collection[str]) -> None:
    """Take segments that are about to be deleted off the list of what the tree must hold."""
    known = read_facts(storage).coverage
    changed = {
        where: without_segments(each, [one for one in survey.segments if one.where == where and one.path in going])
        for where, each in known.items()
        if any(one.where == where and one.path in going for one in survey.segments)
    }
    if changed:
        write_facts(storage, survey, ClusterFacts(), {**known, **changed})
