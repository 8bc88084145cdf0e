"""The Kafka processes of a cluster: their ports and folders, their start, and the wait until all of them answer."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kafka.admin import KafkaAdminClient, ScramMechanism, UserScramCredentialUpsertion

from maxbrod.errors import RefusedError, UnavailableError, UsageError
from maxbrod.sandbox import settings
from maxbrod.sandbox.classes import archive_options
from maxbrod.sandbox.jars import kafka_release
from maxbrod.sandbox.jvm import LOGGING_OPTIONS, java_command
from maxbrod.sandbox.ports import free_ports
from maxbrod.sandbox.probe import known_brokers, known_scram_users
from maxbrod.sandbox.process import Process, launch
from maxbrod.sandbox.spec import BROKER, CONTROLLER, HOST, OPTIONAL_LISTENERS, PLAINTEXT, PROXIED, TLS_DIR, Node
from maxbrod.sandbox.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from maxbrod.sandbox.spec import Spec

_TAIL_LINES: Final = 25
_SCRAM_MECHANISMS: Final = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
_START_LINE: Final = "=== started by the maxbrod sandbox ===\n"


class PortTakenError(Exception):
    """Another process took a port before ours could bind it."""


@dataclass(frozen=True, slots=True)
class NodeHome:
    """A node's folder within the folder of its sandbox."""

    sandbox: Path
    node: Node

    @property
    def path(self) -> Path:
        return self.sandbox / self.node.name

    @property
    def data_dir(self) -> Path:
        return self.path / "data"

    @property
    def temporary_dir(self) -> Path:
        return self.path / "tmp"

    @property
    def output(self) -> Path:
        return self.path / "output.log"

    @property
    def process(self) -> Process:
        return Process(self.path / "pid")

    def create(self, spec: Spec) -> None:
        self.temporary_dir.mkdir(parents=True)
        kafka_release().format(self.data_dir, cluster_id=spec.cluster_id, node_id=self.node.node_id)

    def start(self, spec: Spec) -> None:
        """Write the settings and launch the process; does not wait until it is ready."""
        values = settings.properties(spec, self.node, data_dir=self.data_dir, tls_dir=self.sandbox / TLS_DIR)
        properties = self.path / "server.properties"
        write_private(properties, settings.render(values))
        release = kafka_release()
        # A killed JVM leaves the native libraries of its codecs in its temporary folder.
        temporary = f"-Djava.io.tmpdir={self.temporary_dir}"
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


def write_private(path: Path, text: str) -> None:
    """Write a file atomically that only its owner can read, from its first byte on."""
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)


# Many nodes


def claim(directory: Path) -> Path:
    """Claim a folder that is new or empty, because the sandbox removes it in the end with all that is in it."""
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise RefusedError(
            "the folder is not empty", object_name=str(directory), hint="name a folder that does not exist yet"
        )
    directory.chmod(0o700)
    return directory.resolve()


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
