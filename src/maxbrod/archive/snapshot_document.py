"""The snapshot of a run: the cluster at that time and how far the archive reached, as a document beside the catalog.

JSON in zstd, the same bytes for the same snapshot. Ends are stored per topic as a list by partition number, so that a
hundred thousand partitions take a few hundred kilobytes. The contents of the cluster's state are not checked here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from maxbrod import strict_json
from maxbrod.batch.compression import compress, unpack_document
from maxbrod.batch.crc import crc32c
from maxbrod.bounds import count_partitions
from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.model import INT64_MAX, Codec, PartitionId

FORMAT_FIELD: Final = "maxbrod.snapshot"
FORMAT_VERSION: Final = 1
_CHECKSUM_FIELD: Final = "crc32c"
_CARRIED_FIELD: Final = "carried"
RUNS: Final = "runs"
_OPERATION: Final = "read a snapshot"
NEVER: Final = -1
"""In the lists of a document: None."""
_DIGEST: Final = re.compile(r"\.([0-9a-f]{64})\.json\.zst$")

ExplainedGap: TypeAlias = tuple[int, int, str]
"""The first offset, the first offset after, and the reason."""

Number = TypeVar("Number")
"""An integer, or one that may be None."""
Change: TypeAlias = "list[Any]"
"""`[path, value]`: the value stands at this path instead. Without a value, the key is gone. A path lists keys of
objects and positions in lists, from the document's root on; null stands for every key, or every position that is not
null."""
_POINTS: Final = "recovery_points"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """`topics` has the name of every topic id in `ends`; `cluster` is the JSON of a `ClusterState`."""

    run_id: str
    taken_at_ms: int
    cluster: Mapping[str, Any]
    ends: Mapping[PartitionId, int]
    """For each partition the first offset that the archive does not account for."""
    topics: Mapping[str, str]
    recovery_points: Mapping[PartitionId, int | None] = field(default_factory=dict)
    """In milliseconds, for each selected partition that the cluster still has; None: it has none yet."""
    behind: Mapping[PartitionId, int | None] = field(default_factory=dict)
    """Partitions that the run did not archive to their end: the end of each log, None if unknown."""
    carried: Mapping[str, Any] | None = None
    """Lost things that the archive holds, as `encode_carried` writes them. None in snapshots of older releases."""
    log_starts: Mapping[PartitionId, int] = field(default_factory=dict)
    """The log start offsets that the run observed."""
    revisions: Mapping[PartitionId, int] = field(default_factory=dict)
    """The number of replacements in each partition: with it the catalog finds the rows of that time."""
    runs: Sequence[Mapping[str, Any]] = ()
    """The rows of the runs that share the snapshot before this one, as JSON: no object of their own has them."""
    firsts: Mapping[PartitionId, int] = field(default_factory=dict)
    """The first offset that the archive accounts for."""
    leader_epochs: Mapping[PartitionId, int | None] = field(default_factory=dict)
    """The leader epoch of the last archived batch; None: only gaps are archived. Empty in snapshots of older releases
    and of other commands. Together with `firsts` and `ends` it has all that the next backup needs to know of the rows,
    as long as no other commit follows that of the run."""
    gaps: Mapping[PartitionId, Sequence[ExplainedGap]] = field(default_factory=dict)
    """The gaps that this run recorded, and why: objects cannot tell if the catalog is lost."""
    run: RunFacts | None = None
    """The run's own row. None in snapshots of older releases."""
    registry: Mapping[str, Any] | None = None
    """The schema registry that was captured last, as `registry.stored` writes it. None: none was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The run's row in the catalog, as far as it is not in the snapshot anyway."""

    started_at: int
    finished_at: int
    statistics: Mapping[str, Any]
    commit: int
    """The version of the catalog that the row was to be committed as. Only one of two runs with the same was."""


def snapshot_path(name: str, data: bytes, *, signed: bool) -> str:
    """The path of an encoded snapshot. `signed`: the catalog is, so the name that a row has vouches for the bytes."""
    digest = f".{hashlib.sha256(data).hexdigest()}" if signed else ""
    return f"snapshots/{name}{digest}.json.zst"


def digest_in(path: str) -> str | None:
    """The SHA-256 that the name of a snapshot has; None if it has none."""
    matched = _DIGEST.search(path)
    return None if matched is None else matched[1]


def encode(snapshot: Snapshot) -> bytes:
    document = {FORMAT_FIELD: FORMAT_VERSION, **document_of(snapshot)}
    return compress(Codec.ZSTD, _text({**document, _CHECKSUM_FIELD: _checksum(document)}))


def document_of(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot as JSON, without version and checksum."""
    return {
        "run_id": snapshot.run_id,
        "taken_at_ms": snapshot.taken_at_ms,
        "cluster": snapshot.cluster,
        "topics": dict(snapshot.topics),
        "ends": _by_topic(snapshot.ends),
        "recovery_points": _by_topic(_with_never(snapshot.recovery_points)),
        "behind": _by_topic(_with_never(snapshot.behind)),
        **({} if snapshot.carried is None else {_CARRIED_FIELD: snapshot.carried}),
        **_optional("log_starts", snapshot.log_starts),
        **_optional("revisions", snapshot.revisions),
        **({RUNS: [dict(run) for run in snapshot.runs]} if snapshot.runs else {}),
        **_optional("firsts", snapshot.firsts),
        **_optional("leader_epochs", _with_never(snapshot.leader_epochs)),
        **({"gaps": _gap_lists(snapshot.gaps)} if snapshot.gaps else {}),
        **({} if snapshot.run is None else {"run": asdict(snapshot.run)}),
        **({} if snapshot.registry is None else {"registry": dict(snapshot.registry)}),
    }


def decode(data: bytes, *, changes: Sequence[Change] = (), object_name: str | None = None) -> Snapshot:
    """The snapshot, or what `changes` make of it.

    UnsupportedFormatError: a version that this release does not know. CorruptDataError: it is damaged.
    """
    document, text = _document(data, object_name)
    version = document.get(FORMAT_FIELD)
    if version != FORMAT_VERSION or isinstance(version, bool):
        what = "it is not a snapshot of maxbrod" if version is None else f"its version is {version!r}"
        raise UnsupportedFormatError(
            f"the snapshot cannot be read: {what}",
            operation=_OPERATION,
            object_name=object_name,
            hint=f"this release reads version {FORMAT_VERSION}; use the release that wrote it, or a newer one",
        )
    try:
        checksum = document.pop(_CHECKSUM_FIELD)
        # Usually `text` is what would be written, with the checksum in between. To write the whole document again takes
        # a third of a second if it is large.
        if not _is_of(checksum, text) and checksum != _checksum(document):
            raise _corrupt("its checksum does not match", object_name)
        return _snapshot(_changed(document, changes, object_name))
    except (KeyError, RecursionError) as error:
        raise _corrupt("it has no checksum, or is nested too deep", object_name) from error
    except ValidationError as error:
        wrong = error.errors(include_input=False, include_url=False)[0]
        about = f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}"
        raise _corrupt(f"a field is missing or is not what it should be ({about})", object_name) from error


def is_intact(data: bytes) -> bool:
    """True if these are the bytes of a snapshot as it was written, without parsing them; if not, `decode` says why."""
    try:
        text = unpack_document(data)
    except CorruptDataError:
        return False
    start = text.find(field := f',"{_CHECKSUM_FIELD}":"'.encode())
    checksum = text[start + len(field) :][:8]
    known = f'"{FORMAT_FIELD}":{FORMAT_VERSION},'.encode() in text and text.count(field) == 1
    return known and _is_of(checksum.decode("ascii", "replace"), text)


def _changed(document: dict[str, Any], changes: Sequence[Change], object_name: str | None) -> dict[str, Any]:
    if not changes:
        return document
    try:
        # The runs before the shared snapshot are not those before this run.
        return apply_changes(_without(document, RUNS), changes)
    except (LookupError, TypeError, ValueError) as error:
        raise _corrupt(f"the changes that a run recorded do not fit it ({error})", object_name) from error


def _text(document: Mapping[str, Any]) -> NDArray[np.uint8]:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return np.frombuffer(text.encode(), np.uint8)


def _checksum(document: Mapping[str, Any]) -> str:
    """The CRC of the document's text without this field. The zstd frames have no checksum of their own."""
    return f"{crc32c(_text(document)):08x}"


def _is_of(checksum: object, text: bytes) -> bool:
    field = f',"{_CHECKSUM_FIELD}":"{checksum}"'.encode()
    rest = text.replace(field, b"")
    return text.count(field) == 1 and f"{crc32c(np.frombuffer(rest, np.uint8)):08x}" == checksum


def _by_topic(ends: Mapping[PartitionId, int | None]) -> dict[str, list[int | None]]:
    """Null for a partition that the archive does not have."""
    if isinstance(ends, PartitionNumbers):
        return {topic_id: list(numbers) for topic_id, numbers in ends.lists.items()}
    counts = count_partitions((place.topic_id, place.partition) for place in ends)
    lists: dict[str, list[int | None]] = {topic_id: [None] * count for topic_id, count in counts.items()}
    for place, end in ends.items():
        lists[place.topic_id][place.partition] = end
    return lists


def _with_never(values: Mapping[PartitionId, int | None]) -> Mapping[PartitionId, int | None]:
    if isinstance(values, PartitionNumbers):
        return values
    return {partition: NEVER if value is None else value for partition, value in values.items()}


def _optional(name: str, numbers: Mapping[PartitionId, int | None]) -> dict[str, Any]:
    """A field that older releases did not write, in the form of `ends`; left out if empty."""
    return {name: _by_topic(numbers)} if numbers else {}


def gaps_of(rows: Iterable[Any]) -> dict[PartitionId, list[ExplainedGap]]:
    """The gaps among rows of the catalog, in the form of `Snapshot.gaps`."""
    found: dict[PartitionId, list[ExplainedGap]] = {}
    for row in rows:
        place = PartitionId(topic_id=row.topic_id, partition=row.partition)
        found.setdefault(place, []).append((row.base_offset, row.end_offset, str(row.reason)))
    return found


def _gap_lists(gaps: Mapping[PartitionId, Sequence[ExplainedGap]]) -> dict[str, list[list[Any]]]:
    lists: dict[str, list[list[Any]]] = {}
    for place, found in sorted(gaps.items()):
        lists.setdefault(place.topic_id, []).extend([place.partition, *gap] for gap in found)
    return lists


def _gaps(lists: Mapping[str, Sequence[tuple[int, int, int, str]]]) -> dict[PartitionId, list[ExplainedGap]]:
    found: dict[PartitionId, list[ExplainedGap]] = {}
    for topic_id, gaps in lists.items():
        for partition, base, end, reason in gaps:
            found.setdefault(PartitionId(topic_id=topic_id, partition=partition), []).append((base, end, reason))
    return found


def _document(data: bytes, object_name: str | None) -> tuple[dict[str, Any], bytes]:
    try:
        text = unpack_document(data)
        document = strict_json.parse(text)
    except CorruptDataError as error:
        raise _corrupt(f"it cannot be unpacked: {error.message}", object_name) from error
    except ValueError as error:
        raise _corrupt(f"it holds no JSON: {error}", object_name) from error
    if not isinstance(document, dict):
        raise _corrupt("it holds no JSON object", object_name)
    return document, text


_Number: TypeAlias = Annotated[int, Field(ge=0, le=INT64_MAX)]
_Point: TypeAlias = Annotated[int, Field(ge=NEVER, le=INT64_MAX)]
_Numbers: TypeAlias = dict[str, list[_Number | None]]
"""By topic id, a list by partition number."""
_Points: TypeAlias = dict[str, list[_Point | None]]


class _Run(BaseModel):
    model_config = ConfigDict(strict=True)

    started_at: int
    finished_at: int
    statistics: dict[str, Any]
    commit: _Number


class _Document(BaseModel):
    """The fields of a snapshot, as JSON has them. Older releases did not write those with a default."""

    model_config = ConfigDict(strict=True)

    run_id: str
    taken_at_ms: int
    cluster: dict[str, Any]
    topics: dict[str, str]
    ends: _Numbers
    recovery_points: _Points = {}
    behind: _Points = {}
    carried: dict[str, Any] | None = None
    log_starts: _Numbers = {}
    revisions: _Numbers = {}
    runs: list[dict[str, Any]] = []
    firsts: _Numbers = {}
    leader_epochs: _Points = {}
    gaps: dict[str, list[Annotated[tuple[_Number, _Number, _Number, str], Field(strict=False)]]] = {}
    run: _Run | None = None
    registry: dict[str, Any] | None = None


def _snapshot(document: Mapping[str, Any]) -> Snapshot:
    fields = dict(_Document.model_validate(document))
    fields |= {name: PartitionNumbers(fields[name]) for name in ("ends", "log_starts", "revisions", "firsts")}
    fields |= {
        name: PartitionNumbers(fields[name], never=NEVER) for name in ("recovery_points", "behind", "leader_epochs")
    }
    fields["gaps"] = _gaps(fields["gaps"])
    fields["run"] = None if fields["run"] is None else RunFacts(**dict(fields["run"]))
    return Snapshot(**{**fields, RUNS: tuple(fields[RUNS])})


def _corrupt(what: str, object_name: str | None) -> CorruptDataError:
    return CorruptDataError(
        f"the snapshot is damaged: {what}",
        operation=_OPERATION,
        object_name=object_name,
        hint="the catalog and all other runs are not affected; only `as of` this run is not possible",
    )


def find_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Return the changes that make `after` of `before`, which apply in order. Both are plain JSON.

    Runs that follow each other closely share one document: docs/format.md.
    """
    points = list(_differences(before.get(_POINTS), after.get(_POINTS), [_POINTS]))
    numbers = Counter(point for every in (after.get(_POINTS) or {}).values() for point in every if point is not None)
    if len(points) > 1 and numbers:
        # A run moves nearly all recovery points to its own start.
        everywhere: Change = [[_POINTS, None, None], numbers.most_common(1)[0][0]]
        moved = apply_changes({_POINTS: before.get(_POINTS)}, [everywhere])
        points = min(points, [everywhere, *_differences(moved[_POINTS], after[_POINTS], [_POINTS])], key=len)
    rest = _differences(_without(before, _POINTS), _without(after, _POINTS), [])
    return [*points, *rest]


def apply_changes(document: Mapping[str, Any], changes: Sequence[Change]) -> dict[str, Any]:
    """The changed document; the given one stays. LookupError, TypeError, ValueError: a change does not fit it."""
    changed: dict[str, Any] = deepcopy(dict(document))
    for path, *value in changes:
        *way, last = path
        for place in _places(changed, way):
            if not value:
                del place[last]
            else:
                for key in _keys(place, last):
                    place[key if isinstance(place, list) else str(key)] = value[0]
    return changed


def _places(place: Any, way: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401 - JSON
    if not way:
        yield place
        return
    for key in _keys(place, way[0]):
        yield from _places(place[key], way[1:])


def _keys(place: Any, key: Any) -> list[Any]:  # noqa: ANN401 - JSON
    """The keys or positions that a part of a path means."""
    if key is None:
        return (
            [position for position, value in enumerate(place) if value is not None]
            if isinstance(place, list)
            else [*place]
        )
    if isinstance(place, list) and (not isinstance(key, int) or key < 0):
        raise ValueError(f"{key!r} is no position in a list")
    return [key]


def _differences(before: Any, after: Any, path: list[Any]) -> Iterator[Change]:  # noqa: ANN401 - JSON
    # Python takes 1, 1.0 and True for equal, JSON does not.
    if before == after and repr(before) == repr(after):
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() - after.keys():
            yield [[*path, key]]
        for key, value in after.items():
            if key in before:
                yield from _differences(before[key], value, [*path, key])
            else:
                yield [[*path, key], value]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for position, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _differences(old, new, [*path, position])
    else:
        yield [path, after]


def _without(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != key}


class PartitionNumbers(Mapping[PartitionId, Number]):
    """A number for each partition, as a document has them: a list by partition number for each topic id.

    A snapshot has seven such numbers for each partition. As dictionaries by partition, those of a hundred thousand
    partitions took a second to make and a hundred megabytes, and a command needs few of them. `never`: the number in
    the lists that stands for None.
    """

    __slots__ = ("_never", "lists")

    def __init__(self, lists: Mapping[str, list[Any]], *, never: int | None = None) -> None:
        self.lists = lists
        """A partition that is null in its list is not in the mapping."""
        self._never = never

    def __getitem__(self, key: PartitionId) -> Number:
        numbers = self.lists.get(key.topic_id)
        found = numbers[key.partition] if numbers is not None and 0 <= key.partition < len(numbers) else None
        if found is None:
            raise KeyError(key)
        meant: Any = None if found == self._never else found
        return meant  # type: ignore[no-any-return] # None only with `never`

    def __iter__(self) -> Iterator[PartitionId]:
        return (partition for partition, _ in self.pairs())

    def __len__(self) -> int:
        return sum(len(numbers) - numbers.count(None) for numbers in self.lists.values())

    def __repr__(self) -> str:
        return f"PartitionNumbers({dict(self.items())!r})"

    def items(self) -> ItemsView[PartitionId, Number]:
        return _Items(self)

    def values(self) -> ValuesView[Number]:
        return _Values(self)

    def pairs(self) -> Iterator[tuple[PartitionId, Number]]:
        never = self._never
        for topic_id, numbers in self.lists.items():
            for partition, number in enumerate(numbers):
                if number is not None:
                    meant: Any = None if number == never else number
                    yield PartitionId(topic_id=topic_id, partition=partition), meant

    def has_same_partitions(self, other: Mapping[PartitionId, object]) -> bool:
        """True if both have a number for the same partitions."""
        if isinstance(other, PartitionNumbers) and self.lists.keys() == other.lists.keys():
            pairs = ((numbers, other.lists[topic_id]) for topic_id, numbers in self.lists.items())
            if all(len(mine) == len(theirs) and None not in mine and None not in theirs for mine, theirs in pairs):
                return True
        return self.keys() == other.keys()


class _Items(ItemsView[PartitionId, Number]):
    """Without a look-up for each."""

    _mapping: PartitionNumbers[Number]

    def __iter__(self) -> Iterator[tuple[PartitionId, Number]]:
        return self._mapping.pairs()


class _Values(ValuesView[Number]):
    _mapping: PartitionNumbers[Number]

    def __iter__(self) -> Iterator[Number]:
        return (number for _, number in self._mapping.pairs())
