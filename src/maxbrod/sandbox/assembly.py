"""The nodes of a cluster: their ports, their start, and the wait until all of them answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafka.admin import KafkaAdminClient, ScramMechanism, UserScramCredentialUpsertion

from maxbrod.errors import UnavailableError, UsageError
from maxbrod.sandbox.ports import free_ports
from maxbrod.sandbox.probe import known_brokers, known_scram_users
from maxbrod.sandbox.spec import BROKER, CONTROLLER, HOST, OPTIONAL_LISTENERS, PLAINTEXT, PROXIED, Node, Spec
from maxbrod.sandbox.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from maxbrod.sandbox.node import NodeHome

_SCRAM_MECHANISMS: Final = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)


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
