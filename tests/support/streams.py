"""What Spark does with a stream, in this process: its log of offsets, its commits, and restarts in between."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle

from maxbrod.table.source import ArchiveSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader


@dataclass
class Stream:
    """A query with its checkpoint. A new reader for every restart; offsets are JSON wherever Spark has them so."""

    url: object
    options: dict[str, str] = field(default_factory=dict)
    planned: list[str] = field(default_factory=list)
    """The end of each batch, as the log of offsets holds it."""
    done: int = 0
    """How many batches are committed."""

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        source = ArchiveSource({"path": str(self.url), **self.options})
        self._source = pickle.loads(cloudpickle.dumps(source))
        self._reader: DataSourceStreamReader = self._source.streamReader(source.schema())

    def available_now(self) -> list[list[dict[str, Any]]]:
        """Batches until there are no more of what is there now."""
        self.restart()
        self._reader.prepareForTriggerAvailableNow()
        return self.drain()

    def drain(self) -> list[list[dict[str, Any]]]:
        batches = []
        while self.done < len(self.planned) or self.plan():
            batches.append(self.run())
        return batches

    def plan(self) -> bool:
        """Write the end of the next batch into the log; whether there is one."""
        start = self._start()
        end = json.dumps(self._reader.latestOffset(json.loads(start), self._reader.getDefaultReadLimit()))
        if end == start:
            return False
        self.planned.append(end)
        return True

    def run(self, *, commit: bool = True) -> list[dict[str, Any]]:
        """Read the batch that was planned last; without a commit it will be read again."""
        start, end = self._start(self.done), self.planned[self.done]
        splits = pickle.loads(cloudpickle.dumps(self._reader.partitions(json.loads(start), json.loads(end))))
        reader = pickle.loads(cloudpickle.dumps(self._source.streamReader(self._source.schema())))
        rows = [row for split in splits for batch in reader.read(split) for row in batch.to_pylist()]
        if commit:
            self.done += 1
            self._reader.commit(json.loads(end))
        return rows

    def _start(self, number: int | None = None) -> str:
        number = len(self.planned) if number is None else number
        return self.planned[number - 1] if number else json.dumps(self._reader.initialOffset())
