"""The cluster at one run, and how far the archive reached then: a document of its own beside the catalog.

JSON in zstd, the same bytes for the same snapshot. Ends are stored per topic as a list by partition number, so that a
hundred thousand partitions take a few hundred kilobytes. What the cluster's state holds is not looked at here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod import strict_json
from maxbrod.batch.compression import compress, decompress
from maxbrod.batch.crc import crc32c
from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.model import Codec, PartitionId

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

FORMAT_FIELD: Final = "maxbrod.snapshot"
FORMAT_VERSION: Final = 1
_CHECKSUM_FIELD: Final = "crc32c"
_CARRIED_FIELD: Final = "carried"
_OPERATION: Final = "read a snapshot"
_INT64_MAX: Final = 2**63 - 1
_NEVER: Final = -1
_COMPLAINT_LETTERS_MAX: Final = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """`topics` names every topic id that `ends` speaks of; `cluster` is whatever JSON describes the cluster."""

    run_id: str
    taken_at_ms: int
    cluster: Mapping[str, Any]
    ends: Mapping[PartitionId, int]
    """The first offset that the archive does not answer for."""
    topics: Mapping[str, str]
    recovery_points: Mapping[PartitionId, int | None] = field(default_factory=dict)
    """Of each partition that a backup has chosen and the cluster still has, in milliseconds; None: none yet."""
    behind: Mapping[PartitionId, int | None] = field(default_factory=dict)
    """Partitions that the run did not archive as far as it was to: the end of each log, None where it is unknown."""
    carried: Mapping[str, Any] | None = None
    """What the cluster has lost and the archive still holds, as `planning.carried` has it; None in snapshots of before
    that was carried on."""
    log_starts: Mapping[PartitionId, int] = field(default_factory=dict)
    """Where the logs that the run looked at began; it knows nothing of others."""
    revisions: Mapping[PartitionId, int] = field(default_factory=dict)
    """How often rows of a partition had been replaced: with it the catalog finds those that there were then."""


def encode(snapshot: Snapshot) -> bytes:
    document = {
        FORMAT_FIELD: FORMAT_VERSION,
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
    }
    return compress(Codec.ZSTD, _text({**document, _CHECKSUM_FIELD: _checksum(document)}))


def decode(data: bytes, *, object_name: str | None = None) -> Snapshot:
    """UnsupportedFormatError: of a version that this release does not know. CorruptDataError: not what it claims."""
    document = _document(data, object_name)
    version = document.get(FORMAT_FIELD)
    if version != FORMAT_VERSION or isinstance(version, bool):
        what = "it is no snapshot of maxbrod" if version is None else f"its version is {version!r}"
        raise UnsupportedFormatError(
            f"the snapshot cannot be read: {what}",
            operation=_OPERATION,
            object_name=object_name,
            hint=f"this release knows version {FORMAT_VERSION}; use the one that wrote it, or a newer one",
        )
    try:
        if document.pop(_CHECKSUM_FIELD) != _checksum(document):
            raise _corrupt("its checksum does not match", object_name)
        return _snapshot(document)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise _corrupt(f"a field is missing or is not what it should be ({_about(error)})", object_name) from error


def _text(document: Mapping[str, Any]) -> NDArray[np.uint8]:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return np.frombuffer(text.encode(), np.uint8)


def _checksum(document: Mapping[str, Any]) -> str:
    """Of the document's text without this field. These zstd frames have none of their own."""
    return f"{crc32c(_text(document)):08x}"


def _by_topic(ends: Mapping[PartitionId, int]) -> dict[str, list[int | None]]:
    """Null for a partition that the archive knows nothing of."""
    counts: dict[str, int] = {}
    for each in ends:
        counts[each.topic_id] = max(counts.get(each.topic_id, 0), each.partition + 1)
    lists: dict[str, list[int | None]] = {topic_id: [None] * count for topic_id, count in counts.items()}
    for each, end in ends.items():
        lists[each.topic_id][each.partition] = end
    return lists


def _with_never(values: Mapping[PartitionId, int | None]) -> dict[PartitionId, int]:
    return {partition: _NEVER if value is None else value for partition, value in values.items()}


def _optional(name: str, numbers: Mapping[PartitionId, int]) -> dict[str, Any]:
    """A field that older releases did not write, in the form of `ends`; none where there is nothing to say."""
    return {name: _by_topic(numbers)} if numbers else {}


def _document(data: bytes, object_name: str | None) -> dict[str, Any]:
    try:
        text = decompress(Codec.ZSTD, np.frombuffer(data, np.uint8)).tobytes()
        document = strict_json.parse(text)
    except CorruptDataError as error:
        raise _corrupt(f"it cannot be unpacked: {error.message}", object_name) from error
    except ValueError as error:
        raise _corrupt(f"it holds no JSON: {error}", object_name) from error
    if not isinstance(document, dict):
        raise _corrupt("it holds no JSON object", object_name)
    return document


_OPTIONAL: Final[dict[str, Any]] = {
    "recovery_points": {},
    "behind": {},
    "log_starts": {},
    "revisions": {},
    _CARRIED_FIELD: None,
}
"""What snapshots of older releases lack."""


def _snapshot(document: Mapping[str, Any]) -> Snapshot:
    told = {**_OPTIONAL, **document}
    return Snapshot(
        run_id=_read(document, "run_id", partial(_as, str)),
        taken_at_ms=_read(document, "taken_at_ms", partial(_as, int)),
        cluster=_read(document, "cluster", partial(_as, dict)),
        ends=_read(document, "ends", _by_partition),
        topics=_read(document, "topics", lambda found: {topic_id: _as(str, name) for topic_id, name in found.items()}),
        recovery_points=_read(told, "recovery_points", _with_none),
        behind=_read(told, "behind", _with_none),
        log_starts=_read(told, "log_starts", _by_partition),
        revisions=_read(told, "revisions", _by_partition),
        carried=_read(told, _CARRIED_FIELD, lambda found: None if found is None else _as(dict, found)),
    )


def _read(document: Mapping[str, Any], field: str, read: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - of any type
    """One field. ValueError names it."""
    try:
        return read(document[field])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{field}: {_about(error)}") from error


def _about(error: Exception) -> str:
    text = ascii(error) if not isinstance(error, ValueError) else str(error)
    return text if len(text) <= _COMPLAINT_LETTERS_MAX else f"{text[: _COMPLAINT_LETTERS_MAX - 3]}..."


def _by_partition(lists: Mapping[str, Any], *, least: int = 0) -> dict[PartitionId, int]:
    return {
        PartitionId(topic_id=topic_id, partition=partition): _number(value, least)
        for topic_id, each in lists.items()
        for partition, value in enumerate(_as(list, each))
        if value is not None
    }


def _with_none(lists: Mapping[str, Any]) -> dict[PartitionId, int | None]:
    values = _by_partition(lists, least=_NEVER)
    return {partition: None if value == _NEVER else value for partition, value in values.items()}


def _number(value: object, least: int) -> int:
    number: int = _as(int, value)
    if not least <= number <= _INT64_MAX:
        raise ValueError(value)
    return number


def _as(kind: type[Any], value: object) -> Any:  # noqa: ANN401 - of the kind that was asked for
    if type(value) is not kind:
        raise TypeError(value)
    return value


def _corrupt(what: str, object_name: str | None) -> CorruptDataError:
    return CorruptDataError(
        f"the snapshot is damaged: {what}",
        operation=_OPERATION,
        object_name=object_name,
        hint="the catalog and all other runs are not touched by this; `as of` this run cannot be answered",
    )
