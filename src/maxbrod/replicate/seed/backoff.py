"""The waits of an ingress for a late segment, which double and add up to a total exactly. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

RETRIES_MAX: Final = 50
JITTER: Final = 0.25


def doubling_waits(total_ns: int, count: int) -> tuple[int, ...]:
    """`count` waits, each twice the one before. The last one takes what rounding left, so that the sum is exact."""
    if not 1 <= count <= RETRIES_MAX:
        raise UsageError(f"a late segment is retried 1 to {RETRIES_MAX} times, not {count}")
    first = total_ns // ((1 << count) - 1)
    if first < 1:
        raise UsageError(
            f"{count} doubling waits do not fit into {total_ns} ns", hint="use fewer retries, or a longer timeout"
        )
    waits = [first << index for index in range(count - 1)]
    return (*waits, total_ns - sum(waits))


def jittered(wait_ns: int, uniform: Callable[[float, float], float]) -> int:
    """The wait, up to a quarter shorter or longer, so that many instances do not act in step."""
    return round(wait_ns * uniform(1 - JITTER, 1 + JITTER))
