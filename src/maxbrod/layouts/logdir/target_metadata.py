"""The topics of a cluster of stopped brokers, from their own copies of the controllers' log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from maxbrod.layouts.logdir.copies import Notes, load_copy
from maxbrod.layouts.logdir.metadata_log import MetadataImage, read_metadata
from maxbrod.layouts.logdir.names import CLUSTER_METADATA, arrange
from maxbrod.model import TopicPartition
from maxbrod.storage.local import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from maxbrod.layouts.foreign import Fault

_FOLDER: Final = f"{CLUSTER_METADATA}-0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignments:
    """Facts about topics, by name."""

    ids: Mapping[str, str] = field(default_factory=dict)
    replicas: Mapping[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    """The brokers that hold each partition."""
    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The settings of each topic, and the defaults of all topics."""
    partition_counts: Mapping[str, int] = field(default_factory=dict)


def read_assignments(directories: Iterable[Path]) -> Assignments | None:
    """The assignments in the copy that reaches furthest. None: no directory has a readable copy."""
    found = [image for image in map(_read, directories) if image is not None]
    if not found:
        return None
    _, image = max(found, key=lambda each: each[0])
    names = image.names()
    defaults = image.cluster().defaults
    return Assignments(
        ids=names,
        replicas={
            TopicPartition(topic=name, partition=partition): replicas
            for name, topic_id in names.items()
            for partition, replicas in image.partitions.get(topic_id, {}).items()
        },
        configs={name: {**defaults, **image.configs_of(name)} for name in names},
        partition_counts={name: len(image.partitions.get(topic_id, ())) for name, topic_id in names.items()},
    )


def _read(directory: Path) -> tuple[int, MetadataImage] | None:
    """The state of a directory's copy, with the offset at which it ends."""
    storage = LocalStorage(directory)
    faults: list[Fault] = []
    tree = arrange(storage.list(_FOLDER))
    notes = Notes(storage, tree, faults)
    copies = [load_copy(storage, each, notes)[0] for each in tree.metadata]
    image = read_metadata(storage, copies, faults)
    return None if image is None else (max(copy.end for copy in copies), image)
