"""Tells people and programs about a cluster: what runs where, and how to log in. Nothing it returns is a secret."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maxbrod.sandbox.jars import KAFKA_VERSION
from maxbrod.sandbox.node import NodeHome, write_private
from maxbrod.sandbox.settings import render
from maxbrod.sandbox.spec import CLIENTS_DIR, OPTIONAL_LISTENERS

if TYPE_CHECKING:
    from maxbrod.sandbox.cluster import Cluster


def describe(cluster: Cluster) -> dict[str, Any]:
    nodes = [_describe_node(NodeHome(cluster.directory, node)) for node in cluster.spec.nodes]
    states = {node["state"] for node in nodes}
    return {
        "directory": str(cluster.directory),
        "kafka_version": KAFKA_VERSION,
        "cluster_id": cluster.spec.cluster_id,
        "state": states.pop() if len(states) == 1 else "degraded",
        "bootstrap": {listener: cluster.bootstrap_for(listener) for listener in cluster.spec.listeners},
        "nodes": nodes,
        "client_files": sorted(map(str, (cluster.directory / CLIENTS_DIR).glob("*.properties"))),
    }


def _describe_node(home: NodeHome) -> dict[str, Any]:
    pid = home.process.pid
    state = "stopped" if pid is None else "paused" if home.process.suspended else "running"
    node = home.node
    return {"name": node.name, "id": node.node_id, "state": state, "pid": pid, "ports": dict(node.ports)}


def write_client_files(cluster: Cluster) -> None:
    """For each secure listener and user a file of Java client properties, readable by its owner only."""
    secure = [listener for listener in cluster.spec.listeners if listener in OPTIONAL_LISTENERS]
    if not secure:
        return
    folder = cluster.directory / CLIENTS_DIR
    folder.mkdir(mode=0o700)
    for listener in secure:
        for user in cluster.spec.users:
            text = render(cluster.java_properties(listener, user))
            write_private(folder / f"{listener.lower()}-{user}.properties", text)
