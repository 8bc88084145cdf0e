"""Describes a cluster to people and programs: processes, ports, and client files. Returns no secret."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maxbrod.sandbox.node import NodeHome, write_private
from maxbrod.sandbox.s3 import S3Server
from maxbrod.sandbox.settings import render
from maxbrod.sandbox.spec import CLIENTS_DIR, OPTIONAL_LISTENERS, S3_DIR

if TYPE_CHECKING:
    from maxbrod.sandbox.cluster import Cluster


def describe(cluster: Cluster) -> dict[str, Any]:
    nodes = [_describe_node(NodeHome(cluster.directory, node)) for node in cluster.spec.nodes]
    states = {node["state"] for node in nodes}
    return {
        "directory": str(cluster.directory),
        "kafka_version": cluster.spec.kafka_version,
        "cluster_id": cluster.spec.cluster_id,
        "state": states.pop() if len(states) == 1 else "degraded",
        "bootstrap": cluster.bootstrap,
        "listeners": {listener: cluster.bootstrap_for(listener) for listener in cluster.spec.listeners},
        "nodes": nodes,
        "client_files": sorted(map(str, (cluster.directory / CLIENTS_DIR).glob("*"))),
        "s3": _describe_s3(cluster),
    }


def attached_s3(cluster: Cluster) -> S3Server | None:
    """The S3 server of the sandbox, if it has one."""
    folder = cluster.directory / S3_DIR
    return S3Server.attach(folder) if folder.is_dir() else None


def _describe_s3(cluster: Cluster) -> dict[str, Any] | None:
    server = attached_s3(cluster)
    if server is None:
        return None
    state = "running" if server.alive else "stopped"
    return {"state": state, "url": server.url, "endpoint": server.endpoint, "region": server.region}


def _describe_node(home: NodeHome) -> dict[str, Any]:
    pid = home.process.pid
    state = "stopped" if pid is None else "paused" if home.process.suspended else "running"
    node = home.node
    return {"name": node.name, "id": node.node_id, "state": state, "pid": pid, "ports": dict(node.ports)}


def write_client_files(cluster: Cluster) -> None:
    """Write what clients need to log in, into files that only their owner can read.

    Java client properties for each secure listener and user; the variables of the AWS tools for the S3 server.
    """
    secure = [listener for listener in cluster.spec.listeners if listener in OPTIONAL_LISTENERS]
    server = attached_s3(cluster)
    if not secure and server is None:
        return
    folder = cluster.directory / CLIENTS_DIR
    folder.mkdir(mode=0o700)
    if server is not None:
        write_private(folder / "s3.env", _aws_variables(server))
    for listener in secure:
        for user in cluster.spec.users:
            text = render(cluster.java_properties(listener, user))
            write_private(folder / f"{listener.lower()}-{user}.properties", text)


def _aws_variables(server: S3Server) -> str:
    variables = {
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_REGION": server.region,
        "AWS_ALLOW_HTTP": "true",
    }
    return "".join(f"export {name}={value}\n" for name, value in variables.items())
