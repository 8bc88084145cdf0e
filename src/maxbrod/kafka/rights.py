"""What this user may do with a cluster, as its brokers tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kafka.protocol.admin import DescribeClusterRequest

from maxbrod.errors import MaxbrodError

if TYPE_CHECKING:
    from maxbrod.kafka.client import KafkaClient
    from maxbrod.kafka.deadline import Deadline

_CLUSTER_ACTION: Final = 9


def may_write_markers(client: KafkaClient, *, deadline: Deadline) -> bool:
    """Whether ClusterAction is allowed; False where nobody tells."""

    def request() -> Any:  # noqa: ANN401 - kafka-python is untyped
        return DescribeClusterRequest(include_cluster_authorized_operations=True)

    try:
        answer = client.ask_any(request, deadline=deadline)
    except MaxbrodError:
        return False
    return not answer.error_code and _CLUSTER_ACTION in answer.authorized_operations
