"""`maxbrod sandbox`: a real Kafka cluster on this machine, for experiments. It outlives the shell that started it."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from maxbrod.cli.output import JsonFlag, out, print_json
from maxbrod.errors import RefusedError, UsageError
from maxbrod.sandbox.jars import KAFKA_VERSION
from maxbrod.sandbox.node import NodeHome, write_private
from maxbrod.sandbox.s3 import S3Server
from maxbrod.sandbox.spec import CLIENTS_DIR, OPTIONAL_LISTENERS, S3_DIR, STATE_FILE, render_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from maxbrod.sandbox.cluster import Cluster


app = typer.Typer(
    help="A real Kafka cluster on loopback. The first start downloads Kafka (40 MB) into the user's cache.",
    no_args_is_help=True,
)

Dir = Annotated[Path, typer.Option("--dir", help="The sandbox's folder.", show_default=False)]
Broker = Annotated[int, typer.Option("--broker", help="The broker's id, from 1.", show_default=False)]


@app.command()
def up(
    directory: Annotated[
        Path, typer.Option("--dir", help="A new or empty folder, which will hold everything.", show_default=False)
    ],
    brokers: Annotated[int, typer.Option(min=1, max=9, help="Number of brokers.")] = 1,
    config: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A broker setting. May be repeated.")
    ] = None,
    listener: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A listener besides PLAINTEXT: sasl_plaintext, ssl or sasl_ssl. May be repeated."
        ),
    ] = None,
    authorizer: Annotated[
        bool, typer.Option("--authorizer", help="Refuse users without an ACL. 'admin' and PLAINTEXT are superusers.")
    ] = False,
    kafka_version: Annotated[
        str, typer.Option(metavar="VERSION", help="The release of Kafka, from 3.3 on. Another one is downloaded.")
    ] = KAFKA_VERSION,
    s3: Annotated[
        bool,
        typer.Option("--s3", help="Start an S3 server with an empty bucket too (builds versitygw the first time)."),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Start a cluster and leave it running.

    The users of secure listeners are 'admin' and 'alice', with generated passwords. For each user and listener there is
    a file of client properties for the --command-config of Kafka's own tools. The keys of the S3 server are in
    clients/s3.env, for a shell to source.
    """
    _refuse_if_taken(directory)
    users = {name: secrets.token_urlsafe(12) for name in ("admin", "alice")}
    started = _cluster_class().start(
        directory,
        brokers=brokers,
        config=_pairs(config or ()),
        listeners=listener or (),
        users=users,
        authorizer=authorizer,
        kafka_version=kafka_version,
        detached=True,
    )
    try:
        if s3:
            S3Server.start(directory / S3_DIR, bucket="maxbrod", detached=True)
        write_client_files(started)
    except BaseException:
        started.dismantle()
        raise
    _show(started, as_json=as_json)


@app.command()
def status(directory: Dir, as_json: JsonFlag = False) -> None:
    """Show which brokers run, and where."""
    _show(_cluster_class().attach(directory), as_json=as_json)


@app.command()
def down(directory: Dir, as_json: JsonFlag = False) -> None:
    """Stop all brokers and remove what the sandbox created, and nothing else."""
    foreign = _cluster_class().attach(directory).dismantle()
    document = {"directory": str(directory), "removed": True, "left": foreign}
    if as_json:
        print_json(document)
    else:
        left = f"; left what is not its own: {', '.join(foreign)}" if foreign else ""
        out.print(f"removed the sandbox in {directory}{left}", markup=False, soft_wrap=True)


@app.command()
def kill(directory: Dir, broker: Broker, as_json: JsonFlag = False) -> None:
    """Kill a broker with SIGKILL, without a controlled shutdown."""
    _change(directory, lambda cluster: cluster.kill(broker), as_json=as_json)


@app.command()
def stop(directory: Dir, broker: Broker, as_json: JsonFlag = False) -> None:
    """Stop a broker with a controlled shutdown."""
    _change(directory, lambda cluster: cluster.stop(broker), as_json=as_json)


@app.command()
def pause(directory: Dir, broker: Broker, as_json: JsonFlag = False) -> None:
    """Freeze a broker: its connections stay open, and it does not respond."""
    _change(directory, lambda cluster: cluster.suspend(broker), as_json=as_json)


@app.command(name="continue")
def continue_(directory: Dir, broker: Broker, as_json: JsonFlag = False) -> None:
    """Resume a paused broker."""
    _change(directory, lambda cluster: cluster.resume(broker), as_json=as_json)


@app.command()
def restart(
    directory: Dir,
    broker: Broker,
    config: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A new broker setting, which is kept. May be repeated."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Start a stopped broker, or restart a running one."""
    _change(directory, lambda cluster: cluster.restart(broker, config=_pairs(config or ())), as_json=as_json)


def _change(directory: Path, change: Callable[[Cluster], None], *, as_json: bool) -> None:
    cluster = _cluster_class().attach(directory)
    change(cluster)
    _show(cluster, as_json=as_json)


def _cluster_class() -> type[Cluster]:
    # kafka-python takes 0.3 s to import, which `--help` and all other commands should not.
    from maxbrod.sandbox.cluster import Cluster  # noqa: PLC0415

    return Cluster


def _refuse_if_taken(directory: Path) -> None:
    if (directory / STATE_FILE).exists():
        raise RefusedError(
            "there is a sandbox here already",
            object_name=str(directory),
            hint=f"look at it with 'maxbrod sandbox status --dir {directory}', "
            f"remove it with 'maxbrod sandbox down --dir {directory}', or name another folder",
        )


def _pairs(texts: Iterable[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"not of the form KEY=VALUE: {text}")
        pairs[key] = value
    return pairs


def _show(cluster: Cluster, *, as_json: bool) -> None:
    document = describe(cluster)
    if as_json:
        print_json(document)
    else:
        _print(document)


def _print(document: dict[str, Any]) -> None:
    table = Table(title=f"Kafka {document['kafka_version']} in {document['directory']}: {document['state']}")
    for heading in ("node", "state", "pid", "ports"):
        table.add_column(heading)
    for node in document["nodes"]:
        ports = ", ".join(f"{name} {port}" for name, port in node["ports"].items())
        table.add_row(node["name"], node["state"], str(node["pid"] or ""), ports)
    out.print(table)
    for listener, address in document["listeners"].items():
        out.print(f"{listener}: {address}", markup=False, highlight=False, soft_wrap=True)
    if document["s3"] is not None:
        out.print("S3: {url} at {endpoint}, {state}".format(**document["s3"]), markup=False, highlight=False)
    for path in document["client_files"]:
        out.print(f"client settings: {path}", markup=False, highlight=False, soft_wrap=True)


def describe(cluster: Cluster) -> dict[str, Any]:
    """Return processes, ports and client files, as JSON. No secret is among them."""
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


def _attached_s3(cluster: Cluster) -> S3Server | None:
    """The S3 server of the sandbox, if it has one."""
    folder = cluster.directory / S3_DIR
    return S3Server.attach(folder) if folder.is_dir() else None


def _describe_s3(cluster: Cluster) -> dict[str, Any] | None:
    server = _attached_s3(cluster)
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
    server = _attached_s3(cluster)
    if not secure and server is None:
        return
    folder = cluster.directory / CLIENTS_DIR
    folder.mkdir(mode=0o700)
    if server is not None:
        write_private(folder / "s3.env", _aws_variables(server))
    for listener in secure:
        for user in cluster.spec.users:
            text = render_properties(cluster.java_properties(listener, user))
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
