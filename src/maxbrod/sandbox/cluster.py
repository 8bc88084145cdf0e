"""A Kafka cluster of real brokers on loopback: starts, breaks and repairs it, and leaves nothing behind.

Owns its folder and everything in it: the nodes, their ports, their start, and the wait until all of them answer. Knows
nothing about topics or records: see `topics` and `traffic`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from kafka.admin import (
    ConfigResource,
    ConfigResourceType,
    KafkaAdminClient,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from maxbrod.errors import UnavailableError, UsageError
from maxbrod.sandbox.jars import KAFKA_VERSION, kafka_release, new_uuid
from maxbrod.sandbox.node import NodeHome, PortTakenError, claim, write_private
from maxbrod.sandbox.probe import known_brokers, known_scram_users
from maxbrod.sandbox.process import CLOSING, Reaper, reap, wait_for
from maxbrod.sandbox.security import Login, java_properties, kafka_python_properties, write_certificates
from maxbrod.sandbox.spec import (
    ADMIN,
    BROKER,
    CLIENTS_DIR,
    CONTROLLER,
    DEFAULT_USERS,
    HOST,
    OPTIONAL_LISTENERS,
    PLAINTEXT,
    PROXIED,
    S3_DIR,
    STATE_FILE,
    TLS_DIR,
    Node,
    Spec,
    free_ports,
    role_sets,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType


Advertise: TypeAlias = Callable[[int, int], int]

# Small, because several brokers share a laptop with Spark; records come from the page cache, not from the heap.
DEFAULT_JVM_OPTIONS: Final = ("-Xms128m", "-Xmx640m", "-XX:+UseG1GC")
_START_TIMEOUT_S: Final = 90.0
_STOP_TIMEOUT_S: Final = 60.0
_PORT_TRIES: Final = 5

_SCRAM_MECHANISMS: Final = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)


class Cluster:
    """A running cluster. Use it as a context manager: leaving it ends all brokers and removes the folder."""

    def __init__(self, directory: Path, spec: Spec, *, reaper: Reaper | None, keep: bool = False) -> None:
        self.directory = directory
        self.spec = spec
        self._reaper = reaper
        self._keep = keep

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
        folder = claim(Path(directory))
        reaper = None if detached else Reaper.start(folder, keep=keep)
        cluster = cls(folder, spec, reaper=reaper, keep=keep)
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
        return cls(folder, spec, reaper=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process at once, and remove the folder unless it was to be kept."""
        reap(self.directory, keep=self._keep)
        if self._reaper is not None:
            self._reaper.close()

    def dismantle(self) -> list[str]:
        """End every process and remove what the sandbox made; returns the names of foreign files, which stay."""
        reap(self.directory / S3_DIR)
        reap(self.directory, keep=True)
        for node in self.spec.nodes:
            NodeHome(self.directory, node).remove()
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
        """The pids of all live processes of the cluster: the brokers, and the controller if it is separate."""
        found = (NodeHome(self.directory, node).process.pid for node in self.spec.nodes)
        return tuple(pid for pid in found if pid is not None)

    def bootstrap_for(self, listener: str) -> str:
        """The address of every broker on this listener, running or not."""
        if listener not in self.spec.listeners:
            raise UsageError(f"no listener {listener}: this sandbox has {', '.join(self.spec.listeners)}")
        return ",".join(f"{HOST}:{node.client_port(listener)}" for node in self.spec.brokers)

    def log_dir(self, broker_id: int) -> Path:
        """Where a broker keeps its partitions, one folder each."""
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
        addresses = [f"{HOST}:{self.spec.broker(broker).ports[PLAINTEXT]}" for broker in self.running]
        return {**self.client_properties(), "bootstrap_servers": addresses}

    # What can happen to brokers

    def alive(self, broker_id: int) -> bool:
        """Whether the process exists, running or suspended."""
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

    def restart(
        self, broker_id: int, *, config: Mapping[str, str] | None = None, timeout_s: float = _START_TIMEOUT_S
    ) -> None:
        """Start a broker, after stopping it if it runs; `config` changes its settings permanently."""
        self.stop(broker_id)
        if config:
            changed = {**self.spec.broker_config.get(broker_id, {}), **config}
            self._save(replace(self.spec, broker_config={**self.spec.broker_config, broker_id: changed}))
        self._start_again(self._home(broker_id), timeout_s)

    def set_config(self, config: Mapping[str, str], *, broker_id: int | None = None) -> None:
        """Change settings of running brokers that Kafka can change at run time (for others see `restart`)."""
        brokers = self.broker_ids if broker_id is None else (broker_id,)
        resources = [ConfigResource(ConfigResourceType.BROKER, str(broker), dict(config)) for broker in brokers]
        with self.admin() as admin:
            answers = admin.alter_configs(resources, raise_on_unknown=False)
        refused = {name: answer for name, answer in answers["broker"].items() if answer != "OK"}
        if refused:
            raise UsageError(f"brokers refused new settings: {refused}")

    def wait_until_settled(self, *, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Wait until every running broker knows all running brokers and no others."""
        running = [self._home(broker) for broker in self.running]
        expected = frozenset(self.running)
        for home in running:
            wait_until_knows(home, expected.__eq__, watched=running, timeout_s=timeout_s)

    # How it is made

    def _create(self, roles: list[tuple[int, tuple[str, ...]]], advertise: Advertise | None, timeout_s: float) -> None:
        if self.spec.tls:
            write_certificates(self.directory / TLS_DIR, self.spec.users)
        for _ in range(_PORT_TRIES):
            self._save(replace(self.spec, nodes=choose_nodes(roles, self.spec.listeners, advertise)))
            homes = [NodeHome(self.directory, node) for node in self.spec.nodes]
            try:
                start_nodes(homes, self.spec, timeout_s=timeout_s)
            except PortTakenError:
                for home in homes:
                    home.remove()
                continue
            return
        raise UnavailableError("no ports stayed free until the brokers could bind them", operation="start")

    def _start_again(self, home: NodeHome, timeout_s: float) -> None:
        known = home.node.node_id
        # Another process may have taken its port while it was down, and may release it.
        for _ in range(_PORT_TRIES):
            home.start(self.spec)
            try:
                wait_until_knows(home, lambda brokers: known in brokers, watched=[home], timeout_s=timeout_s)
            except PortTakenError:
                continue
            return
        raise UnavailableError(f"another process holds the port of {home.node.name}", operation="restart")

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
) -> tuple[Node, ...]:
    """Nodes with free ports for every listener that their roles need."""
    bound = [
        (node_id, roles_of_node, [*(listeners if BROKER in roles_of_node else ()), *_controller(roles_of_node)])
        for node_id, roles_of_node in roles
    ]
    ports = iter(free_ports(sum(len(names) for _, _, names in bound)))
    nodes = []
    for node_id, roles_of_node, names in bound:
        taken = {name: next(ports) for name in names}
        advertised = {PROXIED: advertise(node_id, taken[PROXIED])} if advertise and PROXIED in taken else {}
        nodes.append(Node(node_id=node_id, roles=roles_of_node, ports=taken, advertised_ports=advertised))
    return tuple(nodes)


def _controller(roles: tuple[str, ...]) -> tuple[str, ...]:
    return (CONTROLLER,) if "controller" in roles else ()


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
    timeout_s: float,
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
