"""Messages of Kafka's protocol that kafka-python lacks, in the format from which it builds its own.

The JSON files here are the protocol's definitions; the library generates the classes.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.api_message import ApiMessage


def message_pair(name: str, package: str = __name__) -> tuple[Any, Any]:
    """The classes of a request and of its response. Keep both: kafka-python refers weakly to that of a response."""
    request, response = (
        type(ApiMessage)(f"{name}{kind}", (ApiMessage,), {"__module__": __name__}, load_json=package)
        for kind in ("Request", "Response")
    )
    return request, response
