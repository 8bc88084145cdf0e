"""Which run a word means. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.catalog.rows import Run


def find_run(runs: Sequence[Run], run_id: str) -> Run:
    """By its id, or by the beginning of it where that is unambiguous; `latest` is the last one."""
    matching = [run for run in runs if run.run_id == run_id] or [run for run in runs if run.run_id.startswith(run_id)]
    if run_id == "latest":
        matching = list(runs[-1:])
    if len(matching) != 1:
        raise UsageError(
            f"{len(matching) or 'no'} runs of this archive are called {run_id!r}", hint="see 'maxbrod ls --runs'"
        )
    return matching[0]
