"""The same queue code against another server than moto's: ElasticMQ, which keeps time and receipts as SQS does.

Its jars come from Maven Central, which takes a minute the first time: it is part of the long suite only.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from maxbrod.errors import UsageError
from maxbrod.private_files import filled
from maxbrod.replicate.seed.queue import QueueCounts, QueueMessage, pump
from maxbrod.sandbox.jars import java_command, resolve_jars
from maxbrod.sandbox.process import free_ports, wait_for
from support.aws import Aws
from support.s3_events import body, record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.replicate.seed.queue import SqsQueue
    from maxbrod.replicate.seed.s3_events import ObjectEvent

pytestmark = pytest.mark.slow
VERSION = "1.6.12"
MODULES = [("org.elasticmq", "elasticmq-server_2.13", VERSION)]
CONFIG = """
include classpath("application.conf")
node-address {{ protocol = http, host = "127.0.0.1", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-port = {port}, bind-hostname = "127.0.0.1", sqs-limits = strict }}
rest-stats {{ enabled = false }}
"""


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aws]:
    def build(home: Path) -> None:
        resolve_jars(home / "jars", MODULES, what=f"ElasticMQ {VERSION}")

    home = filled(f"elasticmq-{VERSION}", build)
    (port,) = free_ports(1)
    config = tmp_path_factory.mktemp("elasticmq") / "elasticmq.conf"
    config.write_text(CONFIG.format(port=port))
    command = java_command(
        sorted((home / "jars").glob("*.jar")), "org.elasticmq.server.Main", options=[f"-Dconfig.file={config}"]
    )
    log = config.with_name("log")
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        server = Aws(endpoint=f"http://127.0.0.1:{port}")
        try:
            wait_for("ElasticMQ", lambda: _answers(server) or process.poll() is not None, timeout_s=120)
            assert process.poll() is None, log.read_text()
            yield server
        finally:
            process.terminate()


def _answers(server: Aws) -> bool:
    try:
        server.client("sqs").list_queues()
    except Exception:  # noqa: BLE001 - whatever a server that is starting makes of it
        return False
    return True


def _next(queue: SqsQueue) -> QueueMessage:
    found: list[QueueMessage] = []

    def received() -> bool:
        found.extend(queue.receive())
        return bool(found)

    wait_for("the message", received, timeout_s=60)
    (message,) = found
    return message


def test_a_message_is_invisible_for_a_while_and_gone_when_it_is_acknowledged(aws: Aws) -> None:
    url = aws.queue("visible")
    aws.client("sqs").send_message(QueueUrl=url, MessageBody=body(record()))
    queue = aws.opened("visible", visibility_s=2)
    (first,) = queue.receive()
    assert queue.receive() == []  # nobody else gets it meanwhile
    again = _next(queue)
    assert (again.id, again.deliveries) == (first.id, 2)
    queue.acknowledge([again])
    queue.acknowledge([again])
    assert aws.opened(url, wait_s=3, visibility_s=0).receive() == []


def test_what_is_not_durable_comes_again(aws: Aws) -> None:
    url = aws.queue("durable")
    aws.client("sqs").send_message(QueueUrl=url, MessageBody=body(record(), record(key="data/b")))
    queue, counts = aws.opened(url), QueueCounts()

    def fail(_: object) -> None:
        raise UsageError("the topic does not answer")

    for _ in range(5):
        with pytest.raises(UsageError):
            pump(queue, fail, counts)
    kept: list[ObjectEvent] = []
    pump(queue, kept.extend, counts)
    assert (len(kept), counts.received, counts.acknowledged) == (2, 6, 1)
    assert queue.receive() == []


def test_a_poisoned_message_ends_with_the_dead_letters_and_blocks_no_other(aws: Aws) -> None:
    url = aws.queue("poisoned", dead_letters="dead")
    sqs = aws.client("sqs")
    sqs.send_message(QueueUrl=url, MessageBody="poison")
    sqs.send_message(QueueUrl=url, MessageBody=body(record()))
    queue, counts = aws.opened(url), QueueCounts()
    assert queue.has_dead_letters
    kept: list[ObjectEvent] = []
    dead = aws.opened("dead")
    for _ in range(10):
        pump(queue, kept.extend, counts)
    assert [each.body for each in dead.receive()] == ["poison"]
    assert (len(kept), counts.dropped, counts.acknowledged) == (1, 0, 1)


def test_more_messages_than_one_request_holds_are_acknowledged(aws: Aws) -> None:
    url = aws.queue("many")
    for _ in range(25):
        aws.client("sqs").send_message(QueueUrl=url, MessageBody=body(record()))
    queue, counts = aws.opened(url, visibility_s=60), QueueCounts()
    kept: list[ObjectEvent] = []
    while counts.acknowledged < 25:
        pump(queue, kept.extend, counts)
    assert (len(kept), queue.receive()) == (25, [])


def test_a_missing_queue_is_named(aws: Aws) -> None:
    with pytest.raises(UsageError, match="there is no such queue"):
        aws.opened("nowhere")
