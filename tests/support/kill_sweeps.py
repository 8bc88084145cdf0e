"""Work that is killed at every point where a crash could matter, in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maxbrod.catalog import catalog as catalog_module
from maxbrod.storage.local import LocalStorage, _LocalWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

POINTS: tuple[tuple[Any, str], ...] = (
    (_LocalWriter, "commit"),
    (catalog_module, "write_commit"),
    (LocalStorage, "delete"),
)
POINTS_MAX = 60


class Killed(BaseException):
    """Nothing handles it, so that nothing runs after it but what only cleans up memory."""


class Fate:
    """Ends the work at the n-th moment before or after a call that changes what is stored."""

    def __init__(self, point: int) -> None:
        self.left = point
        self.met: str | None = None

    def meet(self, moment: str) -> None:
        self.left -= 1
        if self.left == -1:
            self.met = moment
            self.end(moment)

    def end(self, moment: str) -> None:
        raise Killed(moment)

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.meet(f"before {name}")
            result = function(*arguments, **options)
            self.meet(f"after {name}")
            return result

        return call


class LastingFate(Fate):
    """After the end nothing reaches the outside, either: what would undo the work does not run in a killed process."""

    def meet(self, moment: str) -> None:
        if self.met is not None:
            raise Killed(moment)
        super().meet(moment)


def sweep(
    make: Callable[[int], Callable[[], object]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    points: tuple[tuple[Any, str], ...] = POINTS,
    fated: type[Fate] = Fate,
) -> list[str]:
    """Make a place and run its work, killed at each point in turn, until it comes to its end; the moments it met."""
    met: list[str] = []
    for point in range(POINTS_MAX):
        work = make(point)
        fate = fated(point)
        with monkeypatch.context() as patched:
            for owner, name in points:
                patched.setattr(owner, name, fate.around(name, getattr(owner, name)))
            try:
                work()
            except Killed:
                met.append(str(fate.met))
                continue
        return met
    raise AssertionError("the work has more points than the sweep")
