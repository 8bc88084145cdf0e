"""A collector of OpenTelemetry on loopback: a web server that receives spans by OTLP over HTTP."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from support.message_servers import WebServer, web_server


@dataclass
class Collector:
    server: WebServer

    @property
    def variables(self) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.server.url}

    def services(self) -> set[str]:
        found = (attributes_of(sent.resource) for request in self._sent() for sent in request.resource_spans)
        return {attributes["service.name"] for attributes in found}

    def spans(self) -> dict[str, Any]:
        """All spans that have arrived, by name."""
        return {
            span.name: span
            for request in self._sent()
            for sent in request.resource_spans
            for scope in sent.scope_spans
            for span in scope.spans
        }

    def _sent(self) -> Iterator[Any]:
        for request in self.server.requests:
            headers = {name.lower(): value for name, value in request.headers.items()}
            assert (request.path, headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
            packed = headers.get("content-encoding") == "gzip"
            yield ExportTraceServiceRequest.FromString(gzip.decompress(request.body) if packed else request.body)


def attributes_of(message: Any) -> dict[str, Any]:
    """The attributes of a span, a resource or an event."""
    found = {}
    for attribute in message.attributes:
        kind = attribute.value.WhichOneof("value")
        value = getattr(attribute.value, kind)
        found[attribute.key] = [one.string_value for one in value.values] if kind == "array_value" else value
    return found


@contextmanager
def collecting() -> Iterator[Collector]:
    with web_server() as server:
        yield Collector(server)
