"""Registries with something of everything, and captures of them."""

from __future__ import annotations

from maxbrod.config import RegistryConfig
from maxbrod.registry.capture import capture_registry
from maxbrod.registry.client import RegistryClient
from maxbrod.registry.model import RegistryState
from support.registries import RegistryDouble, record

PROTO = 'syntax = "proto3"; message Note { string text = 1; }'


def filled() -> RegistryDouble:
    """References, several versions, a soft-deleted one, two subjects with one id, modes, levels and a context."""
    double = RegistryDouble()
    double.register("address", record("Address", "street"))
    double.register("orders-value", record("Order", "id"))
    double.register(
        "orders-value",
        record("Order", "id", note=""),
        references=[{"name": "Address", "subject": "address", "version": 1}],
        metadata={"properties": {"owner": "shop"}},
    )
    double.soft_delete("orders-value", 1)
    double.register("copies-value", record("Order", "id"))
    double.register("proto-value", PROTO, schemaType="PROTOBUF")
    double.register("frozen-value", record("Frozen", "id"))
    double.register(":.other:orders-value", record("Elsewhere", "id"))
    double.modes["frozen-value"] = "READONLY"
    double.configs["orders-value"] = {"compatibilityLevel": "FULL"}
    return double


def client_of(
    double: RegistryDouble, config: RegistryConfig | None = None, *, patience_s: float = 60
) -> RegistryClient:
    return RegistryClient([double.url], config or RegistryConfig(), patience_s=patience_s)


def captured(double: RegistryDouble) -> RegistryState:
    """The capture of a double that is serving."""
    with client_of(double) as client:
        return capture_registry(client)
