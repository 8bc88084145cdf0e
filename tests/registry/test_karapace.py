"""Karapace, a registry that others wrote: captured, and filled under ids of its own.

It is in no package index: install it from its repository, and name its executable in MAXBROD_KARAPACE.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from maxbrod.config import RegistryConfig
from maxbrod.errors import MaxbrodError, RefusedError
from maxbrod.registry.capture import capture_registry
from maxbrod.registry.client import RegistryClient
from maxbrod.registry.plan import find_differences
from maxbrod.registry.restoration import import_registry, map_registry
from maxbrod.sandbox.cluster import Cluster
from maxbrod.sandbox.process import free_ports, wait_for
from support.registries import record
from support.registry_states import PROTO

KARAPACE = os.environ.get("MAXBROD_KARAPACE")
pytestmark = pytest.mark.skipif(KARAPACE is None, reason="MAXBROD_KARAPACE names no Karapace")


@contextmanager
def karapace(cluster: Cluster, name: str, folder: Path) -> Iterator[RegistryClient]:
    """A registry whose topic, and whose client and group, have this name."""
    (port,) = free_ports(1)
    settings = {
        "bootstrap_uri": cluster.bootstrap,
        "host": "127.0.0.1",
        "port": port,
        "advertised_hostname": "127.0.0.1",
        "topic_name": name,
        "group_id": name,
        "client_id": name,
        "karapace_registry": True,
        "replication_factor": 1,
    }
    file = folder / f"{name}.json"
    file.write_text(json.dumps(settings))
    url = f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        try:
            with RegistryClient([url], RegistryConfig(), patience_s=1) as client:
                client.send("PUT", "config", body={"compatibility": "BACKWARD"})
        except MaxbrodError:
            return False
        return True

    with (
        (folder / f"{name}.log").open("wb") as log,
        subprocess.Popen([str(KARAPACE), str(file)], stdout=log, stderr=log) as process,
    ):
        try:
            wait_for("the start of Karapace", is_ready, timeout_s=120)
            with RegistryClient([url], RegistryConfig(), patience_s=60) as client:
                yield client
        finally:
            process.terminate()


def register(client: RegistryClient, subject: str, schema: str, **more: object) -> int:
    return int(client.send("POST", "subjects", subject, "versions", body={"schema": schema, **more})["id"])


def test_a_registry_of_karapace_is_captured_and_another_gets_its_schemas_under_other_ids(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    with karapace(cluster, f"{topic}-one", tmp_path) as source:
        ids = [
            register(source, "orders-value", record("Order", "id")),
            register(source, "orders-value", record("Order", "id", note="")),
            register(source, "copies-value", record("Order", "id")),
            register(source, "proto-value", PROTO, schemaType="PROTOBUF"),
        ]
        source.send("DELETE", "subjects", "orders-value", "versions", "1")
        source.send("PUT", "config", "orders-value", body={"compatibility": "FULL"})
        archived = capture_registry(source)
    listed = {place: (version.id, version.deleted) for place, version in archived.versions.items()}
    assert listed == {
        ("copies-value", 1): (ids[0], False),
        ("orders-value", 1): (ids[0], True),
        ("orders-value", 2): (ids[1], False),
        ("proto-value", 1): (ids[3], False),
    }
    assert archived.modes == {"": "READWRITE"}
    assert archived.configs["orders-value"]["compatibilityLevel"] == "FULL"
    with karapace(cluster, f"{topic}-two", tmp_path) as target:
        with pytest.raises(RefusedError, match="cannot import"):
            import_registry(target, archived, lambda before: before)
        register(target, "mine", record("Mine", "id"))
        mapped = map_registry(target, archived, lambda before: before)
        assert all(new != old for (_, old), new in mapped.ids.items())
        found = capture_registry(target)
    assert not list(find_differences(archived, found, mapped.ids))
    assert found.versions["orders-value", 1].deleted
    assert found.configs == archived.configs
