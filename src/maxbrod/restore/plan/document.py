"""A plan as bytes: JSON in zstd under a digest, so that what runs after a crash is what was planned, or nothing."""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from maxbrod.batch.compression import compress, decompress
from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.kafka.state.cluster_state import Acl, Quota, QuotaEntity
from maxbrod.model import Codec, GapReason
from maxbrod.restore.plan.access import AccessPlan, AclPlan, QuotaPlan
from maxbrod.restore.plan.configs import ConfigChange, TopicConfigs
from maxbrod.restore.plan.obstacles import Obstacle, ObstacleKind
from maxbrod.restore.plan.offsets_mode import FillCost, OffsetsPlan
from maxbrod.restore.plan.plan import LeftOut, PartitionRestore, RestorePlan, SourceArchive, TopicPlan
from maxbrod.restore.plan.request import OffsetsMode
from maxbrod.restore.plan.sources import MissingRange, Source, UnreadableRange
from maxbrod.restore.plan.targets import TargetTopic
from maxbrod.restore.repartition.blocks import SourceExtent
from maxbrod.transform.plan import Changes, TransformPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Value = TypeVar("Value")

FORMAT_FIELD: Final = "maxbrod.restore"
FORMAT_VERSION: Final = 1
_DIGEST_FIELD: Final = "sha256"
_OPERATION: Final = "read the plan of a restore"


def encode_plan(plan: RestorePlan) -> bytes:
    """The same plan gives the same bytes."""
    document = {FORMAT_FIELD: FORMAT_VERSION, "plan": _encode(plan)}
    text = _text({**document, _DIGEST_FIELD: _digest(document)})
    return compress(Codec.ZSTD, np.frombuffer(text, np.uint8))


def plan_digest(plan: RestorePlan) -> str:
    """Of everything in it."""
    return _digest({FORMAT_FIELD: FORMAT_VERSION, "plan": _encode(plan)})


def decode_plan(data: bytes, *, object_name: str | None = None) -> RestorePlan:
    """UnsupportedFormatError: of a version that this release does not know. CorruptDataError: not what it claims."""
    try:
        document = json.loads(decompress(Codec.ZSTD, np.frombuffer(data, np.uint8)).tobytes())
        version = document.get(FORMAT_FIELD)
    except (CorruptDataError, ValueError, AttributeError, RecursionError) as error:
        raise _corrupt(str(error), object_name) from error
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise UnsupportedFormatError(
            f"the plan of a restore has version {version!r}",
            operation=_OPERATION,
            object_name=object_name,
            hint=f"this release knows version {FORMAT_VERSION}; go on with the release that began the restore",
        )
    try:
        if document.pop(_DIGEST_FIELD) != _digest(document):
            raise _corrupt("its digest does not match", object_name)
        return _plan(document["plan"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _corrupt(f"a field is missing or is not what it should be ({error!r})", object_name) from error


def _encode(value: object) -> Any:  # noqa: ANN401 - JSON
    """Fields that are as they are by default are left out: there may be 100,000 partitions."""
    if is_dataclass(value):
        pairs = ((each, getattr(value, each.name)) for each in fields(value))
        return {each.name: _encode(found) for each, found in pairs if found != _default(each)}
    if isinstance(value, tuple):
        return [_encode(each) for each in value]
    return dict(value) if isinstance(value, dict) else value


def _default(field: Any) -> Any:  # noqa: ANN401 - of any type
    return field.default if field.default_factory is MISSING else field.default_factory()


def _text(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(_text(document)).hexdigest()


def _make(cls: type[Value], document: Mapping[str, Any], **decoders: Callable[[Any], Any]) -> Value:
    """Fields of other types than JSON's have a decoder; keys that are not known are passed over."""
    known = {each.name for each in fields(cls)}  # type: ignore[arg-type] # a dataclass, as all that come here
    return cls(
        **{
            name: decoders[name](value) if name in decoders else value
            for name, value in document.items()
            if name in known
        }
    )


def _plan(document: Mapping[str, Any]) -> RestorePlan:
    return _make(
        RestorePlan,
        document,
        archive=lambda each: _make(SourceArchive, each),
        topics=lambda each: tuple(map(_topic, each)),
        groups=tuple,
        left_out=lambda each: tuple(_make(LeftOut, one) for one in each),
        obstacles=lambda each: tuple(_make(Obstacle, one, kind=ObstacleKind) for one in each),
        access=_access,
        transform=lambda each: None if each is None else _transform(each),
    )


def _transform(document: Mapping[str, Any]) -> TransformPlan:
    return _make(TransformPlan, document, fields=tuple, topics=lambda each: tuple(_make(Changes, one) for one in each))


def _access(document: Mapping[str, Any]) -> AccessPlan:
    return _make(
        AccessPlan,
        document,
        acls=lambda each: _make(AclPlan, each, **dict.fromkeys(each, _acls)),
        quotas=lambda each: _make(QuotaPlan, each, **dict.fromkeys(each, _quotas)),
        users=tuple,
    )


def _acls(document: list[Mapping[str, Any]]) -> tuple[Acl, ...]:
    return tuple(_make(Acl, each) for each in document)


def _quotas(document: list[Mapping[str, Any]]) -> tuple[Quota, ...]:
    return tuple(
        _make(Quota, each, entities=lambda one: tuple(_make(QuotaEntity, entity) for entity in one))
        for each in document
    )


def _topic(document: Mapping[str, Any]) -> TopicPlan:
    return _make(
        TopicPlan,
        document,
        target=_target,
        partitions=lambda each: tuple(map(_partition, each)),
        blocks=lambda each: tuple(_make(SourceExtent, one) for one in each),
    )


def _target(document: Mapping[str, Any]) -> TargetTopic:
    return _make(TargetTopic, document, configs=lambda each: None if each is None else _configs(each), bases=tuple)


def _configs(document: Mapping[str, Any]) -> TopicConfigs:
    return _make(TopicConfigs, document, hold=_change, release=_change, dropped=tuple, left_out=tuple)


def _change(document: Mapping[str, Any]) -> ConfigChange:
    return _make(ConfigChange, document, delete=tuple)


def _partition(document: Mapping[str, Any]) -> PartitionRestore:
    return _make(PartitionRestore, document, source=_source, offsets=_offsets)


def _source(document: Mapping[str, Any]) -> Source:
    return _make(
        Source,
        document,
        troubles=lambda each: tuple(_make(MissingRange, one, reason=_reason) for one in each),
        lost=decode_lost,
    )


def decode_lost(document: list[Mapping[str, Any]]) -> tuple[UnreadableRange, ...]:
    return tuple(_make(UnreadableRange, each) for each in document)


def _reason(value: str | None) -> GapReason | None:
    return None if value is None else GapReason(value)


def _offsets(document: Mapping[str, Any]) -> OffsetsPlan:
    return _make(OffsetsPlan, document, mode=OffsetsMode, cost=lambda each: _make(FillCost, each))


def _corrupt(what: str, object_name: str | None) -> CorruptDataError:
    return CorruptDataError(
        f"the plan of a restore is damaged: {what}",
        operation=_OPERATION,
        object_name=object_name,
        hint="delete what was restored so far, and begin anew",
    )
