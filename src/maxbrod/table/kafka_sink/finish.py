"""Carries a decision out: commits its transactions, or finds that nothing came of it.

A decision whose transactions timed out before any of them was committed is void, and its batch may be written again.
One that came true in part is an error that names what is missing: it is never passed over.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from maxbrod.errors import RefusedError, UnavailableError
from maxbrod.kafka.produce.transactions import Standing, end, standings
from maxbrod.table.kafka_sink.state import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.table.kafka_sink.message import Filled
    from maxbrod.table.kafka_sink.state import Decision, Decisions

OPERATION: Final = "commit a batch"
_LOG: Final = logging.getLogger(__name__)
_NAMED_MAX: Final = 5
# The second look tells; more are for brokers that change places meanwhile.
_ROUNDS_MAX: Final = 5


def finish(client: KafkaClient, decisions: Decisions, decision: Decision) -> Outcome:
    """DONE or VOID, and remembered. It may have been carried out before, by this driver or another, even in part."""
    for _ in range(_ROUNDS_MAX):
        found = standings(client, (each.transaction for each in decision.filled))
        kinds = set(found.values())
        if Standing.FORGOTTEN in kinds or kinds >= {Standing.ABORTED, Standing.COMMITTED}:
            raise _in_part(decisions, decision, found)
        void = Standing.ABORTED in kinds
        try:
            for each in decision.filled:
                if found[each.transaction.transactional_id] is Standing.OPEN:
                    end(client, each.transaction, commit=not void)
        except RefusedError:
            continue  # it ended otherwise meanwhile; what that means, all of them together tell
        outcome = Outcome.VOID if void else Outcome.DONE
        decisions.settle(decision, outcome)
        if void:
            _LOG.warning("batch %d was decided on, but timed out; nothing of it counts", decision.batch_id)
        return outcome
    raise UnavailableError("transactions end and do not end", operation=OPERATION, object_name=decision.path)


def _in_part(decisions: Decisions, decision: Decision, found: Mapping[str, Standing]) -> RefusedError:
    lost = [each for each in decision.filled if found[each.transaction.transactional_id] is not Standing.COMMITTED]
    name = decisions.storage.name_of(decision.path)
    return RefusedError(
        f"batch {decision.batch_id} was decided on, but {len(lost)} of its {len(decision.filled)} transactions "
        f"timed out before they were committed: {told(lost)} are missing",
        operation=OPERATION,
        object_name=f"{name}.json",
        hint=f"to go on without them, create the empty object {name}.done; to have all of the batch written again, "
        f"those that are there too, create {name}.void",
    )


def told(filled: Sequence[Filled]) -> str:
    counts: dict[str, int] = {}
    for each in filled:
        for where, count in each.records.items():
            counts[str(where)] = counts.get(str(where), 0) + count
    words = [f"{count} records of {name}" for name, count in sorted(counts.items())]
    more = len(words) - _NAMED_MAX
    return ", ".join(words[:_NAMED_MAX]) + (f" and of {more} other partitions" if more > 0 else "")
