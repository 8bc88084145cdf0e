"""A producer in a process of its own: prints a line for each record that was acknowledged, until it is killed."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from itertools import count
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError

WAITING_MAX = 500


def main(bootstrap: str, topic: str, partitions: int) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=2, max_block_ms=600_000)
    waiting: list[Any] = []

    def note(number: int, answer: Any) -> None:
        os.write(1, f"{answer.partition} {answer.offset} {number}\n".encode())

    for number in count():
        sent = producer.send(topic, value=str(number).encode(), partition=number % partitions)
        waiting.append(sent.add_callback(lambda answer, number=number: note(number, answer)))
        if len(waiting) == WAITING_MAX:
            for each in waiting:
                # What was not acknowledged is not promised.
                with suppress(KafkaError):
                    each.get(timeout=600)
            waiting.clear()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
