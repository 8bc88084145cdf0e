"""Backups of tools that keep several of them under one root, each with an id and a manifest: the layouts kbak and kbs.

The archive's URL may point to the root, where each backup has a folder named after its id, or straight into such a
folder. Both layouts are dialects of one form: the manifest names or counts the segments, and nothing else is part of
the backup. Owns what they do alike: find a backup, survey, check and prune it, and refuse what would damage it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import chain, islice
from typing import Any, Final, TypeVar

from maxbrod import strict_json
from maxbrod.bounds import DOCUMENT_BYTES_MAX, check_object
from maxbrod.errors import CorruptDataError, MaxbrodError, ObjectNotFoundError, RefusedError, UsageError
from maxbrod.layouts.foreign import Fault, ForeignSegment, ForeignTopic, Loss, Survey, WriteOptions
from maxbrod.model import INT32_MAX, INT64_MAX, TopicPartition, is_topic_name
from maxbrod.storage.interface import Storage

MANIFEST: Final = "manifest.json"
DEFAULT_BACKUP_ID: Final = "maxbrod"
SEGMENT_BYTES_MAX: Final = 64 << 20
"""Size of a segment's records before compression, by default: it is held in memory. The tool itself has 128 MiB."""
SEGMENT_BYTES_LIMIT: Final = 1 << 30

_NAMES_MAX: Final = 10_000
"""The number of names that detection reads. A backup's own manifest is listed before its segments."""
_HEAD_BYTES: Final = 4096
_LEVEL: Final = 3
_LEVELS: Final = range(1, 23)
_OPTIONS: Final = frozenset({"backup_id", "offset_headers", "source_cluster"})

LOSSES: Final = (
    Loss(what="producer ids, producer epochs, sequence numbers and leader epochs", real=False),
    Loss(what="transaction markers, and which records were written in a transaction", real=False),
    Loss(what="the timestamp type: all times come back as create times", real=False, field="timestamp_type"),
)
"""What no backup of these layouts holds."""

Codec = TypeVar("Codec", bound=IntEnum)


def known_topic(name: str, object_name: str) -> str:
    """The name of a topic that an archive claims to have. CorruptDataError: Kafka does not allow it."""
    if not is_topic_name(name):
        raise CorruptDataError(f"{name[:300]!r} cannot be a topic", object_name=object_name)
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFields:
    """One object of a JSON document. `place` names it in messages."""

    values: Mapping[str, Any]
    object_name: str
    place: str = "the document"

    def integer(self, name: str, *, least: int = 0, most: int = INT64_MAX, default: int | None = None) -> int:
        value = self.values.get(name, default)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(name, f"not an integer from {least} to {most}")
        return value

    def optional_integer(self, name: str, *, least: int = 0, most: int = INT64_MAX) -> int | None:
        return None if self.values.get(name) is None else self.integer(name, least=least, most=most)

    def text(self, name: str, *, default: str | None = None) -> str:
        value = self.values.get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, "not a text")
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self.values.get(name) is None else self.text(name)

    def objects(self, name: str) -> list[ManifestFields]:
        """The objects of a list; none if the field is missing."""
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.wrong(name, "not a list")
        return [self._object(element, f"{name}[{row}]") for row, element in enumerate(value)]

    def inner(self, name: str) -> ManifestFields:
        """The object under a name; an empty one if the field is missing."""
        value = self.values.get(name)
        return self._object({} if value is None else value, name)

    def partition(self, name: str) -> int:
        """A field's name as the number of a partition."""
        if not name.isascii() or not name.isdigit() or int(name[:11]) > INT32_MAX:
            raise self.wrong(name, "not a partition")
        return int(name)

    def partitions(self, name: str) -> Iterator[tuple[TopicPartition, ManifestFields, str]]:
        """Yield each partition that the object under a name has by topic and number, with its place in that."""
        topics = self.inner(name)
        for topic in topics.values:
            partitions = topics.inner(topic)
            for number in partitions.values:
                where = TopicPartition(
                    topic=known_topic(topic, self.object_name), partition=partitions.partition(number)
                )
                yield where, partitions, number

    def topic(self, name: str, count: str, factor: str) -> ForeignTopic:
        """Return a topic by its settings here, and its numbers of partitions and of replicas under these names."""
        configs = self.inner("configurations").values
        return ForeignTopic(
            name=name,
            partition_count=self.optional_integer(count, least=1, most=INT32_MAX),
            replication_factor=self.optional_integer(factor, least=1, most=INT32_MAX),
            configs={key: value for key, value in configs.items() if isinstance(value, str)},
        )

    def wrong(self, name: str, complaint: str) -> CorruptDataError:
        return CorruptDataError(f"{name!r} of {self.place} is {complaint}", object_name=self.object_name)

    def _object(self, value: object, name: str) -> ManifestFields:
        if not isinstance(value, dict):
            raise self.wrong(name, "not an object")
        return ManifestFields(values=value, object_name=self.object_name, place=name)


def read_document(storage: Storage, path: str) -> ManifestFields | None:
    """The document of that name; None if there is no such object."""
    try:
        # Before it is read: a document may be larger than memory.
        check_object(storage.head(path).size, storage.name_of(path), most=DOCUMENT_BYTES_MAX)
        data = storage.get(path)
    except ObjectNotFoundError:
        return None
    object_name = storage.name_of(path)
    try:
        value = strict_json.parse(data, wide=True)
    except ValueError as error:
        # The parser quotes nothing of its input, so this message does not either.
        raise CorruptDataError(f"this is not JSON: {error}", object_name=object_name) from error
    if not isinstance(value, dict):
        raise CorruptDataError("this JSON is not an object", object_name=object_name)
    return ManifestFields(values=value, object_name=object_name)


def write_document(storage: Storage, path: str, value: object) -> None:
    """Writes JSON exactly as Rust's `serde_json` prints it for people: two spaces, raw UTF-8, no final newline."""
    try:
        data = json.dumps(value, indent=2, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise CorruptDataError("it contains text that is not Unicode", object_name=storage.name_of(path)) from error
    storage.replace(path, data)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupRef:
    """The id of a backup, and where it is."""

    backup_id: str
    folder: str
    """Below the storage's root; empty if the storage is the backup's own folder."""

    @classmethod
    def surveyed(cls, survey: Survey) -> BackupRef | None:
        """The backup that a survey has found; None if it has found none."""
        if "folder" not in survey.details:
            return None
        return cls(backup_id=survey.details["backup_id"], folder=survey.details["folder"])

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}" if self.folder else name

    def name(self, path: str) -> str:
        """The inverse of `path`."""
        return path.removeprefix(f"{self.folder}/") if self.folder else path

    @property
    def details(self) -> dict[str, str]:
        return {"backup_id": self.backup_id, "folder": self.folder}


def parse_name(segment: re.Pattern[str], name: str) -> tuple[TopicPartition, int] | None:
    """Partition and number of an object that is named like a segment: the three groups of the pattern."""
    match = segment.fullmatch(name)
    if match is None or not is_topic_name(match[1]):
        return None
    return TopicPartition(topic=match[1], partition=int(match[2])), int(match[3])


def list_segments(
    storage: Storage, backup: BackupRef, segment: re.Pattern[str]
) -> Iterator[tuple[TopicPartition, int, str, int]]:
    """Partition, number, path and size of every object that is named like a segment."""
    for info in storage.list(backup.path("topics")):
        parsed = parse_name(segment, backup.name(info.path))
        if parsed is not None:
            yield *parsed, info.path, info.size


def _manifest_head(storage: Storage, folder: str) -> bytes | None:
    """The first bytes of a folder's manifest; None if it has none."""
    path = f"{folder}/{MANIFEST}" if folder else MANIFEST
    try:
        size = storage.head(path).size
        return bytes(storage.get_range(path, 0, min(size, _HEAD_BYTES)))
    except ObjectNotFoundError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupKind:
    """The way in which backups of one layout are recognized and read."""

    layout: str
    segment: re.Pattern[str]
    """The names of segments below the backup's folder. Groups: topic, partition, number."""
    is_ours: Callable[[bytes], bool | None]
    """Judges the first bytes of a manifest. If they are inconclusive (None), the names of objects decide."""
    backup_id: Callable[[ManifestFields], str]
    """The id that a manifest states. CorruptDataError, UnsupportedFormatError: the manifest cannot be used."""
    by_manifest: Callable[[Storage, BackupRef, ManifestFields], Survey]
    """CorruptDataError: only the segments themselves show what the backup has."""
    by_headers: Callable[[Storage, BackupRef, list[Fault]], list[ForeignSegment]]
    """Every readable segment, without overlaps; the others become faults."""

    def detect(self, storage: Storage) -> bool:
        """True if the storage has such a backup, by the first names that it lists."""
        folders = chain([""], self._folders(storage, names_max=_NAMES_MAX))
        return any(self._is_backup(storage, folder) for folder in folders)

    def survey(self, storage: Storage, backup_id: str | None = None) -> Survey:
        """Return the contents of the requested backup by its manifest, or else by the headers of its segments."""
        backup = self._find(storage, backup_id)
        if backup is None:
            return Survey(layout=self.layout, segments=())
        path = backup.path(MANIFEST)
        try:
            manifest = read_document(storage, path)
            if manifest is None:
                # Its run died before it published anything. The next run overwrites what it left.
                message = "there are segments, but no manifest: nothing of this backup was published"
                fault = Fault(path=path, message=message, fatal=False)
                return Survey(layout=self.layout, segments=(), faults=(fault,), details=backup.details)
            backup = replace(backup, backup_id=self.backup_id(manifest))
            if backup_id not in {None, backup.backup_id, backup.folder}:
                raise UsageError(
                    f"this is the backup {backup.backup_id!r}, not {backup_id!r}",
                    hint="let the URL of the archive end in the folder above, or in that of the other one",
                )
            return self.by_manifest(storage, backup, manifest)
        except CorruptDataError as error:
            message = f"the manifest cannot be read: {error.message}; the headers of its segments are used instead"
            faults = [Fault(path=path, message=message, fatal=False)]
        segments = sorted(self.by_headers(storage, backup, faults), key=in_order)
        return Survey(
            layout=self.layout,
            segments=tuple(segments),
            topics={segment.where.topic: ForeignTopic(name=segment.where.topic) for segment in segments},
            positions={segment.where: segment.end_offset for segment in segments},
            faults=tuple(faults),
            details={**backup.details, "rebuilt": True},
        )

    def _find(self, storage: Storage, backup_id: str | None) -> BackupRef | None:
        """The requested backup, with the id that its place suggests; None if there is none.

        UsageError: there are several.
        """
        if backup_id is not None and (not backup_id or "/" in backup_id or backup_id in {".", ".."}):
            raise UsageError(f"{backup_id!r} cannot be the id of a backup", hint="it is the name of one folder")
        if self._is_backup(storage, ""):
            return BackupRef(backup_id=backup_id or storage.url.rsplit("/", 1)[-1], folder="")
        if backup_id is not None:
            return BackupRef(backup_id=backup_id, folder=backup_id) if self._is_backup(storage, backup_id) else None
        found = [folder for folder in self._folders(storage) if self._is_backup(storage, folder)]
        if len(found) > 1:
            raise UsageError(
                f"there are several backups here: {', '.join(found[:20])}",
                object_name=storage.url,
                hint="let the URL of the archive end in the folder of one (or convert with --from-option backup_id=ID)",
            )
        return BackupRef(backup_id=found[0], folder=found[0]) if found else None

    def _is_backup(self, storage: Storage, folder: str) -> bool:
        head = _manifest_head(storage, folder)
        judged = None if head is None else self.is_ours(head)
        if judged is not None:
            return judged
        prefix = f"{folder}/" if folder else ""
        names = (info.path.removeprefix(prefix) for info in storage.list(f"{prefix}topics"))
        return any(self.segment.fullmatch(name) for name in islice(names, _NAMES_MAX))

    def _folders(self, storage: Storage, *, names_max: int | None = None) -> Iterator[str]:
        """Folders that have a manifest, or objects that are named like segments; each once, the root as ''."""
        seen: set[str] = set()
        for info in islice(storage.list(), names_max):
            first, _, rest = info.path.partition("/")
            folder = None
            if info.path == MANIFEST or self.segment.fullmatch(info.path):
                folder = ""
            elif rest == MANIFEST or self.segment.fullmatch(rest):
                folder = first
            if folder is not None and folder not in seen:
                seen.add(folder)
                yield folder


def in_order(segment: ForeignSegment) -> tuple[TopicPartition, int]:
    """Return the key by which the segments of a survey are sorted."""
    return segment.where, segment.base_offset


def left_out(path: str, offset: int) -> Fault:
    return Fault(path=path, message="holds offsets that another segment has, too; it is left out", offset=offset)


def positions_ahead(
    storage: Storage,
    path: str,
    published: Mapping[TopicPartition, int],
    read: Callable[[Storage, str], Mapping[TopicPartition, int]],
) -> Iterator[Fault]:
    """Yield where the file by which the tool resumes is ahead of the manifest. `read` returns its positions.

    The manifest is the truth: an offset that only the other file knows has no record here.
    """
    try:
        found = read(storage, path)
    except CorruptDataError as error:
        yield Fault(path=path, message=error.message, fatal=False)
        return
    for where, position in sorted(found.items()):
        known = published.get(where, 0)
        if position > known:
            message = f"says that {where} is backed up to offset {position}, and the manifest to {known}"
            yield Fault(path=path, message=message, offset=known, fatal=False)


def check_segments(
    storage: Storage,
    survey: Survey,
    sizes: Mapping[str, int],
    check_object: Callable[[ForeignSegment, int], Iterator[Fault]],
    check_records: Callable[[Storage, ForeignSegment], Iterable[Fault]] | None,
) -> Iterator[Fault]:
    """Yield the faults of the survey, and of every segment. `sizes` has all objects below `topics`.

    `check_object` compares an object of the right size with the manifest; `check_records` reads it, which may fail.
    """
    yield from survey.faults
    for segment in survey.segments:
        size = sizes.get(segment.path)
        if size is None:
            yield Fault(path=segment.path, message="the segment is missing", offset=segment.base_offset)
            continue
        yield from check_object(segment, size)
        if check_records is None:
            continue
        try:
            yield from check_records(storage, segment)
        except MaxbrodError as error:
            yield Fault(path=segment.path, message=error.message, offset=error.offset or segment.base_offset)


def other_size(segment: ForeignSegment, size: int) -> Fault:
    message = f"the segment has {size} bytes, and the manifest says {segment.bytes}"
    return Fault(path=segment.path, message=message, offset=segment.base_offset)


def manifest_to_prune(storage: Storage, survey: Survey) -> tuple[BackupRef, dict[str, Any]] | None:
    """Return the backup and the values of its manifest; None if there is no backup. RefusedError: it is damaged."""
    backup = BackupRef.surveyed(survey)
    if backup is None:
        return None
    refuse_rebuilt(storage, backup, survey)
    manifest = read_document(storage, backup.path(MANIFEST))
    if manifest is None:
        raise RefusedError("the manifest has disappeared", object_name=storage.name_of(backup.path(MANIFEST)))
    return backup, dict(manifest.values)


def backup_for(survey: Survey, options: WriteOptions) -> BackupRef:
    """The backup to write to: the one that was surveyed, or a new one of the requested id."""
    unknown = sorted(set(options.extra) - _OPTIONS)
    if unknown:
        raise UsageError(f"no such option: {', '.join(unknown)}", hint=f"choose one of {', '.join(sorted(_OPTIONS))}")
    flag = options.extra.get("offset_headers", "false")
    if flag not in {"true", "false"}:
        raise UsageError(f"offset_headers is true or false, not {flag!r}")
    requested = options.extra.get("backup_id")
    found = BackupRef.surveyed(survey)
    if found is not None:
        if requested is not None and requested != found.backup_id:
            raise UsageError(
                f"this is the backup {found.backup_id!r}, not {requested!r}",
                hint="survey the other one, or let the URL of the archive end in its folder",
            )
        return found
    backup_id = DEFAULT_BACKUP_ID if requested is None else requested
    if not is_topic_name(backup_id):
        raise UsageError(f"{backup_id!r} cannot be the id of a backup", hint="use letters, digits, '.', '_' and '-'")
    return BackupRef(backup_id=backup_id, folder=backup_id)


def refuse_unknown(storage: Storage, backup: BackupRef, survey: Survey) -> None:
    """RefusedError: a new backup would overwrite one that the survey did not see, or could not make sense of."""
    if BackupRef.surveyed(survey) is None and _manifest_head(storage, backup.folder) is not None:
        raise RefusedError(
            f"there is a backup {backup.backup_id!r} already",
            object_name=storage.name_of(backup.path(MANIFEST)),
            hint="run it again, or choose another by --layout-option backup_id=ID",
        )


def refuse_rebuilt(storage: Storage, backup: BackupRef, survey: Survey) -> None:
    """RefusedError: the survey had to do without the manifest, so a new one would lose what it said."""
    if survey.details.get("rebuilt"):
        raise RefusedError(
            "the manifest of this backup is damaged, and a new one would lose what it said",
            object_name=storage.name_of(backup.path(MANIFEST)),
            hint="convert the backup into another archive, and continue there",
        )


def other_writer(where: TopicPartition, end: int, position: int, object_name: str) -> RefusedError:
    return RefusedError(
        f"another writer has added to {where}, up to offset {end}",
        object_name=object_name,
        offset=position,
        hint="survey the archive again, and write what is still missing",
    )


def codec_of(options: WriteOptions, codecs: type[Codec]) -> tuple[Codec, int | None]:
    """The codec and its level. The default of the tool is zstd of level 3; other codecs have no level."""
    name = (options.codec or "zstd").upper()
    if name not in codecs.__members__:
        known = ", ".join(member.lower() for member in codecs.__members__)
        raise UsageError(f"there is no codec {options.codec!r}", hint=f"choose one of {known}")
    if name != "ZSTD" and options.level is None:
        return codecs[name], None
    level = _LEVEL if options.level is None else options.level
    if name != "ZSTD" or level not in _LEVELS:
        raise UsageError(f"{name.lower()} has no level {level}", hint="zstd has the levels 1 to 22")
    return codecs[name], level
