"""What the preflight runs in Spark's workers: says what their Python lacks, then what they cannot reach.

A nested function travels by value, not by name, so it also runs in a Python that lacks maxbrod. It may use only its own
names, and imports everything itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def prober(version: str, packages: tuple[str, ...], needs: bytes) -> Callable[[int], str]:
    """The function that a task calls. `needs` stays pickled until the worker is known to have maxbrod."""

    def probe(_: int) -> str:
        import json  # noqa: PLC0415 - see above, as all that follow
        import pickle  # noqa: PLC0415
        import socket  # noqa: PLC0415
        import sys  # noqa: PLC0415
        from importlib import metadata  # noqa: PLC0415

        found: dict[str, Any] = {"host": socket.gethostname(), "python": sys.executable, "lacks": [], "errors": []}
        for name in packages:
            try:
                there = metadata.version(name)
            except metadata.PackageNotFoundError:
                found["lacks"].append(name)
                continue
            if name == "maxbrod" and there != version:
                found["lacks"].append(f"maxbrod {version} (it has {there})")
        if not found["lacks"]:
            from maxbrod.work.reach import reach  # noqa: PLC0415

            found["errors"] = reach(pickle.loads(needs))  # noqa: S301 - the driver has pickled it
        return json.dumps(found)

    return probe
