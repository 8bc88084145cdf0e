"""S3 servers that enforce it: versitygw with object locks, with versions, and with users and policies."""

# ruff: noqa: PLC0415 - a run that needs no S3 must not pay for importing it, nor break with it

from __future__ import annotations

import json
import re
import secrets
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from maxbrod.sandbox.proxy.faults import AnswerError, HttpMatch
from maxbrod.sandbox.proxy.server import FaultProxy
from maxbrod.sandbox.s3 import S3Server

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maxbrod.config import StorageConfig


class LockingS3Server(S3Server):
    """Its bucket has Object Lock, and no versions: so a lock also refuses to overwrite, and a deletion is refused."""

    def _prepare(self) -> None:
        self._metadata_dir.mkdir()
        (self.directory / "users").mkdir()

    def _arguments(self) -> list[str]:
        return ["--iam-dir", str(self.directory / "users"), *super()._arguments()]

    def _fill(self) -> None:
        self.client().create_bucket(Bucket=self.bucket, ObjectLockEnabledForBucket=True)

    def client(self) -> Any:
        import boto3.session

        return boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=self.region,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
        )

    def lock_by_default(self, mode: str, days: int) -> None:
        rule = {"DefaultRetention": {"Mode": mode.upper(), "Days": days}}
        configuration = {"ObjectLockEnabled": "Enabled", "Rule": rule}
        self.client().put_object_lock_configuration(Bucket=self.bucket, ObjectLockConfiguration=configuration)

    def config(self, **options: Any) -> StorageConfig:
        from maxbrod.config import StorageConfig

        return StorageConfig.model_validate({**self.storage_section(), **options})

    def add_user(self, name: str, *, allowed: Sequence[str]) -> dict[str, Any]:
        """Make a user with these actions on the bucket and its objects; the section `storage` of its configuration."""
        statements = [
            {
                "Effect": "Allow",
                "Principal": {"AWS": [name]},
                "Action": [action],
                "Resource": f"arn:aws:s3:::{self.bucket}{'' if _is_of_bucket(action) else '/*'}",
            }
            for action in allowed
        ]
        return self.add_users({name: statements})[name]

    def add_users(self, statements: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
        """Make users, whose statements are the policy of the bucket; the section `storage` for each."""
        root, found = ["-a", self.access_key, "-s", self.secret_key, "-er", self.endpoint], {}
        for name in statements:
            secret = secrets.token_hex(20)
            user = ["create-user", "-a", name, "-s", secret, "-r", "user"]
            subprocess.run([*self._command(), "admin", *root, *user], check=True, capture_output=True)
            keys = {"access_key_id": name, "secret_access_key": secret}
            found[name] = {"s3": {"endpoint": self.endpoint, "region": self.region, **keys}}
        policy = {"Version": "2012-10-17", "Statement": [item for items in statements.values() for item in items]}
        self.client().put_bucket_policy(Bucket=self.bucket, Policy=json.dumps(policy))
        return found


class VersionedS3Server(LockingS3Server):
    """Its bucket has Object Lock and versions, as every bucket of Amazon's with Object Lock."""

    def _prepare(self) -> None:
        super()._prepare()
        (self.directory / "versions").mkdir()

    def _arguments(self) -> list[str]:
        *others, objects = super()._arguments()
        return [*others, "--versioning-dir", str(self.directory / "versions"), objects]


def _is_of_bucket(action: str) -> bool:
    return action in {"s3:ListBucket", "s3:ListBucketVersions", "s3:ListBucketMultipartUploads"} or (
        re.match(r"s3:(Get|Put)Bucket", action) is not None
    )


def only_creating(proxy: FaultProxy) -> FaultProxy:
    """Let a proxy refuse every request that could overwrite or delete an object, as a bucket policy does.

    Amazon's policy denies s3:PutObject without s3:if-none-match, and does not allow s3:DeleteObject. Parts of an upload
    are not objects: its end is.
    """
    overwriting = (HttpMatch("PUT", r"^(?!.*partNumber=)", False), HttpMatch("POST", "uploadId=", False))
    deleting = (HttpMatch("DELETE", r"^(?!.*uploadId=)"), HttpMatch("POST", "[?&]delete"))
    for request in (*overwriting, *deleting):
        proxy.add(AnswerError(on=request, status=403, code="AccessDenied", message="Access Denied"))
    return proxy


@dataclass(frozen=True)
class CreateOnlyS3:
    server: S3Server
    proxy: FaultProxy

    @property
    def url(self) -> str:
        return f"{self.server.url}/archive"

    def section(self, **options: Any) -> dict[str, Any]:
        return {**self.server.storage_section(endpoint=self.proxy.endpoint), **options}

    def config(self, **options: Any) -> StorageConfig:
        from maxbrod.config import StorageConfig

        return StorageConfig.model_validate(self.section(**options))

    def refused(self) -> int:
        """The requests that were refused so far."""
        return sum(count for fault, count in self.proxy.fired.items() if isinstance(fault, AnswerError))
