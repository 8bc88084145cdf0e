"""What became of each of many changes asked for in one request: done, or refused with Kafka's word for it.

Asks any broker, which passes a change on to the controller, and asks again for those that may yet be done. A change
whose answer got lost is asked for again, too: so creating what exists and deleting what does not count as done the
second time, and only then.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from maxbrod.errors import UnavailableError
from maxbrod.kafka.wire.client import retry
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Reaction, code_name, reaction
from maxbrod.kafka.wire.partitions import in_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Sequence

    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.kafka.wire.connection import Message

Item = TypeVar("Item", bound="Hashable")
PATIENCE_S: Final = 60.0
REQUEST_TIMEOUT_MS: Final = 20_000
"""How long a broker waits for the controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`code` is Kafka's: 0 is done. `details` is what the broker says beside it."""

    code: int
    details: str | None = None

    @property
    def done(self) -> bool:
        return self.code == 0

    @property
    def reason(self) -> str:
        """Why not, in one line."""
        return code_name(self.code) + (f": {self.details}" if self.details else "")


class _Asking(Generic[Item]):
    def __init__(self, items: Iterable[Item]) -> None:
        self.missing = list(dict.fromkeys(items))
        self.outcomes: dict[Item, Outcome] = {}
        self.passing: dict[Item, Outcome] = {}
        self.asked: Counter[Item] = Counter()

    def take(
        self, answers: Iterable[tuple[Item, Outcome]], as_good_as_done: Collection[int], final: Collection[int]
    ) -> None:
        for item, outcome in answers:
            if self.asked[item] > 1 and outcome.code in as_good_as_done:
                self.outcomes[item] = Outcome(code=0, details=outcome.details)
            elif outcome.done or outcome.code in final or reaction(outcome.code) is Reaction.FATAL:
                self.outcomes[item] = outcome
            else:
                self.passing[item] = outcome
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
    """The outcome for each item; those that could not be asked to the end have the last that was heard.

    `as_good_as_done` are codes that say so when it was asked for before, `final` those that usually may pass but here
    do not. UnavailableError where no broker answers.
    """
    asking: _Asking[Item] = _Asking(items)

    def build(portion: Sequence[Item]) -> Message:
        asking.asked.update(portion)
        return request(portion)

    def once(limit: Deadline) -> None:
        for portion in in_requests(list(asking.missing), per_request):
            answer = client.ask_any(partial(build, portion), deadline=limit)
            asking.take(read(answer, portion), as_good_as_done, final)
        if asking.missing:
            raise UnavailableError("some of it may yet be done")

    try:
        retry(once, deadline=deadline or Deadline.after(PATIENCE_S), what="a change to be done")
    except UnavailableError:
        if any(item not in asking.passing for item in asking.missing):
            raise
    return asking.outcomes | {item: asking.passing[item] for item in asking.missing}
