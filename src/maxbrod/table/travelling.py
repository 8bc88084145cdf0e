"""Lets readers and writers of the table travel to workers that may lack maxbrod, and say there what to set.

The session may be somebody else's, so no preflight has tested its workers. Spark would report only that a module is
missing, from inside of its own unpickling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Travelling:
    """Pickles as a function that travels by value, and its own class and fields as bytes."""

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        from pyspark import cloudpickle  # noqa: PLC0415 - only where one travels

        return _opener(), (cloudpickle.dumps((type(self), self.__dict__)),)


def _opener() -> Callable[[bytes], Any]:
    def opened(packed: bytes) -> Any:  # noqa: ANN401 - any of the classes
        import pickle  # noqa: PLC0415 - a nested function travels by value, so it imports all that it needs

        try:
            kind, fields = pickle.loads(packed)  # noqa: S301 - the driver has pickled it
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("maxbrod"):
                raise
            import socket  # noqa: PLC0415
            import sys  # noqa: PLC0415

            raise ModuleNotFoundError(
                f"the Python of the Spark workers on {socket.gethostname()} ({sys.executable}) has no maxbrod: start "
                "the session with spark.archives and spark.pyspark.python as 'maxbrod cluster pack' prints them; "
                "docs/cluster.md says how",
                name=error.name,
            ) from None
        made = kind.__new__(kind)
        made.__dict__.update(fields)
        return made

    return opened
