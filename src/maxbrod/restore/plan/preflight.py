"""Finds every obstacle to a restore at once, before anything is changed; also the rights that it needs and lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maxbrod.kafka.state.cluster_state import GROUP_SETTINGS, TopicState
from maxbrod.model import GapReason, TopicPartition, is_topic_name
from maxbrod.restore.plan.obstacles import Obstacle, ObstacleKind
from maxbrod.restore.plan.request import OffsetsMode, RestoreRequest
from maxbrod.restore.plan.sources import TROUBLES_MAX, Source, UnreadableRange
from maxbrod.restore.plan.targets import (
    CLEANUP_POLICY,
    MIN_INSYNC_REPLICAS,
    PLACED,
    RETENTION_BYTES,
    RETENTION_MS,
    UNKNOWN_END,
    OffsetsPlan,
    Right,
    TargetState,
    TargetTopic,
    retention_of,
)

if TYPE_CHECKING:
    from maxbrod.restore.plan.access import AccessPlan

_DAY_S: Final = 86_400
_KAFKA_DEFAULTS: Final = {CLEANUP_POLICY: "delete", RETENTION_MS: str(7 * _DAY_S * 1000)}
_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"})
_MISSING: Final = {
    None: (ObstacleKind.INCOMPLETE, "the archive has no row for"),
    GapReason.CORRUPT: (ObstacleKind.CORRUPT, "the log had damaged batches, or an object of the archive was lost, at"),
    GapReason.UNEXPLAINED: (ObstacleKind.UNEXPLAINED, "records are missing for an unknown reason among"),
    GapReason.PRUNED: (ObstacleKind.PRUNED, "records that are asked for were pruned since, among"),
}
_LOST: Final = "put the objects back from a copy of the archive; or restore without these offsets: say --accept-gaps"
_HOLES_HINT: Final = "holes are filled with empty transactions instead, about 200 a second"
_ACCEPT: Final = "see 'maxbrod show'; to restore all other records, say --accept-gaps"
_UNDO: Final = (
    "'maxbrod prune --undo' brings them back in the prune's grace period; or choose a later point in time; or restore "
    "all other records: say --accept-gaps"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One topic of a plan, with what is known about its source and its target."""

    target: TargetTopic
    archived: TopicState | None
    sources: Sequence[Source]
    offsets: Sequence[OffsetsPlan]
    """The offsets mode of each source."""


def find_obstacles(
    request: RestoreRequest, subjects: Sequence[Subject], state: TargetState, *, now_ms: int
) -> Iterator[Obstacle]:
    """In no particular order. Names that the archive lacks are reported where topics are chosen."""
    yield from _names(subjects, state)
    yield from _provenance(request, subjects)
    for subject in subjects:
        yield from _archive(request, subject.sources)
        yield from _target(request, subject, state)
        yield from _configuration(request, subject, state)
        yield from _retention(request, subject, state, now_ms)


def why_left_out(topic: str) -> str:
    """The reason why an internal topic of the archive is not restored by default."""
    if topic in _INTERNAL:
        return "it belongs to the brokers, and no client may write to it; restore groups with --groups"
    return "its name begins with __, as those of internal topics do: name it with --topic to restore it"


def _archive(request: RestoreRequest, sources: Sequence[Source]) -> Iterator[Obstacle]:
    for source in sources:
        where = f"{source.topic}-{source.partition}"
        for missing in source.troubles:
            kind, what = _MISSING[missing.reason]
            yield Obstacle(
                kind,
                where,
                f"{what} offsets {missing.first} to {missing.end}",
                _UNDO if missing.reason is GapReason.PRUNED else _ACCEPT,
                fatal=not request.accept_gaps,
                offset=missing.first,
            )
        yield from lost_obstacles(source, source.lost, accepted=request.accept_gaps)
        if source.troubles_total > len(source.troubles):
            more = source.troubles_total - len(source.troubles)
            yield Obstacle(
                ObstacleKind.INCOMPLETE, where, f"{more} more ranges like these", _ACCEPT, fatal=not request.accept_gaps
            )


def lost_obstacles(source: Source, lost: Sequence[UnreadableRange], *, accepted: bool) -> Iterator[Obstacle]:
    """Ranges that rows name and that cannot be read from their objects."""
    where = f"{source.topic}-{source.partition}"

    def obstacle(what: str, offset: int | None) -> Obstacle:
        kind = ObstacleKind.CORRUPT
        return Obstacle(kind, where, what, _LOST, fatal=not accepted, offset=offset)

    for range_ in lost[:TROUBLES_MAX]:
        yield obstacle(str(range_), range_.first)
    if len(lost) > TROUBLES_MAX:
        yield obstacle(f"{len(lost) - TROUBLES_MAX} more objects like these", None)


def _names(subjects: Sequence[Subject], state: TargetState) -> Iterator[Obstacle]:
    taken: dict[str, str] = {}
    # Two names that differ only in these characters collide in metrics, so Kafka refuses the second one.
    alike = {name.replace(".", "_"): name for name in state.names}
    for target in (subject.target for subject in subjects):
        why, hint = None, "give the topic another name"
        folded = target.name.replace(".", "_")
        if not is_topic_name(target.name):
            why = f"Kafka does not allow the topic name {target.name!r}"
        elif target.name in _INTERNAL:
            why, hint = f"{target.name} belongs to the brokers: no client may write to it", "restore groups by name"
        elif target.name in taken:
            why = f"{taken[target.name]} and {target.source_topic} would both become {target.name}"
        elif alike.get(folded, target.name) != target.name and not target.exists:
            why = f"Kafka does not distinguish {target.name} from {alike[folded]}, which exists"
        if why is not None:
            yield Obstacle(ObstacleKind.NAME, target.source_topic, why, hint)
        taken.setdefault(target.name, target.source_topic)
        alike.setdefault(folded, target.name)


def _provenance(request: RestoreRequest, subjects: Sequence[Subject]) -> Iterator[Obstacle]:
    """Refuse rather than restore without the requested headers."""
    for target in (subject.target for subject in subjects if request.provenance and subject.target.repartitioned):
        what = "records that change their partition cannot get headers that name their source yet"
        hint = "restore without --provenance, or with the archived number of partitions"
        yield Obstacle(ObstacleKind.PARTITION_COUNT, target.name, what, hint)


def _target(request: RestoreRequest, subject: Subject, state: TargetState) -> Iterator[Obstacle]:
    target = subject.target
    yield from _partitions(request, target)
    factor, wanted = target.replication_factor, target.wanted_replication_factor
    if factor < wanted:
        yield Obstacle(
            ObstacleKind.BROKERS,
            target.name,
            f"it had {wanted} replicas, and there are {factor} brokers",
            f"it is restored with {factor}" if not request.strict else "add brokers, or leave out --strict",
            fatal=request.strict,
        )
    pairs = list(zip(subject.sources, subject.offsets, strict=True))
    # If records change their partition, all partitions have the same reason.
    for source, offsets in pairs[:1] if target.repartitioned else pairs:
        yield from _offsets(request, target, source, offsets)
    if UNKNOWN_END in target.bases:
        partition = target.bases.index(UNKNOWN_END)
        what = f"the log end of partition {partition} is unknown"
        hint = "run it again when all brokers are up"
        yield Obstacle(ObstacleKind.PERMISSION, target.name, what, hint)
    elif request.offsets is OffsetsMode.AUTO and _holds_records(subject, state):
        yield Obstacle(
            ObstacleKind.TARGET_NOT_EMPTY,
            target.name,
            "it is not empty",
            "restore under another name, delete it, or say --offsets append to add to its records",
        )


def _holds_records(subject: Subject, state: TargetState) -> bool:
    """True if a partition that is written to holds records. Other partitions may."""
    target = subject.target
    written = {source.partition for source in subject.sources}
    partitions = range(target.partition_count) if target.repartitioned else written
    extents = (state.extents.get(TopicPartition(topic=target.name, partition=partition)) for partition in partitions)
    return any(extent is not None and not extent.empty for extent in extents)


def _partitions(request: RestoreRequest, target: TargetTopic) -> Iterator[Obstacle]:
    """Keys are hashed again only on request."""
    wanted, present = request.partition_count_of(target.source_topic), target.partition_count
    if wanted == present or (wanted is None and not target.repartitioned):
        return
    if wanted is None:
        what = f"it has {present} partitions, the archived topic {target.source_partition_count}"
        hint = f"restore under another name, or say --partition-count {present}, which hashes keys again"
    else:
        what = f"it has {present} partitions, not {wanted}"
        hint = f"restore under another name, or say --partition-count {present}"
    yield Obstacle(ObstacleKind.PARTITION_COUNT, target.name, what, hint)


def _offsets(request: RestoreRequest, target: TargetTopic, source: Source, offsets: OffsetsPlan) -> Iterator[Obstacle]:
    where = str(TopicPartition(topic=target.name, partition=source.partition))
    append = "restore under another name, or say --offsets append"
    exact = f"--offsets exact keeps them, in about {offsets.cost.seconds:.0f} s" if not target.exists else None
    if target.repartitioned:
        where, exact = target.name, "--offsets append says that this is intended, --strict refuses it"
        append = "leave out --offsets exact, or --partition-count"
    if offsets.obstacle is not None:
        yield Obstacle(ObstacleKind.OFFSETS, where, f"offsets cannot be kept: {offsets.obstacle}", append)
    elif offsets.mode is OffsetsMode.APPEND and request.offsets is OffsetsMode.AUTO:
        yield Obstacle(ObstacleKind.OFFSETS, where, f"offsets change: {offsets.why}", exact, fatal=request.strict)


def _configuration(request: RestoreRequest, subject: Subject, state: TargetState) -> Iterator[Obstacle]:
    target = subject.target

    def warn(what: str, hint: str, *, fatal: bool = request.strict) -> Obstacle:
        return Obstacle(ObstacleKind.CONFIG, target.name, what, hint, fatal=fatal)

    configs = target.configs
    if configs is None:
        what = "its configuration cannot be read, so retention and compaction are not paused"
        yield warn(what, "allow DescribeConfigs on the topic")
        return
    if not target.exists and (subject.archived is None or subject.archived.configs is None):
        yield warn("the archive does not know its configuration", "set what it needs, or create it first")
    if configs.dropped:
        yield warn(f"these brokers do not know {', '.join(configs.dropped)}", "it is restored without")
    if configs.left_out:
        what = "it names brokers of the cluster that was backed up, or its value is unknown"
        yield warn(f"{', '.join(configs.left_out)} is not restored: {what}", "set it by hand if you need it")
    if target.exists and subject.archived is not None and subject.archived.configs is not None:
        other = sorted(
            name
            for name, value in subject.archived.configs.items()
            if value is not None and name not in PLACED and configs.final.get(name) != value
        )
        if other:
            what = f"it exists and keeps its configuration; the archive has other values for {', '.join(other)}"
            yield warn(what, "change them by hand to get the archived values")
    unknown = sorted(name for name in request.configs if state.known_configs and name not in state.known_configs)
    if unknown:
        yield warn(f"these brokers do not know {', '.join(unknown)}", "correct or leave out the setting", fatal=True)
    archived = {} if subject.archived is None else subject.archived.effective or {}
    least = configs.final.get(MIN_INSYNC_REPLICAS)
    if not target.exists and least is not None and archived.get(MIN_INSYNC_REPLICAS, least) != least:
        yield warn(f"{MIN_INSYNC_REPLICAS} becomes {least}", "raise it when there are more brokers")


def _retention(request: RestoreRequest, subject: Subject, state: TargetState, now_ms: int) -> Iterator[Obstacle]:
    """Records that the brokers delete as soon as retention is no longer paused."""
    target = subject.target
    configs, doubt = _final_configs(subject, state)
    hint = "set a longer retention for the restored topic, or read it before the restore ends"
    if not target.exists:
        hint = f"say --config-set {RETENTION_MS}=-1, or read it before the restore ends"

    def warn(what: str) -> Obstacle:
        why = f"the brokers delete records of it as soon as the restore ends: {what}{doubt}"
        return Obstacle(ObstacleKind.RETENTION, target.name, why, hint, fatal=request.strict)

    age_max_ms, bytes_max = retention_of(configs, RETENTION_MS), retention_of(configs, RETENTION_BYTES)
    oldest = min((source.min_timestamp for source in subject.sources if source.min_timestamp is not None), default=None)
    if age_max_ms is not None and oldest is not None and now_ms - oldest > age_max_ms:
        age, keeps = _duration(now_ms - oldest), _duration(age_max_ms)
        yield warn(f"the oldest are {age} old, and {RETENTION_MS} is {age_max_ms} ({keeps})")
    largest = max((source.raw_bytes for source in subject.sources), default=0)
    if target.repartitioned:
        largest = sum(source.raw_bytes for source in subject.sources) // target.partition_count
    if bytes_max is not None and largest > bytes_max:
        yield warn(f"a partition has about {largest} bytes, and {RETENTION_BYTES} is {bytes_max}")


def _duration(duration_ms: int) -> str:
    seconds = duration_ms // 1000
    return f"{seconds // _DAY_S} days" if seconds >= 2 * _DAY_S else f"{seconds} s"


def _final_configs(subject: Subject, state: TargetState) -> tuple[Mapping[str, str], str]:
    """The topic's configuration after the restore; and a note if that is uncertain."""
    target = subject.target
    own = {} if target.configs is None else target.configs.final
    archived = None if subject.archived is None else subject.archived.effective
    if target.exists:
        present = state.cluster.topic(target.name)
        if present is not None and present.effective is not None:
            return {**present.effective, **own}, ""
        return {**_KAFKA_DEFAULTS, **own}, "; its configuration cannot be read, and this is Kafka's default"
    unknown = subject.archived is None or subject.archived.configs is None
    why = ", because the archive does not know its configuration" if unknown else ""
    if state.defaults is not None:
        # Only if the value is the brokers': one of the topic itself needs no explanation.
        return {**state.defaults, **own}, f"; that is the brokers' default{why}" if RETENTION_MS not in own else ""
    if archived is not None:
        return {**archived, **own}, ""
    return {**_KAFKA_DEFAULTS, **own}, f"; that is Kafka's default, and that of these brokers is unknown{why}"


def find_missing_rights(
    request: RestoreRequest, subjects: Sequence[Subject], state: TargetState, access: AccessPlan
) -> Iterator[Obstacle]:
    """An obstacle for each needed right that is denied or unknown."""
    for right, is_needed in _needed(request, subjects, access).items():
        if is_needed and not state.rights.get(right, False):
            yield _obstacle(request, right, state)


def _needed(request: RestoreRequest, subjects: Sequence[Subject], access: AccessPlan) -> Mapping[Right, bool]:
    exact = [offset for subject in subjects for offset in subject.offsets if offset.mode is OffsetsMode.EXACT]
    return {
        Right.WRITE: bool(subjects),
        Right.READ: bool(subjects),
        Right.CREATE: any(not subject.target.exists for subject in subjects),
        # New topics too: they are created with temporary settings, which are removed in the end.
        Right.ALTER_CONFIGS: bool(subjects),
        Right.DELETE: any(plan.cost.leading for plan in exact),
        Right.CLUSTER_ACTION: any(plan.cost.holes for plan in exact),
        Right.READ_GROUPS: bool(request.groups),
        Right.ALTER_CLUSTER: access.acls is not None and bool(access.acls.create),
        Right.ALTER_CLUSTER_CONFIGS: (access.quotas is not None and bool(access.quotas.set))
        or (access.settings is not None and any(entity.kind != GROUP_SETTINGS for entity in access.settings.set)),
    }


def _obstacle(request: RestoreRequest, right: Right, state: TargetState) -> Obstacle:
    known, optional = right in state.rights, right is Right.CLUSTER_ACTION
    names = state.denied.get(right, ())
    more = f", nor on {len(names) - 1} more" if len(names) > 1 else ""
    return Obstacle(
        ObstacleKind.PERMISSION if known else ObstacleKind.RIGHT_UNKNOWN,
        names[0] if names else None,
        f"this user may not {right}{more}" if known else f"it is unknown whether this user may {right}",
        _HOLES_HINT if optional else f"allow {right}",
        fatal=not optional and (known or request.strict),
    )
