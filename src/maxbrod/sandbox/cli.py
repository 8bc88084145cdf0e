"""`maxbrod sandbox`: a real Kafka cluster on this machine, for experiments. It outlives the shell that started it."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table

from maxbrod.cli.output import JsonFlag, err, out, print_json, print_line
from maxbrod.cli.verbs import load
from maxbrod.errors import RefusedError, UsageError
from maxbrod.sandbox.jars import KAFKA_VERSION
from maxbrod.sandbox.process import write_private
from maxbrod.sandbox.spec import CLIENTS_DIR, OPTIONAL_LISTENERS, STATE_FILE, STORES, render_properties
from maxbrod.text import counted

if TYPE_CHECKING:
    from maxbrod.sandbox.cluster import Cluster
    from maxbrod.sandbox.store_server import StoreServer


_BROKERS_MAX: Final = 9
_CLUSTER: Final = "sandbox.cluster:Cluster"  # kafka-python takes 0.3 s to import, which `--help` should not
_SERVERS: Final = {"s3": "sandbox.s3:S3Server", "azure": "sandbox.azure:AzureServer"}

app = typer.Typer(
    help="A real Kafka cluster on loopback. The first start downloads Kafka (40 MB) into the user's cache.",
    no_args_is_help=True,
)

_FOLDER: Final = Path("maxbrod-sandbox")
Dir = Annotated[Path, typer.Option("--dir", metavar="FOLDER", help="The sandbox's folder.")]
Broker = Annotated[int, typer.Option("--broker", metavar="ID", help="The broker's id, from 1.", show_default=False)]
TopicName = Annotated[str, typer.Option("--topic", metavar="NAME", help="The topic.", show_default=False)]


Store = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Start an object store with an empty bucket too: s3 (builds versitygw the first time) or azure (installs "
        "Azurite the first time).",
    ),
]


@app.command()
def up(
    directory: Annotated[
        Path, typer.Option("--dir", metavar="FOLDER", help="A new or empty folder, which will hold everything.")
    ] = _FOLDER,
    brokers: Annotated[int, typer.Option(metavar="N", help="Number of brokers, 1 to 9.")] = 1,
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
    store: Store = None,
    as_json: JsonFlag = False,
) -> None:
    """Start a cluster and leave it running.

    The users of secure listeners are 'admin' and 'alice', with generated passwords. For each user and listener there is
    a file of client properties for the --command-config of Kafka's own tools. The keys of the object store are in
    clients/s3.env or clients/azure.env, for a shell to source.
    """
    if store is not None and store not in STORES:
        raise UsageError(f"--store is none of {', '.join(STORES)}: {store}")
    if (directory / STATE_FILE).exists():
        raise RefusedError(
            "there is a sandbox here already",
            object_name=str(directory),
            hint=f"look at it with 'maxbrod sandbox status --dir {directory}', "
            f"remove it with 'maxbrod sandbox down --dir {directory}', or name another folder",
        )
    if not 1 <= brokers <= _BROKERS_MAX:
        raise UsageError(f"--brokers {brokers}: a sandbox has 1 to {_BROKERS_MAX} brokers")
    users = {name: secrets.token_urlsafe(12) for name in ("admin", "alice")}
    with err.status(f"starting Kafka {kafka_version}; the first start downloads it …"):
        started: Cluster = load(_CLUSTER).start(
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
        if store is not None:
            _server(store).start(directory / store, bucket="maxbrod", detached=True)
        write_client_files(started)
    except BaseException:
        started.dismantle()
        raise
    _show(started, as_json=as_json)
    if not as_json:
        where = "" if directory == _FOLDER else f" --dir {directory}"
        print_line("next:")
        print_line(f"  maxbrod sandbox fill{where} --topic orders   # a topic with records")
        print_line(f"  maxbrod init --bootstrap {started.bootstrap}")
        print_line(f"  maxbrod sandbox down{where}   # stop and remove it all")


@app.command()
def fill(
    topic: TopicName,
    directory: Dir = _FOLDER,
    records: Annotated[int, typer.Option(metavar="N", help="Number of records.")] = 1000,
    as_json: JsonFlag = False,
) -> None:
    """Write numbered records to a topic, and create it if there is none."""
    cluster: Cluster = load(_CLUSTER).attach(directory)
    if topic not in load("sandbox.topics:list_topics")(cluster):
        load("sandbox.topics:create_topic")(cluster, topic)
    first = load("sandbox.topics:offsets")(cluster, topic)[1]
    load("sandbox.traffic:produce")(cluster, topic, load("sandbox.traffic:numbered")(records, first=first))
    end = load("sandbox.topics:offsets")(cluster, topic)[1]
    _tell({"topic": topic, "records": records, "end_offset": end}, f"{topic} ends at offset {end:,}", as_json=as_json)


@app.command()
def read(
    topic: TopicName,
    group: Annotated[str, typer.Option("--group", metavar="NAME", help="The consumer group.", show_default=False)],
    directory: Dir = _FOLDER,
    records: Annotated[int | None, typer.Option(metavar="N", help="Number of records. All by default.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Read records of a topic as a consumer group, from where the group is, and commit."""
    cluster = load(_CLUSTER).attach(directory)
    load("sandbox.topics:demand_topic")(cluster, topic)
    found = load("sandbox.traffic:read_as_group")(cluster, group, {topic: records})
    offsets: list[int] = found.get(topic, [])
    where = f": offsets {offsets[0]:,} to {offsets[-1]:,}" if offsets else ""
    document = {"topic": topic, "group": group, "offsets": offsets}
    _tell(document, f"{group} has read {counted(len(offsets), 'record')} of {topic}{where}", as_json=as_json)


@app.command()
def delete(topic: TopicName, directory: Dir = _FOLDER, as_json: JsonFlag = False) -> None:
    """Delete a topic, as in a disaster."""
    cluster = load(_CLUSTER).attach(directory)
    load("sandbox.topics:demand_topic")(cluster, topic)
    load("sandbox.topics:delete_topic")(cluster, topic)
    _tell({"topic": topic, "deleted": True}, f"deleted {topic} and its records", as_json=as_json)


def _tell(document: Mapping[str, object], text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        print_line(text)


@app.command()
def status(
    directory: Dir = _FOLDER,
    bootstrap: Annotated[
        bool, typer.Option("--bootstrap", metavar="", help="Print only the addresses of the brokers, for a shell.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show which brokers run, and where."""
    cluster: Cluster = load(_CLUSTER).attach(directory)
    if bootstrap and not as_json:
        print_line(cluster.bootstrap)
    else:
        _show(cluster, as_json=as_json)


@app.command()
def down(directory: Dir = _FOLDER, as_json: JsonFlag = False) -> None:
    """Stop all brokers and remove what the sandbox created, and nothing else."""
    foreign = load(_CLUSTER).attach(directory).dismantle()
    document = {"directory": str(directory), "removed": True, "left": foreign}
    left = f"; left what is not its own: {', '.join(foreign)}" if foreign else ""
    _tell(document, f"removed the sandbox in {directory}{left}", as_json=as_json)


def _add_fault(name: str, method: str, about: str) -> None:
    def change(broker: Broker, directory: Dir = _FOLDER, as_json: JsonFlag = False) -> None:
        _change(directory, lambda cluster: getattr(cluster, method)(broker), as_json=as_json)

    app.command(name, help=about)(change)


_add_fault("kill", "kill", "Kill a broker with SIGKILL, without a controlled shutdown.")
_add_fault("stop", "stop", "Stop a broker with a controlled shutdown.")
_add_fault("pause", "suspend", "Freeze a broker: its connections stay open, and it does not respond.")
_add_fault("continue", "resume", "Resume a paused broker.")


@app.command()
def restart(
    broker: Broker,
    directory: Dir = _FOLDER,
    config: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A new broker setting, which is kept. May be repeated."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Start a stopped broker, or restart a running one."""
    _change(directory, lambda cluster: cluster.restart(broker, config=_pairs(config or ())), as_json=as_json)


def _change(directory: Path, change: Callable[[Cluster], None], *, as_json: bool) -> None:
    cluster: Cluster = load(_CLUSTER).attach(directory)
    change(cluster)
    _show(cluster, as_json=as_json)


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
        return
    table = Table(title=f"Kafka {document['kafka_version']} in {document['directory']}: {document['state']}")
    for heading in ("node", "state", "pid", "ports"):
        table.add_column(heading)
    for node in document["nodes"]:
        ports = ", ".join(f"{name} {port}" for name, port in node["ports"].items())
        table.add_row(node["name"], node["state"], str(node["pid"] or ""), ports)
    out.print(table)
    lines = [f"{listener}: {address}" for listener, address in document["listeners"].items()]
    store = document["store"]
    lines += [] if store is None else ["{kind}: {url} at {endpoint}, {state}".format(**store)]
    lines += [f"client settings: {path}" for path in document["client_files"]]
    for line in lines:
        print_line(line)


def describe(cluster: Cluster) -> dict[str, Any]:
    """Return processes, ports and client files, as JSON. No secret is among them."""
    nodes = []
    for home in cluster.homes:
        pid, node = home.process.pid, home.node
        state = "stopped" if pid is None else "paused" if home.process.suspended else "running"
        nodes.append({"name": node.name, "id": node.node_id, "state": state, "pid": pid, "ports": dict(node.ports)})
    states = {str(node["state"]) for node in nodes}
    store = _attached_store(cluster)
    return {
        "directory": str(cluster.directory),
        "kafka_version": cluster.spec.kafka_version,
        "cluster_id": cluster.spec.cluster_id,
        "state": states.pop() if len(states) == 1 else "degraded",
        "bootstrap": cluster.bootstrap,
        "listeners": {listener: cluster.bootstrap_for(listener) for listener in cluster.spec.listeners},
        "nodes": nodes,
        "client_files": sorted(map(str, (cluster.directory / CLIENTS_DIR).glob("*"))),
        "store": None
        if store is None
        else {
            "kind": store.kind,
            "state": "running" if store.alive else "stopped",
            "url": store.url,
            "endpoint": store.endpoint,
        },
    }


def _server(store: str) -> type[StoreServer]:
    found: type[StoreServer] = load(_SERVERS[store])
    return found


def _attached_store(cluster: Cluster) -> StoreServer | None:
    """The object store of the sandbox, if it has one."""
    folders = {name: cluster.directory / name for name in STORES}
    return next((_server(name).attach(folder) for name, folder in folders.items() if folder.is_dir()), None)


def write_client_files(cluster: Cluster) -> None:
    """Write what clients need to log in, into files that only their owner can read.

    Java client properties for each secure listener and user; variables for the object store.
    """
    secure = [listener for listener in cluster.spec.listeners if listener in OPTIONAL_LISTENERS]
    server = _attached_store(cluster)
    if not secure and server is None:
        return
    folder = cluster.directory / CLIENTS_DIR
    folder.mkdir(mode=0o700)
    if server is not None:
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in server.variables().items()]
        write_private(folder / f"{server.kind}.env", "".join(lines))
    for listener in secure:
        for user in cluster.spec.users:
            text = render_properties(cluster.java_properties(listener, user))
            write_private(folder / f"{listener.lower()}-{user}.properties", text)
