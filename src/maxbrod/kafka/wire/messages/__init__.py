"""Messages of Kafka's protocol that kafka-python lacks, in the format from which it builds its own.

The JSON files here are the protocol's definitions; the library generates the classes.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.api_message import ApiMessage


def message_pair(name: str, package: str = __name__) -> tuple[Any, Any]:
    """The classes of a request and of its response. Keep both: kafka-python refers weakly to that of a response."""
    return message_class(f"{name}Request", package), message_class(f"{name}Response", package)


def message_class(name: str, package: str = __name__) -> Any:  # noqa: ANN401 - the library's classes are untyped
    return type(ApiMessage)(name, (ApiMessage,), {"__module__": __name__}, load_json=package)
