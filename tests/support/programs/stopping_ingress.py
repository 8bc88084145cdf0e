"""An ingress in a process of its own, which keeps batches as they are, while others join them.

It runs an interval for each line that it reads, and prints a line after it. With a number it stops itself (SIGSTOP)
before it sends that many batches, in the middle of its work.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from unittest.mock import patch

from maxbrod.batch.coalesce import JoinRule
from maxbrod.config import Config
from maxbrod.kafka.wire.deadline import Pace
from maxbrod.replicate.ingress import append_task
from maxbrod.replicate.ingress.run import Ingress
from maxbrod.replicate.shares import Lease, Shares
from maxbrod.restore import task


class StoppingPace(Pace):
    """Counts the batches of all partitions."""

    sent = 0
    stop_at = int(sys.argv[2])

    def wait(self, size: int) -> None:
        StoppingPace.sent += 1
        if StoppingPace.sent == self.stop_at:
            os.kill(os.getpid(), signal.SIGSTOP)
        super().wait(size)


def main() -> None:
    for module in (task, append_task):
        patch.object(module, "Pace", StoppingPace).start()
    task._RULES.clear()
    patch.object(append_task, "AUTO", JoinRule(target_bytes=1, small_bytes={})).start()
    patch.object(append_task, "_READ_BYTES", 2000).start()
    patch.object(append_task, "_TRANSACTION_BYTES", 4000).start()
    if sys.argv[3:] == ["without lease"]:
        patch.object(Lease, "hold", lambda _: True).start()
        patch.object(Shares, "keeps", lambda _, partitions: set(partitions)).start()
    config = Config.model_validate(json.loads(sys.argv[1]))
    with Ingress(config) as ingress:
        print("ready", flush=True)
        for line in sys.stdin:
            del line
            print(json.dumps(ingress.run().states), flush=True)


if __name__ == "__main__":
    main()
