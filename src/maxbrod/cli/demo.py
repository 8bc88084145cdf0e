"""`maxbrod demo`: the main job, start to end, on a cluster in a box."""

from __future__ import annotations


def demo() -> None:
    """Run the main job on a real cluster in a box."""
