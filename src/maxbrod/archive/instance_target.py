"""The target of one of two instances that take turns: its own files in an archive of the layout avro, and its document.

Every change of the document is a new version of it, so that a process that was replaced is refused before it can
publish anything; see `layouts/avro/instances`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from maxbrod.archive.foreign_target import ForeignTarget, TargetRequest, complete_facts
from maxbrod.errors import RefusedError
from maxbrod.layouts.avro.format import instance_folder
from maxbrod.layouts.avro.instances import Instance, Mark, Stage, fenced, put_next, read_instances
from maxbrod.layouts.avro.survey import survey as survey_tree
from maxbrod.layouts.coverage import extended_by
from maxbrod.layouts.foreign import ClusterFacts, ForeignSegment, Survey, WriteOptions
from maxbrod.layouts.tree import encode_facts

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from maxbrod.config import StorageConfig
    from maxbrod.model import TopicPartition

_DELETED_AT_ONCE: Final = 1000


class InstanceTarget(ForeignTarget):
    """`document` is as this process has stored it last. `claim` comes before anything else."""

    def __init__(self, url: str, storage: StorageConfig, request: TargetRequest, *, instance: str, other: str) -> None:
        self._instance, self._other = instance, other
        self._found: dict[str, Instance] = {}
        self.document = Instance(name=instance, topic="")
        super().__init__(url, storage, request)

    @property
    def options(self) -> WriteOptions:
        known = self.document
        mark = Mark(instance=self._instance, generation=known.generation, claim=known.claim)
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
        """Whether files stand where this instance writes, and no generation of it has begun."""
        folder = instance_folder(self.document.topic, self._instance)
        return not self.document.generation and next(iter(self._storage.list(folder)), None) is not None

    def clear(self) -> None:
        """Delete all files of this instance. It must not be active. RefusedError: another process has taken over."""
        names = [each.path for each in self._storage.list(instance_folder(self.document.topic, self._instance))]
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
        """Whether the other instance is active and every file that it has published is there."""
        if self.look_at_other() is None or self._found[self._other].stage is not Stage.ACTIVE:
            return False
        found = survey_tree(self._storage, self._other)
        return not found.gaps and not any(fault.fatal for fault in found.faults)

    def publish(
        self, written: Sequence[ForeignSegment], facts: ClusterFacts, *, unfinished: Collection[str] = ()
    ) -> None:
        completed = complete_facts(facts, self.survey, written, unfinished)
        known = self.document.decode_facts().coverage
        coverage = extended_by(known, self.survey, written, completed.gaps)
        new = encode_facts(self.survey, completed, coverage)
        old = dict(self.document.facts)
        if {**new, "taken_at_ms": 0} != {**old, "taken_at_ms": 0}:
            self.save(facts=new)
        self.survey = self._look()

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
        if self.document.stage is Stage.WAITING:
            # Whatever is there is cleared before it is written to.
            return Survey(layout="avro", segments=())
        survey = survey_tree(self._storage, self._instance)
        self._demand_sound(survey)
        return survey
