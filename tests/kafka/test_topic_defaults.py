"""How long brokers keep records of a topic that does not say it is known where this user may know it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.errors import UnavailableError
from maxbrod.kafka.state.topics import read_defaults, read_known_configs
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.restore.target import look_at_target
from maxbrod.sandbox.topics import create_topic
from support.kafka_reads import client_of

if TYPE_CHECKING:
    from maxbrod.sandbox.cluster import Cluster

pytestmark = pytest.mark.full


class _Answers:
    """A client whose broker answers with these values."""

    def __init__(self, values: dict[str, str | None] | None, *, error_code: int = 0) -> None:
        self._values, self._error_code = values, error_code

    def metadata(self, _: object, *, deadline: Deadline) -> Any:
        del deadline
        return SimpleNamespace(brokers={7: None, 9: None})

    def ask_broker(self, node_id: int, _: object, *, deadline: Deadline) -> Any:
        del deadline
        assert node_id == 7
        if self._values is None:
            raise UnavailableError("away")
        configs = [SimpleNamespace(name=name, value=value) for name, value in self._values.items()]
        return SimpleNamespace(results=[SimpleNamespace(error_code=self._error_code, configs=configs)])


def asked(client: Any) -> dict[str, str] | None:
    return read_defaults(client, deadline=Deadline.after(30))


def test_a_broker_says_how_long_it_keeps_records(cluster: Cluster) -> None:
    with client_of(cluster) as client:
        found = asked(client)
    assert found == {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"log.retention.ms": "5", "log.retention.minutes": "7", "log.retention.hours": "168"}, "5"),
        ({"log.retention.ms": None, "log.retention.minutes": "7", "log.retention.hours": "168"}, "420000"),
        ({"log.retention.ms": None, "log.retention.minutes": None, "log.retention.hours": "168"}, "604800000"),
        ({"log.retention.ms": None, "log.retention.minutes": None, "log.retention.hours": "-1"}, "-1"),
    ],
)
def test_the_finest_unit_wins(values: dict[str, str | None], expected: str) -> None:
    assert asked(_Answers(values)) == {"retention.ms": expected}


def test_nobody_knows_where_it_may_not_be_asked_or_nobody_answers() -> None:
    assert asked(_Answers({}, error_code=31)) is None
    assert asked(_Answers(None)) is None


def test_brokers_tell_which_settings_topics_may_have_also_while_there_is_no_topic(cluster: Cluster, topic: str) -> None:
    create_topic(cluster, topic)
    with client_of(cluster) as client:
        of_a_topic = read_known_configs(client, [topic], deadline=Deadline.after(30))
        of_the_brokers = read_known_configs(client, [], deadline=Deadline.after(30))
    assert of_a_topic is not None
    assert of_the_brokers is not None
    assert "message.timestamp.before.max.ms" in of_a_topic
    # Internal settings, which no topic has been given.
    assert {name for name in of_a_topic - of_the_brokers if "internal" not in name} == set()
    assert "no.such.setting" not in of_the_brokers


def test_brokers_before_3_6_do_not_know_the_newer_limits_of_timestamps() -> None:
    old = _Answers({"log.message.timestamp.difference.max.ms": "1", "log.retention.ms": "1"})
    known = read_known_configs(old, [], deadline=Deadline.after(30))  # type: ignore[arg-type]
    assert known is not None
    assert {"message.timestamp.difference.max.ms", "retention.ms"} <= known
    assert "message.timestamp.before.max.ms" not in known


def test_whoever_may_not_read_settings_does_not_know_them() -> None:
    denied = _Answers({}, error_code=29)
    assert read_known_configs(denied, ["orders"], deadline=Deadline.after(30)) is None  # type: ignore[arg-type]


def test_a_restore_plans_with_the_settings_that_the_brokers_know(cluster: Cluster, topic: str) -> None:
    create_topic(cluster, topic)
    with client_of(cluster) as client:
        known = look_at_target(client, ["not-there-yet"], patience_s=30).known_configs
    assert known is not None
    assert {"retention.ms", "message.timestamp.before.max.ms"} <= known
    assert "message.timestamp.difference.max.ms" not in known
