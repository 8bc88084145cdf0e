"""Records and checkpoint are one: after any failure each record is there once, and a zombie never writes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.errors import UnavailableError
from maxbrod.kafka.produce import transactions
from maxbrod.replicate.seed import partition as module
from maxbrod.replicate.seed.run import TreeIngress
from maxbrod.sandbox.process import wait_for
from support.seed_trees import REGION, Link

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster
    from support.java_oracle import JavaOracle


class KilledError(BaseException):
    """Ends the work where it is raised; nothing of ours handles it."""


def broken(real: Callable[..., Any], error: BaseException) -> Callable[..., Any]:
    """The same function, which raises when it has done its second call."""
    calls: list[int] = []

    def call(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        found = real(*arguments, **named)
        if len(calls) == 2:
            list(found or ())  # what it yields is done, too
            raise error
        return found

    return call


@pytest.mark.parametrize("step", ["add_partitions", "produce_all", "end"])
def test_a_failure_at_any_step_loses_and_doubles_nothing(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A failure after a step is one before the next step. It is a broker that does not answer, then a kill."""
    link = Link(cluster, topic, tmp_path, batch_size=9).created()
    link.add(0, 50)
    error = UnavailableError("the broker does not answer")
    with monkeypatch.context() as patch:
        patch.setattr(module, step, broken(getattr(module, step), error))
        first = link.run()
        assert first.partitions[0].state == "faulted"
    with monkeypatch.context() as patch:
        patch.setattr(module, step, broken(getattr(module, step), KilledError()))
        with pytest.raises(KilledError):
            link.run()
    link.run()
    assert link.numbers() == list(range(50))
    offsets = [each.offset for each in link.checkpoints()]
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == 49


def test_an_instance_that_was_stopped_and_resumed_never_writes_again(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, java: JavaOracle
) -> None:
    """One instance stops in the middle of a transaction, another one takes over, then the first one goes on."""
    link = Link(cluster, topic, tmp_path, batch_size=20).created()
    link.add(0, 50)
    stopped, resumed = threading.Event(), threading.Event()
    real = transactions.end
    zombie: list[int] = []

    def stopping_end(*arguments: Any, **named: Any) -> None:
        if threading.current_thread().name.startswith("ingress") and threading.get_ident() in zombie:
            stopped.set()
            assert resumed.wait(120)
        real(*arguments, **named)

    opened = module.Destination.open

    def noting_open(self: module.Destination, *arguments: Any) -> Any:
        if not stopped.is_set():
            zombie.append(threading.get_ident())
        return opened(self, *arguments)

    monkeypatch.setattr(module, "end", stopping_end)
    monkeypatch.setattr(module.Destination, "open", noting_open)
    first = TreeIngress(link.config)
    with first:
        while not stopped.is_set():
            first.tick()
            first.rest()
        assert link.run().records == 50  # the other instance
        resumed.set()
        while first.statuses()[0].state != "standby":
            first.tick()
            first.rest()
        assert first.statuses()[0].records == 0
    assert link.numbers() == list(range(50))
    seen = java.consume(cluster.bootstrap, link.destination, 0, isolation_level="read_committed")
    assert [each.value for each in seen] == [b"v%d" % offset for offset in range(50)]


def test_a_standby_takes_back_a_partition_without_progress(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    link = Link(cluster, topic, tmp_path, takeover=1.0, once=False).created()
    link.add(0, 10)
    with TreeIngress(link.config) as first:
        _until(first, lambda: first.statuses() and first.statuses()[0].checkpoint == 9)
        Link(cluster, topic, tmp_path).run()  # nothing to do: it fences nobody
        link.add(10, 10)
        with TreeIngress(link.config) as second:
            _until(second, lambda: second.statuses() and second.statuses()[0].checkpoint == 19)
        link.add(20, 10)
        _until(first, lambda: first.statuses()[0].checkpoint == 29)  # after a while as standby
    assert link.numbers() == list(range(30))


def test_the_checkpoint_is_read_after_a_partition_is_taken_over(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """What the instance knew before may be old by then."""
    link = Link(cluster, topic, tmp_path, first_segment_delay=3600.0, once=False).created()
    link.add(0, 10)
    (tmp_path / "maxbrod.json").unlink()
    with TreeIngress(link.config) as first:
        _until(first, lambda: first.statuses() and first.statuses()[0].state == "first segment")
        assert Link(cluster, topic, tmp_path).run().records == 10
        first._settings = replace(first._settings, first_delay_ns=0)
        _until(first, lambda: first.statuses()[0].checkpoint == 9 and first.statuses()[0].state == "in step")
    assert link.numbers() == list(range(10))


def test_instances_that_race_for_a_partition_double_nothing(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    link = Link(cluster, topic, tmp_path, batch_size=5, takeover=0.0, once=False).created()
    for start in range(0, 60, 20):
        link.add(start, 20)
    stop = threading.Event()
    ingresses = [TreeIngress(link.config, stop=threading.Event()) for _ in range(2)]

    def work(ingress: TreeIngress) -> None:
        with ingress:
            while not stop.is_set():
                ingress.tick()
                ingress.rest()

    threads = [threading.Thread(target=work, args=(each,)) for each in ingresses]
    for each in threads:
        each.start()
    try:
        wait_for("all records", lambda: len(link.numbers()) >= 60, timeout_s=120)
    finally:
        stop.set()
        for each in threads:
            each.join()
    assert link.numbers() == list(range(60))


def test_a_process_that_is_killed_loses_and_doubles_nothing(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    link = Link(cluster, topic, tmp_path / "tree").created()
    link.add(0, 1000)
    command = [
        *(sys.executable, "-m", "maxbrod", "replicate", "ingress-tree", "-a", link.tree, "--once", "--json"),
        *("--source", f"{REGION}/{topic}", "--bootstrap", cluster.bootstrap, "--batch-size", "10"),
        *("--checkpoint-topic", f"{topic}.checkpoints", "--group", f"{topic}.link"),
        *("--first-segment-delay", "0", "--worker-init-delay", "0", "--poll-every", "0.2"),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        wait_for("progress", lambda: process.poll() is not None or len(link.arrived()) > 100, timeout_s=120)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert 0 < json.loads(done.stdout)["records"] < 1000
    assert link.numbers() == list(range(1000))


def _until(ingress: TreeIngress, condition: Callable[[], Any]) -> None:
    limit = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < limit
        ingress.tick()
        ingress.rest()
