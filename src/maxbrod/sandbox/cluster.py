"""A Kafka cluster of real brokers on loopback: starts, breaks and repairs it, and leaves nothing behind.

Owns its folder and everything in it: the nodes, their ports, their start, and the wait until all of them answer. Knows
nothing about topics or records: see `topics` and `traffic`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

from kafka.admin import (
    ConfigResource,
    ConfigResourceType,
    KafkaAdminClient,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from maxbrod.errors import UnavailableError, UsageError
from maxbrod.sandbox.jars import KAFKA_VERSION, LOGGING_OPTIONS, archive_options, java_command, kafka_release, new_uuid
from maxbrod.sandbox.process import (
    CLOSING,
    HOST,
    Box,
    PortTakenError,
    Process,
    free_ports,
    launch,
    reap,
    retry_ports,
    wait_for,
    write_private,
)
from maxbrod.sandbox.security import Login, java_properties, kafka_python_properties, write_certificates
from maxbrod.sandbox.spec import (
    ADMIN,
    BROKER,
    CLIENTS_DIR,
    CONTROLLER,
    DEFAULT_USERS,
    OPTIONAL_LISTENERS,
    PLAINTEXT,
    PROXIED,
    STATE_FILE,
    STORES,
    TLS_DIR,
    SandboxNode,
    Spec,
    render_properties,
    role_sets,
    server_properties,
)
from maxbrod.sandbox.topics import known_brokers, known_scram_users

Advertise: TypeAlias = Callable[[int, int], int]

# Small, because several brokers share a laptop with Spark; records come from the page cache, not from the heap.
DEFAULT_JVM_OPTIONS: Final = ("-Xms128m", "-Xmx640m", "-XX:+UseG1GC")
_START_TIMEOUT_S: Final = 90.0
_STOP_TIMEOUT_S: Final = 60.0
_TAIL_LINES: Final = 25
_START_LINE: Final = "=== started by the maxbrod sandbox ===\n"
_SCRAM_MECHANISMS: Final = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)


@dataclass(frozen=True, slots=True)
class NodeHome:
    """One Kafka process, and its folder within that of its sandbox: settings, storage, output, pid."""

    sandbox: Path
    node: SandboxNode

    @property
    def path(self) -> Path:
        return self.sandbox / self.node.name

    @property
    def data_dir(self) -> Path:
        return self.path / "data"

    @property
    def output(self) -> Path:
        return self.path / "output.log"

    @property
    def process(self) -> Process:
        return Process(self.path / "pid")

    def create(self, spec: Spec) -> None:
        (self.path / "tmp").mkdir(parents=True)
        kafka_release(spec.kafka_version).format(self.data_dir, cluster_id=spec.cluster_id, node_id=self.node.node_id)

    def start(self, spec: Spec) -> None:
        """Write the settings and launch the process; does not wait until it is ready."""
        values = server_properties(spec, self.node, data_dir=self.data_dir, tls_dir=self.sandbox / TLS_DIR)
        properties = self.path / "server.properties"
        write_private(properties, render_properties(values))
        release = kafka_release(spec.kafka_version)
        # A killed JVM leaves the native libraries of its codecs in its temporary folder.
        temporary = f"-Djava.io.tmpdir={self.path / 'tmp'}"
        options = (*spec.jvm_options, *LOGGING_OPTIONS, temporary, *archive_options(release))
        command = java_command(release.jars, "kafka.Kafka", str(properties), options=options)
        with self.output.open("a") as output:
            output.write(_START_LINE)
        launch(command, home=self.path, output=self.output)

    def remove(self) -> None:
        self.process.kill()
        shutil.rmtree(self.path, ignore_errors=True)

    def raise_if_dead(self) -> None:
        if self.process.alive:
            return
        if "Address already in use" in self._output_of_last_start():
            raise PortTakenError
        raise UnavailableError(f"{self.node.name} ended while it started:\n{self.output_tail()}", operation="start")

    def output_tail(self) -> str:
        return "\n".join(self._output_of_last_start().splitlines()[-_TAIL_LINES:])

    def _output_of_last_start(self) -> str:
        text = self.output.read_text(errors="replace") if self.output.exists() else ""
        return text.rpartition(_START_LINE)[2]


class Cluster(Box):
    """A running cluster."""

    def __init__(self, directory: Path, spec: Spec, *, keep: bool = False) -> None:
        super().__init__(directory, keep=keep)
        self.spec = spec

    @classmethod
    def start(
        cls,
        directory: Path | str,
        *,
        brokers: int = 1,
        listeners: Iterable[str] = (),
        users: Mapping[str, str] | None = None,
        authorizer: bool = False,
        config: Mapping[str, str] | None = None,
        broker_config: Mapping[int, Mapping[str, str]] | None = None,
        advertise: Advertise | None = None,
        jvm_options: Iterable[str] = DEFAULT_JVM_OPTIONS,
        kafka_version: str = KAFKA_VERSION,
        keep: bool = False,
        detached: bool = False,
        timeout_s: float = _START_TIMEOUT_S,
    ) -> Self:
        """Start a cluster in a folder that is new or empty, and wait until every broker knows every other.

        Brokers always listen as PLAINTEXT; `listeners` adds SASL_PLAINTEXT, SSL and SASL_SSL. With `advertise` they
        also listen as PROXIED: it takes a broker's id and the real port of that listener, and returns the loopback
        port to advertise to clients (it is called again if a start is retried). The cluster ends with this process,
        even by SIGKILL, unless it is `detached`.
        """
        spec = Spec(
            cluster_id=new_uuid(),
            nodes=(),
            listeners=listener_names(listeners, proxied=advertise is not None),
            users=dict(DEFAULT_USERS if users is None else users),
            authorizer=authorizer,
            config=dict(config or {}),
            broker_config={broker: dict(values) for broker, values in (broker_config or {}).items()},
            jvm_options=tuple(jvm_options),
            kafka_version=kafka_version,
        )
        roles = role_sets(brokers)
        kafka_release(kafka_version)  # Downloads, the first time: before there is anything to clean up.
        cluster = cls(Path(directory), spec, keep=keep)
        cluster.claim(detached=detached)
        try:
            cluster._create(roles, advertise, timeout_s)
        except BaseException:
            cluster.close()
            raise
        return cluster

    @classmethod
    def attach(cls, directory: Path | str) -> Self:
        """The cluster that another process started in this folder with `detached`."""
        folder = Path(directory).resolve()
        try:
            spec = Spec.from_json((folder / STATE_FILE).read_text())
        except (FileNotFoundError, NotADirectoryError):
            hint = "start one with 'maxbrod sandbox up'"
            raise UsageError("there is no sandbox in this folder", object_name=str(folder), hint=hint) from None
        return cls(folder, spec)

    def dismantle(self) -> list[str]:
        """End every process and remove what the sandbox made; returns the names of foreign files, which stay."""
        for name in STORES:
            reap(self.directory / name)
        reap(self.directory, keep=True)
        for home in self.homes:
            home.remove()
        for name in (TLS_DIR, CLIENTS_DIR):
            shutil.rmtree(self.directory / name, ignore_errors=True)
        for name in (STATE_FILE, CLOSING):
            (self.directory / name).unlink(missing_ok=True)
        foreign = sorted(path.name for path in self.directory.iterdir())
        if not foreign:
            self.directory.rmdir()
        return foreign

    # Where things are

    @property
    def homes(self) -> list[NodeHome]:
        """All nodes: the brokers, and the controller if it is separate."""
        return [NodeHome(self.directory, node) for node in self.spec.nodes]

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return tuple(node.node_id for node in self.spec.brokers)

    @property
    def bootstrap(self) -> str:
        return self.bootstrap_for(PLAINTEXT)

    @property
    def running(self) -> tuple[int, ...]:
        """The ids of the brokers that are neither dead nor suspended."""
        return tuple(broker for broker in self.broker_ids if self.alive(broker) and not self.suspended(broker))

    @property
    def pids(self) -> tuple[int, ...]:
        """The pids of all live processes of the cluster."""
        return tuple(pid for home in self.homes if (pid := home.process.pid) is not None)

    def bootstrap_for(self, listener: str) -> str:
        """The address of every broker on this listener, running or not."""
        if listener not in self.spec.listeners:
            raise UsageError(f"no listener {listener}: this sandbox has {', '.join(self.spec.listeners)}")
        return ",".join(f"{HOST}:{node.client_port(listener)}" for node in self.spec.brokers)

    def port(self, broker_id: int) -> int:
        """The port of a broker on PLAINTEXT."""
        return self.spec.broker(broker_id).ports[PLAINTEXT]

    def log_dir(self, broker_id: int) -> Path:
        """The folder in which a broker keeps its partitions, one folder each."""
        return self._home(broker_id).data_dir

    def output(self, broker_id: int) -> Path:
        """The output of a broker since its first start."""
        return self._home(broker_id).output

    def client_properties(
        self, listener: str = PLAINTEXT, user: str = ADMIN, *, mechanism: str = "PLAIN"
    ) -> dict[str, Any]:
        """Keyword arguments for any client of kafka-python."""
        return kafka_python_properties(self._login(listener, user, mechanism))

    def java_properties(
        self, listener: str = PLAINTEXT, user: str = ADMIN, *, mechanism: str = "PLAIN"
    ) -> dict[str, str]:
        """Properties for any of Kafka's own clients and tools."""
        return java_properties(self._login(listener, user, mechanism))

    def admin(self) -> KafkaAdminClient:
        """An admin client on PLAINTEXT, where everything is allowed. Use it in a `with`, which closes it."""
        return KafkaAdminClient(**self.running_client_properties())

    def running_client_properties(self) -> dict[str, Any]:
        """`client_properties` that name running brokers only: kafka-python leaks a socket for each dead one."""
        addresses = [f"{HOST}:{self.port(broker)}" for broker in self.running]
        return {**self.client_properties(), "bootstrap_servers": addresses}

    # What can happen to brokers

    def alive(self, broker_id: int) -> bool:
        """True if the process exists, running or suspended."""
        return self._home(broker_id).process.alive

    def suspended(self, broker_id: int) -> bool:
        return self._home(broker_id).process.suspended

    def kill(self, broker_id: int) -> None:
        """SIGKILL: the broker neither moves its leaderships nor closes its files."""
        self._home(broker_id).process.kill()

    def stop(self, broker_id: int) -> None:
        """SIGTERM: the broker moves its leaderships and closes its logs."""
        self._home(broker_id).process.stop(timeout_s=_STOP_TIMEOUT_S)

    def suspend(self, broker_id: int) -> None:
        """SIGSTOP: connections stay open without answers."""
        self._home(broker_id).process.suspend()

    def resume(self, broker_id: int) -> None:
        self._home(broker_id).process.resume()

    def restart(self, broker_id: int, *, config: Mapping[str, str] | None = None) -> None:
        """Start a broker, after stopping it if it runs; `config` changes its settings permanently."""
        self.stop(broker_id)
        if config:
            changed = {**self.spec.broker_config.get(broker_id, {}), **config}
            self._save(replace(self.spec, broker_config={**self.spec.broker_config, broker_id: changed}))
        home = self._home(broker_id)

        def start() -> None:
            home.start(self.spec)
            wait_until_knows(home, lambda brokers: broker_id in brokers, watched=[home])

        # Another process may have taken its port while it was down, and may release it.
        retry_ports(start, lambda: f"another process holds the port of {home.node.name}", operation="restart")

    def set_config(self, config: Mapping[str, str], *, broker_id: int | None = None) -> None:
        """Change settings of running brokers that Kafka can change at run time (for others see `restart`)."""
        brokers = self.broker_ids if broker_id is None else (broker_id,)
        resources = [ConfigResource(ConfigResourceType.BROKER, str(broker), dict(config)) for broker in brokers]
        with self.admin() as admin:
            answers = admin.alter_configs(resources, raise_on_unknown=False)
        refused = {name: answer for name, answer in answers["broker"].items() if answer != "OK"}
        if refused:
            raise UsageError(f"brokers refused new settings: {refused}")

    def wait_until_settled(self) -> None:
        """Wait until every running broker knows all running brokers and no others."""
        running = [self._home(broker) for broker in self.running]
        expected = frozenset(self.running)
        for home in running:
            wait_until_knows(home, expected.__eq__, watched=running)

    # How it is made

    def _create(self, roles: list[tuple[int, tuple[str, ...]]], advertise: Advertise | None, timeout_s: float) -> None:
        if self.spec.tls:
            write_certificates(self.directory / TLS_DIR, self.spec.users)

        def start() -> None:
            self._save(replace(self.spec, nodes=choose_nodes(roles, self.spec.listeners, advertise)))
            try:
                start_nodes(self.homes, self.spec, timeout_s=timeout_s)
            except PortTakenError:
                for home in self.homes:
                    home.remove()
                raise

        retry_ports(start, lambda: "no ports stayed free until the brokers could bind them", operation="start")

    def _save(self, spec: Spec) -> None:
        write_private(self.directory / STATE_FILE, spec.as_json())
        self.spec = spec

    def _home(self, broker_id: int) -> NodeHome:
        return NodeHome(self.directory, self.spec.broker(broker_id))

    def _login(self, listener: str, user: str, mechanism: str) -> Login:
        return Login(
            bootstrap=self.bootstrap_for(listener),
            listener=listener,
            user=user,
            password=self.spec.users.get(user, ""),
            mechanism=mechanism,
            tls_dir=self.directory / TLS_DIR,
        )


def listener_names(wanted: Iterable[str], *, proxied: bool) -> tuple[str, ...]:
    names = [name.upper() for name in wanted]
    if unknown := set(names) - {PLAINTEXT, *OPTIONAL_LISTENERS}:
        raise UsageError(f"no such listener: {', '.join(sorted(unknown))}", hint=f"one of {OPTIONAL_LISTENERS}")
    optional = (name for name in OPTIONAL_LISTENERS if name in names)
    return (PLAINTEXT, *((PROXIED,) if proxied else ()), *optional)


def choose_nodes(
    roles: Iterable[tuple[int, tuple[str, ...]]],
    listeners: Sequence[str],
    advertise: Callable[[int, int], int] | None,
) -> tuple[SandboxNode, ...]:
    """Nodes with free ports for every listener that their roles need."""
    bound = [
        (node_id, own, [*(listeners if BROKER in own else ()), *((CONTROLLER,) if "controller" in own else ())])
        for node_id, own in roles
    ]
    ports = iter(free_ports(sum(len(names) for _, _, names in bound)))
    nodes = []
    for node_id, own, names in bound:
        taken = {name: next(ports) for name in names}
        advertised = {PROXIED: advertise(node_id, taken[PROXIED])} if advertise and PROXIED in taken else {}
        nodes.append(SandboxNode(node_id=node_id, roles=own, ports=taken, advertised_ports=advertised))
    return tuple(nodes)


def start_nodes(homes: Sequence[NodeHome], spec: Spec, *, timeout_s: float) -> None:
    """Create and start all nodes, and wait until every broker knows every other one."""
    for home in homes:
        home.create(spec)
        home.start(spec)
    brokers = [home for home in homes if home.node.is_broker]
    expected = frozenset(home.node.node_id for home in brokers)
    for home in brokers:
        wait_until_knows(home, expected.issubset, watched=homes, timeout_s=timeout_s)
    if spec.sasl_listeners:
        _add_scram_users(brokers, spec, timeout_s=timeout_s)


def wait_until_knows(
    home: NodeHome,
    enough: Callable[[frozenset[int]], bool],
    *,
    watched: Sequence[NodeHome],
    timeout_s: float = _START_TIMEOUT_S,
) -> None:
    """Wait until this broker answers and knows enough brokers; raise at once if a watched node dies."""

    def answered() -> bool:
        if enough(known_brokers(home.node.ports[PLAINTEXT])):
            return True
        for other in watched:
            other.raise_if_dead()
        return False

    try:
        wait_for(f"{home.node.name} to be ready", answered, timeout_s=timeout_s)
    except UnavailableError as error:
        if error.operation != "wait":
            raise
        raise UnavailableError(f"{error.message}:\n{home.output_tail()}", operation="start") from None


def _add_scram_users(brokers: Sequence[NodeHome], spec: Spec, *, timeout_s: float) -> None:
    """Add users at run time: StorageTool takes passwords on its command line, where `ps` shows them."""
    with KafkaAdminClient(bootstrap_servers=f"{HOST}:{brokers[0].node.ports[PLAINTEXT]}") as admin:
        # One request for each: Kafka refuses a request that names a user twice, even with two mechanisms.
        for mechanism in _SCRAM_MECHANISMS:
            wanted = [UserScramCredentialUpsertion(user, mechanism, word) for user, word in spec.users.items()]
            refused = {user: error for user, error in admin.alter_user_scram_credentials(wanted).items() if error}
            if refused:
                raise UsageError(f"Kafka refused SCRAM users: {refused}")
    expected = {(user, int(mechanism)) for user in spec.users for mechanism in _SCRAM_MECHANISMS}
    for home in brokers:
        wait_for(
            f"{home.node.name} to know the SCRAM users",
            lambda port=home.node.ports[PLAINTEXT]: expected <= known_scram_users(port),  # type: ignore[misc]
            timeout_s=timeout_s,
        )
