"""The state of a cluster as a run captured it, and what has changed between two runs. Reads one snapshot each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from maxbrod.archive.archive import Archive
from maxbrod.archive.selection import select_names
from maxbrod.archive.snapshots import Moment, find_moment
from maxbrod.errors import EXIT_DONE, UsageError
from maxbrod.kafka.state.cluster_state import ClusterState, encode_state
from maxbrod.restore.plan.access import describe_entity, describe_quota
from maxbrod.work.report import Report

_ADDED: Final = "added"
_REMOVED: Final = "removed"
_CHANGED: Final = "changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """One thing that differs between two runs."""

    what: str
    """A topic, an ACL, a quota, a user, a token, settings, a feature or a group."""
    name: str
    change: str
    """added, removed or changed."""
    before: Any = None
    after: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateReport(Report):
    archive: str
    run_id: str
    """The run that captured it."""
    state: dict[str, Any]
    """As in a snapshot; docs/format.md describes it."""
    against: str | None = None
    """The run that it is compared with."""
    changes: tuple[StateChange, ...] | None = None

    @property
    def exit_code(self) -> int:
        return EXIT_DONE


def show_state(
    archive: Archive, topics: Sequence[str] = (), *, as_of: str | None = None, against: str | None = None
) -> StateReport:
    """Return the state as of a run, or the newest one. UsageError: there is no such run, or it captured no cluster."""
    state, moment = state_at(archive, topics, as_of)
    before = None if against is None else state_at(archive, topics, against, may_come=True)
    return StateReport(
        archive=archive.url,
        run_id=_run_id(moment),
        state=encode_state(state),
        against=None if before is None else _run_id(before[1]),
        changes=None if before is None else tuple(changes_between(before[0], state)),
    )


def state_at(
    archive: Archive, topics: Sequence[str], as_of: str | None, *, may_come: bool = False
) -> tuple[ClusterState, Moment]:
    moment = find_moment(archive.storage, archive.catalog.runs(), as_of, needed=True)
    if moment.knowledge is None:
        raise UsageError(
            "no run has captured the state of a cluster",
            object_name=archive.url,
            hint="a backup of a cluster does; see 'maxbrod ls --runs'",
        )
    # Without what the run carries on: that is the archive's, and no longer the cluster's.
    return select_state(moment.knowledge.cluster, topics, may_come=may_come), moment


def select_state(state: ClusterState, topics: Sequence[str], *, may_come: bool = False) -> ClusterState:
    """Return the state with these topics, and without what is about none of them. All topics: as it is."""
    if not topics:
        return state
    names = select_names({topic.name for topic in state.topics}, topics, may_come=may_come)
    return replace(state, topics=tuple(topic for topic in state.topics if topic.name in names))


def _run_id(moment: Moment) -> str:
    assert moment.run is not None  # noqa: S101 - a moment with a cluster has one
    return moment.run.run_id


def changes_between(before: ClusterState, after: ClusterState) -> Iterator[StateChange]:
    """Compare two states. What one of them could not read is not compared. Offsets of groups always move: not here."""
    for what, old, new in (
        ("topic", _topics(before), _topics(after)),
        ("ACL", _listed(before.acls), _listed(after.acls)),
        ("quota", _quotas(before), _quotas(after)),
        ("user", _listed(before.users), _listed(after.users)),
        ("token", _tokens(before), _tokens(after)),
        ("settings", _settings(before), _settings(after)),
        ("feature", before.features, after.features),
        ("group", _groups(before), _groups(after)),
    ):
        if old is None or new is None:
            continue
        for name in sorted({*old, *new}):
            if name not in old:
                yield StateChange(what=what, name=name, change=_ADDED, after=new[name])
            elif name not in new:
                yield StateChange(what=what, name=name, change=_REMOVED, before=old[name])
            elif old[name] != new[name]:
                yield StateChange(what=what, name=name, change=_CHANGED, before=old[name], after=new[name])


def _topics(state: ClusterState) -> Mapping[str, Any]:
    return {
        topic.name: {
            "topic_id": topic.topic_id,
            "partitions": topic.partition_count,
            "replication_factor": topic.replication_factor,
            "configs": None if topic.configs is None else dict(topic.configs),
        }
        for topic in state.topics
    }


def _listed(values: tuple[Any, ...] | None) -> Mapping[str, Any] | None:
    return None if values is None else {" ".join(map(str, asdict(value).values())): asdict(value) for value in values}


def _quotas(state: ClusterState) -> Mapping[str, Any] | None:
    if state.quotas is None:
        return None
    return {describe_quota(quota): dict(quota.values) for quota in state.quotas}


def _settings(state: ClusterState) -> Mapping[str, Any] | None:
    if state.settings is None:
        return None
    return {describe_entity(entity): dict(entity.values) for entity in state.settings}


def _groups(state: ClusterState) -> Mapping[str, Any]:
    return {
        group.group_id: {
            "type": group.type,
            "protocol_type": group.protocol_type,
            "topology": None if group.topology is None else [asdict(part) for part in group.topology],
        }
        for group in state.groups
    }


def _tokens(state: ClusterState) -> Mapping[str, Any] | None:
    return None if state.tokens is None else {token.token_id: asdict(token) for token in state.tokens}
