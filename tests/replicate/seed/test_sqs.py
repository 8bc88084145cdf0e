"""A real queue and a bucket that sends its events there, on loopback."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from maxbrod.config import S3Config
from maxbrod.errors import AccessDeniedError, EnvironmentMissingError, UnavailableError, UsageError
from maxbrod.replicate.seed.queue import QueueCounts, SqsQueue, SqsSettings, pump
from maxbrod.replicate.seed.s3_events import ObjectChange, ObjectEvent
from maxbrod.storage.stores import open_storage
from support.aws import Aws, aws_server
from support.s3_events import body, record

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = "data/eu 1/t/0/0/00000000000000000000-00000000000000000024"


@pytest.fixture(scope="module")
def aws() -> Iterator[Aws]:
    with aws_server() as server:
        yield server


def test_objects_of_a_bucket_become_events(aws: Aws) -> None:
    aws.bucket("events", queue="events")
    storage = open_storage("s3://events", aws.storage_config)
    storage.put(KEY, b"12345")
    storage.delete([KEY])
    queue, counts = aws.opened("events"), QueueCounts()
    kept: list[ObjectEvent] = []
    while counts.acknowledged < 3:  # S3's test message is one
        pump(queue, kept.extend, counts)
    assert sorted((each.change, each.bucket, each.key) for each in kept) == [
        (ObjectChange.CREATED, "events", KEY),
        (ObjectChange.REMOVED, "events", KEY),
    ]
    assert next(each.size for each in kept if each.change is ObjectChange.CREATED) == 5
    assert counts.others == 1
    assert queue.receive() == []


def test_a_message_comes_again_until_it_is_acknowledged(aws: Aws) -> None:
    url = aws.queue("again")
    aws.client("sqs").send_message(QueueUrl=url, MessageBody=body(record()))
    queue = aws.opened(url)
    for delivery in (1, 2, 3):
        (message,) = queue.receive()
        assert message.deliveries == delivery
    queue.acknowledge([message])
    queue.acknowledge([message])
    assert queue.receive() == []


def test_more_messages_than_one_request_holds_are_acknowledged(aws: Aws) -> None:
    url = aws.queue("many")
    for _ in range(23):
        aws.client("sqs").send_message(QueueUrl=url, MessageBody=body(record()))
    queue, counts = aws.opened("many", visibility_s=30), QueueCounts()
    messages = [each for _ in range(3) for each in queue.receive()]
    assert len(messages) == 23
    queue.acknowledge(messages)
    pump(aws.opened("many"), lambda _: None, counts)
    assert counts.received == 0


def test_the_dead_letter_policy_of_a_queue_is_known(aws: Aws) -> None:
    aws.queue("with-policy", dead_letters="dead")
    aws.queue("without-policy")
    assert aws.opened("with-policy").has_dead_letters
    assert not aws.opened("without-policy").has_dead_letters


def test_a_missing_queue_is_named(aws: Aws) -> None:
    with pytest.raises(UsageError, match="no such queue"):
        aws.opened("nowhere")


def test_a_server_that_does_not_answer_may_be_tried_again(aws: Aws) -> None:
    settings = SqsSettings(queue="q", endpoint="http://127.0.0.1:9")
    with pytest.raises(UnavailableError):
        SqsQueue(settings, aws.s3_config)


def test_missing_credentials_are_explained(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    with pytest.raises(AccessDeniedError) as caught:
        SqsQueue(SqsSettings(queue="q", endpoint=aws.endpoint), S3Config(region="us-east-1"))
    assert "AWS_ACCESS_KEY_ID" in str(caught.value.hint)


def test_without_the_client_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(EnvironmentMissingError) as caught:
        SqsQueue(SqsSettings(queue="q"), S3Config())
    assert "maxbrod[sqs]" in str(caught.value.hint)
