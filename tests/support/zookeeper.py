"""A broker of the time of ZooKeeper, with its ZooKeeper: Kafka up to 3.9, which the sandbox does not start."""

from __future__ import annotations

import socket
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from maxbrod.private_files import filled
from maxbrod.sandbox.jars import java_command, resolve_jars
from maxbrod.sandbox.process import Box, free_ports, launch, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_EXCLUDED: Final = (("org.slf4j", "slf4j-log4j12"), ("org.slf4j", "slf4j-reload4j"), ("log4j", "log4j"))
_HOST: Final = "127.0.0.1"


@contextmanager
def old_broker(folder: Path, version: str) -> Iterator[str]:
    """The address of a broker of this release."""
    modules = [("org.apache.kafka", "kafka_2.13", version), ("org.slf4j", "slf4j-simple", "1.7.36")]
    what = f"Apache Kafka {version} with ZooKeeper"
    home = filled(
        f"kafka-zookeeper-{version}",
        lambda home: resolve_jars(home / "jars", modules, what=what, excluded=_EXCLUDED),
    )
    jars = sorted((home / "jars").glob("*.jar"))
    zookeeper, kafka = free_ports(2)
    settings = {
        "broker.id": "1",
        "listeners": f"PLAINTEXT://{_HOST}:{kafka}",
        "zookeeper.connect": f"{_HOST}:{zookeeper}",
        "log.dirs": str(folder / "logs"),
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    with Box(folder) as box:
        box.claim()
        properties = folder / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        (folder / "zookeeper").mkdir()
        commands = {
            "keeper": java_command(
                jars,
                "org.apache.zookeeper.server.ZooKeeperServerMain",
                *(str(zookeeper), str(folder / "zookeeper")),
                options=("-Dzookeeper.admin.enableServer=false",),
            ),
            "broker": java_command(jars, "kafka.Kafka", str(properties), options=("-Xmx512m",)),
        }
        for (name, command), port in zip(commands.items(), (zookeeper, kafka), strict=True):
            process_home = folder / name
            process_home.mkdir()
            launch(command, home=process_home, output=folder / f"{name}.log")
            wait_for(name, partial(_answers, port), timeout_s=120)
        yield f"{_HOST}:{kafka}"


def _answers(port: int) -> bool:
    with closing(socket.socket()) as stream:
        return stream.connect_ex((_HOST, port)) == 0
