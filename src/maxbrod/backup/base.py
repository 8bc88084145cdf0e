"""The base of backups into any layout: one archive and one cluster, for any number of runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Unpack

from maxbrod.backup.observation import ChosenTopics, Observed, choose_topics
from maxbrod.backup.plan.starts import parse_start
from maxbrod.config import Config
from maxbrod.kafka.fetch.news import LogPlace, News
from maxbrod.kafka.state.capture import capture
from maxbrod.kafka.state.cluster_state import ClusterState
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.layouts.foreign import Loss
from maxbrod.model import PartitionId, topic_id_text
from maxbrod.work.preflight import needs_of
from maxbrod.work.windows import rate_of_one
from maxbrod.work.work import Means, Work


class BackupBase(Work):
    """The work of a backup, with a Kafka client and workers that stay open between runs. Use it in a `with`.

    Spark starts when there is something to read. Any thread may set `stop`: the current run then ends at its next
    commit.
    """

    losses: Sequence[Loss] = ()
    """The facts that the layout of the archive does not keep."""

    def __init__(self, config: Config, **means: Unpack[Means]) -> None:
        super().__init__(config, **means)
        self.kafka, self.archive_url, self.request = config.cluster, config.archive_url, config.backup
        self.start = parse_start(self.request.start)
        self.recovery_point_ms: int | None = None
        """The recovery point of the chosen topics, even if the last run failed."""
        self.lags: Mapping[str, int | None] | None = None
        """For each topic, how many offsets the cluster had at the last run and the archive lacks; None if unknown."""
        self.pool = self.workers(needs_of(config, writes=True))
        self.client = self._undo.enter_context(KafkaClient(self.kafka, stop=self.stop))
        self.observed: Observed | None = None
        """The logs as the last run has seen them."""
        self.put_off: frozenset[PartitionId] = frozenset()
        """Partitions that the last run has left in the log until there is more: another record is no news."""
        self._news: News | None = None
        self.state_every_s = 0.0
        """The state of the cluster, but for its topics and logs, is captured anew after this time; 0: in each run."""
        self._captured: tuple[ClusterState, float] | None = None
        """The state that was captured last, and when."""

    def wait_for_news(self, seconds: float) -> bool:
        """True as soon as a log has a record that the last run has not seen; False after this time, or a stop."""
        if self._news is None:
            self._news = self._undo.enter_context(News(self.kafka, stop=self.stop))
        places = () if self.observed is None else _places(self.observed, self.put_off)
        return self._news.wait(places, seconds)

    def hurry(self) -> None:
        """Allow one more run after a stop, which reads everything to the end."""
        self.stop = self.client.stop = self.pool.stop = threading.Event()

    def capture(self) -> ClusterState:
        """Return the cluster as it is now."""
        return capture(self.client, settings=True, deadline=Deadline.after(self.config.patience))

    def look(self, *, demand: bool) -> tuple[ClusterState, ChosenTopics]:
        """Return the cluster and its requested topics: groups, settings, rights and users as they lately were.

        Asking for these takes longer than reading a second's records, and each run of a second would ask again. If
        topics or partitions have come or gone, the state is that of now.
        """
        if self._captured is not None and time.monotonic() - self._captured[1] < self.state_every_s:
            cluster = self._captured[0]
            chosen = self.choose(demand=demand, cluster=cluster)
            if _describes(cluster, chosen):
                return cluster, chosen
        cluster = self.capture()
        self._captured = cluster, time.monotonic()
        return cluster, self.choose(demand=demand, cluster=cluster)

    def choose(self, *, demand: bool, cluster: ClusterState | None = None) -> ChosenTopics:
        """Return the requested topics, as `choose_topics` does."""
        return choose_topics(self.client, self.request, patience_s=self.config.patience, demand=demand, cluster=cluster)

    def rate_of_one(self, tasks: int) -> float | None:
        """Return the bytes that each of these tasks may read in a second, of what the user allows all of them."""
        return rate_of_one(self.request.rate_bytes_per_s, min(tasks, self.pool.parallelism))


def _describes(cluster: ClusterState, chosen: ChosenTopics) -> bool:
    """True if the cluster has the same topics as this state of it, and the chosen ones as many partitions."""
    partitions = {topic.topic_id: topic.partition_count for topic in cluster.topics}
    return chosen.present == partitions.keys() and all(
        len(topic.partitions) == partitions[topic_id_text(topic.topic_id)] for topic in chosen.topics.values()
    )


def _places(observed: Observed, put_off: frozenset[PartitionId]) -> Iterator[LogPlace]:
    """The ends of all logs that have a leader, but for some partitions."""
    for state in observed.states:
        if state.id in put_off:
            continue
        topic = observed.topics[state.topic]
        found = topic.partitions.get(state.partition)
        if found is not None and found.leader is not None:
            yield LogPlace(
                topic=topic.name,
                topic_id=topic.topic_id,
                partition=state.partition,
                leader=found.leader,
                offset=state.end,
            )
