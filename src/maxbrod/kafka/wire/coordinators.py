"""Asks the coordinators of many groups, or of many transactional ids, and again where one moves or does not answer.

Owns who coordinates what. What could not be had is told beside what could; nothing is raised.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from kafka.protocol.metadata import FindCoordinatorRequest

from maxbrod.errors import MaxbrodError, UnavailableError
from maxbrod.kafka.wire.client import retry
from maxbrod.kafka.wire.coordination import GROUP
from maxbrod.kafka.wire.error_codes import Reaction, code_name, reaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.kafka.wire.deadline import Deadline

Found = TypeVar("Found")
_GROUPS_PER_REQUEST: Final = 200


class Answers(Generic[Found]):
    """What was found for each group, and why nothing was for the others."""

    def __init__(self) -> None:
        self.found: dict[str, Found] = {}
        self.refused: dict[str, str] = {}

    def missing(self, group_ids: Iterable[str]) -> list[str]:
        return [each for each in group_ids if each not in self.found and each not in self.refused]

    def refuse(self, group_id: str, code: int) -> None:
        """Unless it may pass, and then the group is asked for again."""
        if reaction(code) is Reaction.FATAL:
            self.refused[group_id] = code_name(code)


def ask_coordinators(
    client: KafkaClient,
    group_ids: Iterable[str],
    request: Callable[[Sequence[str]], Any],
    read: Callable[[Any], Iterable[tuple[str, int, Found]]],
    *,
    deadline: Deadline,
    kind: int = GROUP,
) -> Answers[Found]:
    """One request for each coordinator and 200 groups. `read` tells each group's error code and what was found.

    With the kind TRANSACTION, the ids are transactional ones.
    """
    wanted = sorted(group_ids)
    answers: Answers[Found] = Answers()

    def once(limit: Deadline) -> None:
        failure = UnavailableError("a coordinator moves or loads")
        client.metadata([], deadline=limit)  # a coordinator may be a broker that was not there before
        for node_id, portion in _by_coordinator(client, answers, answers.missing(wanted), kind, limit):
            try:
                _take(answers, read(client.ask_broker(node_id, request(portion), deadline=limit)))
            except UnavailableError as error:
                failure = error
        if answers.missing(wanted):
            raise failure

    try:
        if wanted:
            what = f"the coordinators of {len(wanted)} {'groups' if kind == GROUP else 'transactional ids'}"
            retry(once, deadline=deadline, what=what, stop=client.stop)
    except MaxbrodError as error:
        answers.refused |= dict.fromkeys(answers.missing(wanted), str(error))
    return answers


def _take(answers: Answers[Found], answered: Iterable[tuple[str, int, Found]]) -> None:
    for group_id, code, found in answered:
        if code:
            answers.refuse(group_id, code)
        else:
            answers.found[group_id] = found


def _by_coordinator(
    client: KafkaClient, answers: Answers[Found], group_ids: Sequence[str], kind: int, deadline: Deadline
) -> Iterator[tuple[int, Sequence[str]]]:
    coordinated: dict[int, list[str]] = defaultdict(list)
    for portion in _portions(group_ids):
        answer = client.ask_any(partial(_request, kind, portion), deadline=deadline)
        for each in answer.coordinators:
            if each.error_code:
                answers.refuse(each.key, each.error_code)
            else:
                coordinated[each.node_id].append(each.key)
    for node_id, groups in coordinated.items():
        yield from ((node_id, portion) for portion in _portions(groups))


def _request(kind: int, group_ids: Sequence[str]) -> Any:  # noqa: ANN401 - kafka-python is untyped
    return FindCoordinatorRequest(key_type=kind, coordinator_keys=list(group_ids))


def _portions(group_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (group_ids[first : first + _GROUPS_PER_REQUEST] for first in range(0, len(group_ids), _GROUPS_PER_REQUEST))
