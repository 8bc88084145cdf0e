"""Verbs that change an archive while Spark reads it: a stream and a query see what they would have seen without them.

The verbs' own jobs run in this process: what they do on Spark, their own tests show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.inspect import garbage
from maxbrod.model import now_ms
from support.clocks import set_clocks
from support.keyed_archives import CUT_MS, Keyed, batch, compact_keys, live_rows
from support.keyed_archives import without_spark as by_key_without_spark
from support.native_archives import Making, compact, without_spark
from support.prunable_archives import prune

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RUN = 4
"""Offsets of each run, and of each batch of the stream."""
MUCH_LATER_MS = 40 * 24 * 3600 * 1000


def back_up(keyed: Keyed, numbers: range) -> None:
    """A record of key `a` in two runs, which the stream has read before one of them goes; other keys are there once."""
    for number in numbers:
        keys = [b"k-%d-%d" % (number, each) for each in range(RUN)]
        records = [(b"a" if number in {2, 3} and not each else key, key) for each, key in enumerate(keys)]
        keyed.backup({0: [batch(number * RUN, *records, at=at(number))]}, packed=False)


def at(number: int) -> int:
    return CUT_MS + number * 1000


def value(offset: int) -> bytes:
    return b"k-%d-%d" % divmod(offset, RUN)


def collect_garbage(url: str, monkeypatch: pytest.MonkeyPatch, *, ahead_ms: int) -> int:
    with monkeypatch.context() as patched:
        later = now_ms() + ahead_ms
        set_clocks(patched, own_ms=later, store_ms=later)
        return len(garbage.collect_garbage(open_archive(url), delete=True, trust_clock=True).objects)


def test_a_stream_and_a_query_go_on_beside_compact_prune_by_key_and_gc(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed = Keyed(Making(str(tmp_path / "archive")))
    url, runs = keyed.url, 5
    without_spark(monkeypatch)
    by_key_without_spark(monkeypatch)
    back_up(keyed, range(runs))
    older = spark.read.format("maxbrod").load(url).select("offset", "value").toLocalIterator()
    seen_by_query = [next(older)]
    seen: list[Any] = []
    done: list[str] = []

    def between() -> Iterator[str]:
        """What happens while each batch is read, which was planned before."""
        assert compact(url, max_segment_count=2).commits == 1
        yield "merged"
        assert collect_garbage(url, monkeypatch, ahead_ms=0) == 0
        yield "gc within the grace"
        report = prune(open_archive(url), before_ms=at(2), compacted_too=True)
        assert (report.going.segments, live_rows(url)[0]) == (1, ("pruned", 0, 2 * RUN))
        yield "pruned what the stream has read"
        seen_by_query.extend(older)
        assert collect_garbage(url, monkeypatch, ahead_ms=MUCH_LATER_MS) >= runs
        yield "gc after the grace"
        assert compact_keys(url).commits == 1
        back_up(keyed, range(runs, runs + 4))
        yield "by key, and more"
        yield "nothing"
        # The stream has read the first of the new runs. Two more go, of which it has planned one at most.
        assert prune(open_archive(url), before_ms=at(runs + 3), compacted_too=True).going.segments
        yield "pruned what the stream has not read"

    steps = between()

    def read(frame: Any, _: int) -> None:
        if (step := next(steps, None)) is not None:
            done.append(step)
        seen.extend(frame.select("offset", "value").orderBy("offset").collect())

    stream = spark.readStream.format("maxbrod").option("maxOffsetsPerTrigger", str(RUN)).load(url)
    query = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).foreachBatch(read).start()
    try:
        with pytest.raises(Exception, match="left the archive before the stream read them") as caught:
            query.awaitTermination(300)
    finally:
        query.stop()
    assert done[-1] == "pruned what the stream has not read"
    end = seen[-1].offset + 1
    assert f"offsets {end} to " in str(caught.value)
    assert [(row.offset, bytes(row.value)) for row in seen] == [(each, value(each)) for each in range(end)]
    assert end in {(runs + 1) * RUN, (runs + 2) * RUN}
    assert [(row.offset, bytes(row.value)) for row in seen_by_query] == [(n, value(n)) for n in range(runs * RUN)]
