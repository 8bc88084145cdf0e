"""A server with S3 and SQS on loopback, where a bucket sends its events to a queue."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import boto3
from moto.server import ThreadedMotoServer
from pydantic import SecretStr

from maxbrod.config import S3Config, StorageConfig
from maxbrod.replicate.seed.queue import SqsQueue, SqsSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

REGION = "us-east-1"


@dataclass(frozen=True)
class Aws:
    endpoint: str

    @property
    def s3_config(self) -> S3Config:
        return S3Config(
            endpoint=self.endpoint,
            region=REGION,
            access_key_id=SecretStr("testing"),
            secret_access_key=SecretStr("testing"),
        )

    @property
    def storage_config(self) -> StorageConfig:
        return StorageConfig(s3=self.s3_config)

    def client(self, service: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )

    def bucket(self, name: str, *, queue: str | None = None) -> None:
        """A bucket that sends its events to a queue."""
        s3, sqs = self.client("s3"), self.client("sqs")
        s3.create_bucket(Bucket=name)
        if queue is not None:
            url = sqs.create_queue(QueueName=queue)["QueueUrl"]
            found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
            events = ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]
            target = {"QueueArn": found["Attributes"]["QueueArn"], "Events": events}
            configuration = {"QueueConfigurations": [target]}
            s3.put_bucket_notification_configuration(Bucket=name, NotificationConfiguration=configuration)

    def queue(self, name: str, *, dead_letters: str | None = None) -> str:
        sqs = self.client("sqs")
        attributes = {}
        if dead_letters is not None:
            url = sqs.create_queue(QueueName=dead_letters)["QueueUrl"]
            arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
            attributes["RedrivePolicy"] = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "2"})
        return str(sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])

    def opened(self, queue: str, **settings: Any) -> SqsQueue:
        wanted = SqsSettings(queue=queue, endpoint=self.endpoint, **{"wait_s": 0, "visibility_s": 0, **settings})
        return SqsQueue(wanted, self.s3_config)


@contextmanager
def aws_server() -> Iterator[Aws]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield Aws(endpoint=f"http://{host}:{port}")
    finally:
        server.stop()
