"""Captures the state of a cluster around its records: everything that this user may see, and a list of the rest.

A refusal becomes a gap with the right that would close it, and everything else is still captured. Only an unreachable
cluster is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict
from functools import partial
from typing import Final, TypeVar

from maxbrod.errors import CorruptDataError, MaxbrodError
from maxbrod.kafka.groups import list_groups, read_offsets, read_topologies
from maxbrod.kafka.state.access import may_describe_cluster, read_acls, read_quotas, read_tokens, read_users
from maxbrod.kafka.state.cluster_state import HIDDEN_TOPIC, HIDDEN_TOPICS, ClusterState, Group, MissingState, TopicState
from maxbrod.kafka.state.settings import read_features, read_settings
from maxbrod.kafka.state.topics import SeenTopics, read_configs, see_topics, topics_on_disk
from maxbrod.kafka.wire.client import PATIENCE_S, KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code, code_name
from maxbrod.model import now_ms, topic_id_text

Result = TypeVar("Result")
_DESCRIBE_CLUSTER: Final = "allow this user to Describe the cluster"
_DESCRIBE_CONFIGS: Final = "allow this user to DescribeConfigs on the topic"
_DESCRIBE_GROUP: Final = "allow this user to Describe the group"
_SETTINGS: Final = "settings of groups, client metrics and brokers"
_DESCRIBE_SETTINGS: Final = "allow this user to DescribeConfigs on the cluster and on all groups"
NO_AUTHORIZER: Final = "the cluster has no authorizer"
_AGAIN: Final = "run it again"
_DESCRIBE_TOPIC: Final = "allow this user to Describe the topic, or leave the topic out"
# The state must not delay the records for long: a missing coordinator becomes a gap, and the run continues.
_SECTION_PATIENCE_S: Final = 30.0


def capture(
    client: KafkaClient,
    topics: Iterable[str] | None = None,
    groups: Collection[str] | None = None,
    *,
    settings: bool = False,
    deadline: Deadline | None = None,
) -> ClusterState:
    """The state of the cluster, with these topics and groups or with all that this user may see.

    With `settings`, also those of groups, client metrics and brokers, the levels of features, and delegation tokens.

    Topics and groups that do not exist are left out. UnavailableError if no broker answers before the deadline.
    """
    state = _Capture(client, deadline or Deadline.after(PATIENCE_S))
    return state.run(topics, groups, now_ms(), settings=settings)


class _Capture:
    """One capture. Each refusal adds a gap."""

    def __init__(self, client: KafkaClient, deadline: Deadline) -> None:
        self._client = client
        self._deadline = deadline
        self._gaps: list[MissingState] = []

    def run(
        self, names: Iterable[str] | None, group_ids: Collection[str] | None, taken_at_ms: int, *, settings: bool
    ) -> ClusterState:
        cluster = self._client.metadata([], deadline=self._deadline)
        sees_cluster = bool(self._attempt("rights on the cluster", may_describe_cluster))
        guarded, acls = self._attempt("ACLs", read_acls, _DESCRIBE_CLUSTER) or (True, None)
        if not guarded:
            self._gap("ACLs", NO_AUTHORIZER, "nothing is lost: without one there are no ACLs")
        topics = self._topics(names, sees_cluster=sees_cluster, guarded=guarded)
        groups = self._groups(group_ids, topics, sees_cluster=sees_cluster)
        read_them = partial(read_settings, groups=[group.group_id for group in groups])
        return ClusterState(
            cluster_id=cluster.cluster_id,
            taken_at_ms=taken_at_ms,
            brokers=tuple(cluster.brokers.values()),
            topics=topics,
            groups=groups,
            acls=acls,
            quotas=self._attempt("client quotas", read_quotas, "allow this user to DescribeConfigs on the cluster"),
            users=self._attempt("SCRAM users", read_users, _DESCRIBE_CLUSTER),
            settings=self._attempt(_SETTINGS, read_them, _DESCRIBE_SETTINGS) if settings else None,
            features=self._attempt("levels of features", read_features) if settings else None,
            tokens=self._attempt("delegation tokens", read_tokens) if settings else None,
            gaps=tuple(self._gaps),
        )

    def _attempt(self, what: str, action: Callable[..., Result], hint: str | None = None) -> Result | None:
        """The result of `action`; None and a gap if it is refused."""
        try:
            return action(self._client, deadline=self._limit)
        except CorruptDataError:
            raise
        except MaxbrodError as error:
            self._gap(what, str(error), hint if hint and _denied(str(error)) else error.hint or _AGAIN)
            return None

    @property
    def _limit(self) -> Deadline:
        # A third, so that later parts have time left if one waits in vain.
        return self._deadline.within(min(_SECTION_PATIENCE_S, self._deadline.remaining_s / 3))

    def _gap(self, what: str, why: str, hint: str) -> None:
        self._gaps.append(MissingState(what=what, why=why, hint=hint))

    def _topics(self, names: Iterable[str] | None, *, sees_cluster: bool, guarded: bool) -> tuple[TopicState, ...]:
        seen = see_topics(self._client, names, deadline=self._deadline)
        hidden = seen.denied if names is not None else self._hidden(seen, sees_cluster=sees_cluster, guarded=guarded)
        for name in hidden:
            self._gap(f"{HIDDEN_TOPIC}{name}", code_name(Code.TOPIC_AUTHORIZATION_FAILED), _DESCRIBE_TOPIC)
        configs, refused = read_configs(self._client, seen.topics, deadline=self._limit)
        for name, why in refused.items():
            self._gap(f"configuration of topic {name}", why, _way_out(why, _DESCRIBE_CONFIGS))
        return tuple(
            TopicState(
                name=topic.name,
                topic_id=topic_id_text(topic.topic_id),
                internal=topic.internal,
                replicas=tuple(partition.replicas for _, partition in sorted(topic.partitions.items())),
                configs=configs[topic.name].own if topic.name in configs else None,
                effective=configs[topic.name].effective if topic.name in configs else None,
            )
            for topic in seen.topics.values()
        )

    def _hidden(self, seen: SeenTopics, *, sees_cluster: bool, guarded: bool) -> tuple[str, ...]:
        """Topics that the list of all topics silently omits. Users that may Describe the cluster see them on disk.

        `guarded`: an authorizer may hide topics. Without one, a broker that does not answer leaves no doubt.
        """
        on_disk = self._attempt("the list of topics on disk", topics_on_disk) if sees_cluster else None
        if on_disk is None:
            why = "Kafka lists only topics that this user may describe, and does not report whether there are others"
            hint = f"{_DESCRIBE_CLUSTER}, and every topic that is to be kept"
            if sees_cluster:
                why = "Kafka lists only topics that this user may describe, and not every broker has listed its own"
                hint = "run it again when all brokers answer"
            if guarded:
                self._gap(HIDDEN_TOPICS, why, hint)
            return ()
        missing = on_disk - set(seen.topics)
        # A topic that was created or deleted a moment ago is not hidden.
        return see_topics(self._client, missing, deadline=self._deadline).denied if missing else ()

    def _groups(
        self, wanted: Collection[str] | None, topics: Iterable[TopicState], *, sees_cluster: bool
    ) -> tuple[Group, ...]:
        if wanted is not None and not wanted:
            return ()
        listed, incomplete = list_groups(self._client, deadline=self._limit)
        if wanted is not None:
            listed = {name: group for name, group in listed.items() if name in wanted}
        if incomplete:
            self._gap("groups", incomplete, "run it again when all brokers are up")
        if not sees_cluster:
            why = "Kafka lists only groups that this user may describe, and does not report whether there are others"
            self._gap("groups that may be hidden", why, f"{_DESCRIBE_CLUSTER}, and every group")
        topic_ids = {topic.name: topic.topic_id for topic in topics}
        offsets = read_offsets(self._client, listed.values(), topic_ids, deadline=self._limit)
        for group_id, why in offsets.refused.items():
            self._gap(f"offsets of group {group_id}", why, _way_out(why, _DESCRIBE_GROUP))
        topologies = read_topologies(self._client, listed.values(), deadline=self._limit)
        for group_id, why in topologies.refused.items():
            self._gap(f"topology of group {group_id}", why, _way_out(why, _DESCRIBE_GROUP))
        return tuple(
            Group(**asdict(group), offsets=offsets.found.get(group_id), topology=topologies.found.get(group_id))
            for group_id, group in listed.items()
        )


def _way_out(why: str, right: str) -> str:
    if _denied(why):
        return right
    return "upgrade the broker" if "too old" in why else _AGAIN


def _denied(why: str) -> bool:
    return "AUTHORIZATION_FAILED" in why  # all of Kafka's codes for it end so
