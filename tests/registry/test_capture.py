"""The capture of a registry: everything that it has, and nothing that is secret."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from maxbrod.config import RegistryConfig, TlsConfig
from maxbrod.errors import AccessDeniedError, UnavailableError
from maxbrod.registry.capture import capture_registry
from maxbrod.registry.client import RegistryClient
from maxbrod.registry.model import RegistryState
from maxbrod.sandbox.process import free_ports
from maxbrod.sandbox.security import CA_FILE, user_file_stem, write_certificates
from support.registries import RegistryDouble, basic, record, serving
from support.registry_states import captured, client_of, filled


@pytest.fixture
def double() -> RegistryDouble:
    return filled()


def summary(state: RegistryState) -> dict[tuple[str, int], tuple[int, bool]]:
    return {place: (version.id, version.deleted) for place, version in state.versions.items()}


def test_a_capture_has_subjects_versions_ids_references_modes_compatibility_contexts_and_what_is_soft_deleted(
    double: RegistryDouble,
) -> None:
    with serving(double):
        found = captured(double)
    assert summary(found) == double.listing()
    assert any(deleted for _, deleted in double.listing().values()), "the double must have something soft-deleted"
    assert found.contexts == (".", ".other")
    assert found.modes == {"": "READWRITE", "frozen-value": "READONLY"}
    assert found.configs == {"": {"compatibilityLevel": "BACKWARD"}, "orders-value": {"compatibilityLevel": "FULL"}}
    order = found.versions["orders-value", 2]
    assert [(one.name, one.subject, one.version) for one in order.references] == [("Address", "address", 1)]
    assert order.details == {"metadata": {"properties": {"owner": "shop"}}}
    assert found.versions["proto-value", 1].schema_type == "PROTOBUF"
    assert all(version.guid for version in found.versions.values())


def test_a_registry_that_lists_no_schemas_is_asked_subject_by_subject(double: RegistryDouble) -> None:
    with serving(double):
        listed = captured(double)
        double.lists_schemas = False
        assert captured(double) == listed


def test_a_subject_that_the_list_of_schemas_leaves_out_is_captured_too(double: RegistryDouble) -> None:
    with serving(double):
        double.imports = False  # no contexts: the list has the default one only, as of registries before them
        whole = double.page

        def page(query: dict[str, str]) -> list[object]:
            return whole({**query, "subjectPrefix": ""})

        double.page = page  # type: ignore[assignment,method-assign]
        assert summary(captured(double)) == double.listing()


def test_a_registry_that_answers_any_subject_with_its_mode_gives_no_subject_one_of_its_own(
    double: RegistryDouble,
) -> None:
    double.imports = False
    with serving(double):
        assert captured(double).modes == {"": "READWRITE"}
        assert summary(captured(double)) == double.listing()


@pytest.mark.parametrize(
    ("login", "config"),
    [
        (basic("alice", "s3cret"), RegistryConfig(username="alice", password="s3cret")),  # type: ignore[arg-type]
        ("Bearer s3cret", RegistryConfig(token="s3cret")),  # type: ignore[arg-type]
    ],
)
def test_a_log_in_by_password_or_token_is_accepted_and_a_missing_one_is_told_without_a_secret(
    login: str, config: RegistryConfig
) -> None:
    wrong = RegistryConfig(token="n0t-that")  # type: ignore[arg-type]
    with serving(RegistryDouble(login=login)) as double:
        double.register("orders-value", record("Order", "id"))
        with client_of(double, config) as client:
            assert len(capture_registry(client).versions) == 1
        with client_of(double, wrong) as client, pytest.raises(AccessDeniedError) as refused:
            capture_registry(client)
    told = f"{refused.value} {refused.value.as_dict()} {wrong!r} {config!r} {wrong.model_dump_json()}"
    assert "n0t-that" not in told
    assert "s3cret" not in told


def test_a_registry_that_wants_a_certificate_gets_one(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    write_certificates(folder, ["alice"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    context.load_verify_locations(folder / CA_FILE)
    context.verify_mode = ssl.CERT_REQUIRED
    # As TLS 1.3 tells a client only at its first read that its certificate is missing.
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    trusting = TlsConfig(ca_file=folder / CA_FILE)
    own = folder / f"{user_file_stem('alice')}.pem"
    mutual = TlsConfig(ca_file=folder / CA_FILE, certificate_file=own, key_file=own)
    with serving(tls=context) as double:
        double.register("orders-value", record("Order", "id"))
        with client_of(double, RegistryConfig(tls=mutual)) as client:
            assert len(capture_registry(client).versions) == 1
        with (
            client_of(double, RegistryConfig(tls=trusting), patience_s=0.3) as client,
            pytest.raises(UnavailableError),
        ):
            capture_registry(client)
        with client_of(double, RegistryConfig()) as client, pytest.raises(AccessDeniedError, match="not trusted"):
            capture_registry(client)


def test_the_next_url_is_asked_if_one_does_not_answer() -> None:
    (port,) = free_ports(1)
    with serving() as double:
        double.register("orders-value", record("Order", "id"))
        urls = [f"http://127.0.0.1:{port}", double.url]
        with RegistryClient(urls, RegistryConfig(), patience_s=60) as client:
            assert len(capture_registry(client).versions) == 1
    with (
        RegistryClient(urls[:1], RegistryConfig(), patience_s=0.3) as client,
        pytest.raises(UnavailableError, match="does not answer"),
    ):
        capture_registry(client)
