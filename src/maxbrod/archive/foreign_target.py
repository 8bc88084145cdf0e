"""A target in another tool's layout: what it holds already, what it cannot hold, and how segments are published."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from maxbrod.config import StorageConfig
from maxbrod.errors import CorruptDataError, ObjectNotFoundError, RefusedError, UsageError
from maxbrod.kafka.state.cluster_state import ClusterState
from maxbrod.layouts.avro.format import instance_folder
from maxbrod.layouts.avro.instances import Instance, InstanceMark, InstanceStage, fenced, put_next, read_instances
from maxbrod.layouts.avro.survey import survey as survey_tree
from maxbrod.layouts.foreign import (
    ClusterFacts,
    ForeignGroup,
    ForeignSegment,
    ForeignTopic,
    Layout,
    Loss,
    Survey,
    WriteOptions,
)
from maxbrod.layouts.registry import layout_of
from maxbrod.layouts.tree import encode_facts, extended_by
from maxbrod.model import TopicPartition
from maxbrod.storage.composed import OWN_FOLDER, without_own
from maxbrod.storage.stores import open_storage

_MEMORY: Final = f"{OWN_FOLDER}/backup.json"

_DELETED_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Memory:
    """The facts that backups must remember and the layouts have no place for."""

    starts: list[tuple[str, int, int]]
    """Topic, partition and the offset at which the first backup began, if it began at the end of the log."""
    topic_ids: dict[str, str]
    """The id of each topic by name: a topic of the same name with another id is another topic."""


_DOCUMENT: Final = TypeAdapter(_Memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRequest:
    """The settings for writing an archive in another layout."""

    layout: str
    codec: str | None = None
    """A name, or a name and a level: `zstd:9`."""
    segment_bytes: int | None = None
    segment_records: int | None = None
    extra: Mapping[str, str] | None = None
    accept_loss: bool = False

    def options(self) -> WriteOptions:
        name, _, level = (self.codec or "").partition(":")
        if level and not level.isdecimal():
            raise UsageError(f"{self.codec!r} is not a codec", hint="give a name, or a name and a level such as zstd:9")
        return WriteOptions(
            codec=name or None,
            level=int(level) if level else None,
            segment_bytes_max=self.segment_bytes,
            segment_records_max=self.segment_records,
            extra=dict(self.extra or {}),
        )


class ForeignTarget:
    """A place and a layout. `survey` is what the place held when it was last read."""

    def __init__(self, url: str, storage: StorageConfig, request: TargetRequest) -> None:
        self._layout: Layout = layout_of(request.layout)
        self._options = request.options()
        self._accept_loss = request.accept_loss
        self._storage = open_storage(url, storage)
        self.url = self._storage.url
        self._seen: dict[str, Any] = {}
        self._recognized = False
        self.survey = self._look()
        self.starts, self.topic_ids = self._recall()

    @property
    def options(self) -> WriteOptions:
        return self._options

    @property
    def losses(self) -> Sequence[Loss]:
        """The data that the layout cannot hold. Losses that are real must be accepted before anything is written."""
        return self._layout.losses_with(self._options)

    def demand_acceptance(self) -> None:
        """RefusedError: records could lose something that an application may need, and the user did not accept it."""
        real = [loss.what for loss in self.losses if loss.real]
        if real and not self._accept_loss:
            raise RefusedError(
                f"the layout {self._layout.name} cannot hold {'; '.join(real)}",
                operation="write another layout",
                object_name=self.url,
                hint="give --accept-loss to write without it, or use maxbrod's own layout, which loses nothing",
            )

    def publish(
        self, written: Sequence[ForeignSegment], facts: ClusterFacts, *, unfinished: Collection[str] = ()
    ) -> None:
        """Make the segments part of the archive, and survey it again.

        `unfinished`: topics whose records are not all there. Without a segment such a topic would look like an empty
        one, so it is left out.
        """
        self._publish(written, complete_facts(facts, self.survey, written, unfinished))
        self.survey = self._look()

    def _publish(self, written: Sequence[ForeignSegment], facts: ClusterFacts) -> None:
        self._layout.publish(self._storage, self.survey, written, self._options, facts)

    def remember(self, starts: Mapping[TopicPartition, int], topic_ids: Mapping[str, str]) -> None:
        """Add to what is remembered. If a name now has another topic id, its starts are dropped."""
        if starts.items() <= self.starts.items() and topic_ids.items() <= self.topic_ids.items():
            return
        others = {name for name, topic_id in topic_ids.items() if self.topic_ids.get(name, topic_id) != topic_id}
        kept = {place: start for place, start in self.starts.items() if place.topic not in others}
        self.starts, self.topic_ids = {**kept, **starts}, {**self.topic_ids, **topic_ids}
        starts_list = sorted((place.topic, place.partition, start) for place, start in self.starts.items())
        document = _Memory(starts=starts_list, topic_ids=self.topic_ids)
        self._storage.replace(_MEMORY, json.dumps(asdict(document), sort_keys=True).encode())

    def look_again(self) -> None:
        """Survey again: after a failure the place may hold something else than expected."""
        self.survey = self._look()

    def _recall(self) -> tuple[dict[TopicPartition, int], dict[str, str]]:
        try:
            found = _DOCUMENT.validate_json(bytes(self._storage.get(_MEMORY)), strict=True)
        except ObjectNotFoundError:
            return {}, {}
        except ValidationError as error:
            raise CorruptDataError(
                "the record of what was backed up here cannot be read",
                operation="look at the archive",
                object_name=self._storage.name_of(_MEMORY),
                hint="without it, a topic that was created again cannot be detected; if none was, delete the object",
            ) from error
        starts = {TopicPartition(topic=name, partition=number): start for name, number, start in found.starts}
        return starts, found.topic_ids

    def _look(self) -> Survey:
        if not self._recognized and not self._recognize():
            return Survey(layout=self._layout.name, segments=())
        survey = self._layout.survey(self._storage, seen=self._seen)
        self._demand_sound(survey)
        return survey

    def _recognize(self) -> bool:
        """True if the place holds an archive of this layout: if not, it must be empty."""
        seen = without_own(self._storage)
        if next(iter(seen.list()), None) is None:
            return False
        if not self._layout.detect(seen):
            raise RefusedError(
                f"there are objects here, but no archive in the layout {self._layout.name}",
                operation="write another layout",
                object_name=self._storage.url,
                hint="name an empty place, or one that holds an archive in this layout",
            )
        self._recognized = True
        return True

    def _demand_sound(self, survey: Survey) -> None:
        for fault in survey.faults:
            if fault.fatal:
                raise CorruptDataError(
                    fault.message,
                    operation="look at the archive",
                    object_name=self._storage.name_of(fault.path),
                    offset=fault.offset,
                    hint="see 'maxbrod check'; with --repair it repairs what it can",
                )


def complete_facts(
    facts: ClusterFacts, survey: Survey, written: Sequence[ForeignSegment], unfinished: Collection[str]
) -> ClusterFacts:
    """The facts to publish with these segments: without topics that would look empty, and with what was lost since."""
    held = {position.topic for position in survey.positions} | {segment.where.topic for segment in written}
    left_out = set(unfinished) - held
    known = {name: topic for name, topic in facts.topics.items() if name not in left_out}
    empty = tuple(place for place in facts.empty if place.topic not in left_out)
    return _with_lost(replace(facts, topics=known, empty=empty), survey)


def _with_lost(facts: ClusterFacts, survey: Survey) -> ClusterFacts:
    """The facts, completed with what the cluster has lost and the archive still holds: topics and groups' offsets."""
    held = {position.topic for position in survey.positions}
    topics = {name: topic for name, topic in survey.topics.items() if name in held}
    offsets: dict[str, dict[TopicPartition, int]] = {}
    for group in survey.groups:
        offsets[group.group_id] = {where: offset for where, offset in group.offsets.items() if where.topic in held}
    for group in facts.groups:
        offsets[group.group_id] = {**offsets.get(group.group_id, {}), **group.offsets}
    return replace(
        facts,
        topics={**topics, **facts.topics},
        groups=tuple(ForeignGroup(group_id=name, offsets=found) for name, found in offsets.items() if found),
    )


def facts_of(state: ClusterState) -> ClusterFacts:
    """The facts of a cluster that a layout may store besides its records.

    These layouts know topics by name only. If several topics have one name, they get the one that the cluster had last,
    which comes first in the state.
    """
    topics = {topic.name: topic for topic in reversed(state.topics)}
    return ClusterFacts(
        cluster_id=state.cluster_id,
        brokers=tuple(f"{broker.host}:{broker.port}" for broker in state.brokers),
        topics={
            name: ForeignTopic(
                name=name,
                partition_count=topic.partition_count,
                replication_factor=topic.replication_factor or None,
                configs={name: value for name, value in (topic.configs or {}).items() if value is not None},
            )
            for name, topic in sorted(topics.items())
        },
        groups=tuple(
            ForeignGroup(
                group_id=group.group_id,
                offsets={
                    offset.where: offset.offset
                    for offset in group.offsets
                    if offset.topic not in topics or offset.topic_id in {None, topics[offset.topic].topic_id}
                },
            )
            for group in state.groups
            if group.offsets
        ),
        taken_at_ms=state.taken_at_ms,
    )


class InstanceTarget(ForeignTarget):
    """The target of one of two instances that take turns: its own files in an archive of the layout avro.

    `document` is as this process has stored it last. Every change of it is a new version, so that a process that was
    replaced is refused before it can publish; see `layouts/avro/instances`. `claim` comes before anything else.
    """

    def __init__(self, url: str, storage: StorageConfig, request: TargetRequest, *, instance: str, other: str) -> None:
        self._instance, self._other = instance, other
        self._found: dict[str, Instance] = {}
        self.document = Instance(name=instance, topic="")
        super().__init__(url, storage, request)

    @property
    def options(self) -> WriteOptions:
        known = self.document
        mark = InstanceMark(instance=self._instance, generation=known.generation, claim=known.claim)
        return replace(self._options, extra={**self._options.extra, **mark.metadata()})

    @property
    def other(self) -> Instance | None:
        """The other instance as its document was when this was last looked at; None: it has none."""
        return self._found.get(self._other)

    def claim(self, topic: str) -> None:
        """Become the one process of this instance."""
        known = self._found.get(self._instance) or Instance(name=self._instance, topic=topic)
        if known.topic != topic:
            raise RefusedError(
                f"the instance {self._instance} backs up the topic {known.topic}, not {topic}",
                operation="take turns",
                object_name=self.url,
                hint="give each topic instances of its own, with --generation-name",
            )
        self.document = put_next(self._storage, replace(known, claim=known.version + 1))
        # Files of a process before this one may have appeared since.
        self.survey = self._look()

    def save(self, **changes: Any) -> None:  # noqa: ANN401 - fields of Instance
        """RefusedError: another process works as this instance."""
        new = replace(self.document, **changes)
        if new != self.document:
            self.document = put_next(self._storage, new)

    def has_files_of_others(self) -> bool:
        """True if files stand where this instance writes, and no generation of it has begun."""
        folder = instance_folder(self.document.topic, self._instance)
        return not self.document.generation and next(iter(self._storage.list(folder)), None) is not None

    def clear(self) -> None:
        """Delete all files of this instance. It must not be active. RefusedError: another process has taken over."""
        names = [info.path for info in self._storage.list(instance_folder(self.document.topic, self._instance))]
        for first in range(0, len(names), _DELETED_AT_ONCE):
            self.look_at_other()
            self._storage.delete(names[first : first + _DELETED_AT_ONCE])
        self.save(facts={}, topic_ids={})
        self.starts, self.topic_ids = {}, {}
        self.survey = self._look()

    def look_at_other(self) -> Instance | None:
        """The newest document of the other instance. RefusedError: another process works as this one."""
        self._found = read_instances(self._storage)
        newest = self._found.get(self._instance)
        if newest is None or newest.claim != self.document.claim:
            raise fenced(self._instance)
        return self.other

    def other_is_whole(self) -> bool:
        """True if the other instance is active and every file that it has published is there."""
        if self.look_at_other() is None or self._found[self._other].stage is not InstanceStage.ACTIVE:
            return False
        found = survey_tree(self._storage, self._other)
        return not found.gaps and not any(fault.fatal for fault in found.faults)

    def _publish(self, written: Sequence[ForeignSegment], facts: ClusterFacts) -> None:
        coverage = extended_by(self.document.decode_facts().coverage, self.survey, written, facts.gaps)
        new = encode_facts(self.survey, facts, coverage)
        if {**new, "taken_at_ms": 0} != {**self.document.facts, "taken_at_ms": 0}:
            self.save(facts=new)

    def remember(self, starts: Mapping[TopicPartition, int], topic_ids: Mapping[str, str]) -> None:
        """A generation always begins at the start of the log."""
        del starts
        if not topic_ids.items() <= self.topic_ids.items():
            self.topic_ids = {**self.topic_ids, **topic_ids}
            self.save(topic_ids=self.topic_ids)

    def _recall(self) -> tuple[dict[TopicPartition, int], dict[str, str]]:
        return {}, dict(self.document.topic_ids)

    def _look(self) -> Survey:
        self._found = read_instances(self._storage)
        if self._instance in self._found and not self.document.claim:
            self.document = self._found[self._instance]
        if self.document.stage is InstanceStage.WAITING:
            # Whatever is there is cleared before it is written to.
            return Survey(layout="avro", segments=())
        survey = survey_tree(self._storage, self._instance)
        self._demand_sound(survey)
        return survey
