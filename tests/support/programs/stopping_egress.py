"""An egress in a process of its own, without Spark.

It stops itself (SIGSTOP) in the middle of a run, when it has read records and before it commits them, once a file
exists. When it is continued, it prints what became of that run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from maxbrod.backup.commits import Commits
from maxbrod.config import Config
from maxbrod.replicate.egress import follow_source
from support.sparkless import without_spark

if TYPE_CHECKING:
    from maxbrod.backup.follow import Interval

_FLAG = Path(sys.argv[2])
_record = Commits._record
_stopped: list[str] = []


def _stop_and_record(self: Commits, *arguments: Any) -> None:
    if self.state.run.rows and _FLAG.exists():
        _FLAG.unlink()
        _stopped.append(self.state.run.run_id)
        os.kill(os.getpid(), signal.SIGSTOP)
    _record(self, *arguments)


def _tell(interval: Interval) -> None:
    if _stopped:
        _stopped.clear()
        print("dropped" if interval.error is not None else "committed", flush=True)


def main() -> None:
    config = Config.model_validate(json.loads(sys.argv[1]))
    with patch.object(Commits, "_record", _stop_and_record), without_spark():
        follow_source(config, stop=threading.Event(), on_interval=_tell)


if __name__ == "__main__":
    main()
