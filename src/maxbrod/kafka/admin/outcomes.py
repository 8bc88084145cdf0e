"""The outcome of each of many changes in one request: done, or refused with Kafka's error code.

A request goes to any broker, which forwards it to the controller. Changes with a retriable error are requested again.
So is a change whose response was lost: it may have been applied. Therefore creating what exists and deleting what does
not exist count as done from the second request on, and only then.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from maxbrod.errors import UnavailableError
from maxbrod.kafka.wire.client import KafkaClient, retry
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Reaction, code_name, reaction
from maxbrod.kafka.wire.metadata import in_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Sequence

    from maxbrod.kafka.wire.connection import Message

Item = TypeVar("Item", bound="Hashable")
PATIENCE_S: Final = 60.0
REQUEST_TIMEOUT_MS: Final = 20_000
"""The time that a broker waits for the controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`code` is Kafka's error code; 0 is done. `details` is the broker's message."""

    code: int
    details: str | None = None

    @property
    def done(self) -> bool:
        return self.code == 0

    @property
    def reason(self) -> str:
        """Why it was refused, in one line."""
        return code_name(self.code) + (f": {self.details}" if self.details else "")


class _Changes(Generic[Item]):
    """The changes that are done or refused, and those to be requested again."""

    def __init__(self, items: Iterable[Item]) -> None:
        self.missing = list(dict.fromkeys(items))
        self.outcomes: dict[Item, Outcome] = {}
        self.retriable: dict[Item, Outcome] = {}
        self.requests: Counter[Item] = Counter()

    def record(
        self, answers: Iterable[tuple[Item, Outcome]], as_good_as_done: Collection[int], final: Collection[int]
    ) -> None:
        for item, outcome in answers:
            # Requested before, and that response was lost: the change had been made.
            if self.requests[item] > 1 and outcome.code in as_good_as_done:
                self.outcomes[item] = Outcome(code=0, details=outcome.details)
            elif outcome.done or outcome.code in final or reaction(outcome.code) is Reaction.FATAL:
                self.outcomes[item] = outcome
            else:
                self.retriable[item] = outcome
        self.missing = [item for item in self.missing if item not in self.outcomes]


def change_each(
    client: KafkaClient,
    items: Iterable[Item],
    request: Callable[[Sequence[Item]], Message],
    read: Callable[[Message, Sequence[Item]], Iterable[tuple[Item, Outcome]]],
    *,
    as_good_as_done: Collection[int] = (),
    final: Collection[int] = (),
    per_request: int = 500,
    deadline: Deadline | None = None,
) -> dict[Item, Outcome]:
    """Return the outcome of each item. At the deadline an item has its last retriable outcome.

    `as_good_as_done` are codes that count as done if the change was requested before. `final` are codes that are
    retriable elsewhere but not here. UnavailableError if no broker answers.
    """
    changes: _Changes[Item] = _Changes(items)

    def build(portion: Sequence[Item]) -> Message:
        changes.requests.update(portion)
        return request(portion)

    def once(limit: Deadline) -> None:
        for portion in in_requests(list(changes.missing), per_request):
            answer = client.ask_any(partial(build, portion), deadline=limit)
            changes.record(read(answer, portion), as_good_as_done, final)
        if changes.missing:
            raise UnavailableError("some changes may still be made")

    try:
        retry(once, deadline=deadline or Deadline.after(PATIENCE_S), what="changes to be made")
    except UnavailableError:
        if any(item not in changes.retriable for item in changes.missing):
            raise
    return changes.outcomes | {item: changes.retriable[item] for item in changes.missing}
