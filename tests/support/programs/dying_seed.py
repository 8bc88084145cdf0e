"""One side of a replication in a process of its own, which kills itself in the middle of its work.

Arguments: the side, its configuration, and after how many segments (egress) or transactions (ingress) it dies.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any
from unittest.mock import patch

from maxbrod.config import Config
from maxbrod.layouts.parquet import writer
from maxbrod.replicate.seed import partition
from support.seed_trees import ingress_from_tree, write_segments


def dying(owner: Any, name: str, after: int) -> Any:
    real, calls = getattr(owner, name), [0]

    def call(*arguments: Any, **named: Any) -> Any:
        found = real(*arguments, **named)
        calls[0] += 1
        if calls[0] == after:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    return patch.object(owner, name, call)


def main() -> None:
    side, config, after = sys.argv[1], Config.model_validate_json(sys.argv[2]), int(sys.argv[3])
    if side == "egress":
        with dying(writer, "_write_segment", after):
            write_segments(config)
    else:
        with dying(partition, "end", after):
            ingress_from_tree(config)


if __name__ == "__main__":
    main()
