"""The chart: rendered by helm without a cluster, validated against Kubernetes' schemas, and read by maxbrod itself."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml

from maxbrod.cli.main import command_line
from maxbrod.config import Config, load_config
from maxbrod.schedule.jobs import read_jobs

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/maxbrod"
HELM = shutil.which("helm") or shutil.which("helm", path=ROOT / ".tools")
EVERYTHING = {
    "kafka": {"secretName": "brokers", "strimzi": {"caSecretName": "kafka-cluster-ca-cert", "clientSecretName": "me"}},
    "storage": {"secretName": "store"},
    "messages": {"secretName": "hooks"},
    "serve": {"enabled": True, "tlsSecretName": "page"},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "cronJobs": {"drill": {"schedule": "0 4 * * 0", "timeZone": "Europe/Berlin", "args": ["drill", "--quiet"]}},
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "backup", "operator": "Exists"}],
    "extraVolumes": [{"name": "archive", "persistentVolumeClaim": {"claimName": "archive"}}],
    "extraVolumeMounts": [{"name": "archive", "mountPath": "/backups"}],
}

pytestmark = pytest.mark.skipif(HELM is None, reason="helm is not installed: see scripts/install-test-tools")


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(HELM), *words], capture_output=True, text=True, check=False)


def rendered(folder: Path, **values: Any) -> list[dict[str, Any]]:
    file = folder / "values.json"
    file.write_text(json.dumps(values))
    words = ("--kube-version", "1.31", "--namespace", "backups", "--values", str(file))
    ran = helm("template", "nightly", str(CHART), *words)
    assert ran.returncode == 0, ran.stderr
    return [document for document in yaml.safe_load_all(ran.stdout) if document is not None]


def containers(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    specs = [manifest["spec"] for manifest in manifests if manifest["kind"] in {"Deployment", "CronJob"}]
    specs = [spec.get("jobTemplate", {}).get("spec", spec)["template"]["spec"] for spec in specs]
    return [container | {"volumes": spec["volumes"]} for spec in specs for container in spec["containers"]]


def file_of(manifests: list[dict[str, Any]]) -> str:
    (text,) = (manifest["data"]["maxbrod.yaml"] for manifest in manifests if manifest["kind"] == "ConfigMap")
    return str(text)


def test_helm_finds_nothing_wrong() -> None:
    assert helm("lint", "--strict", str(CHART)).returncode == 0


@pytest.mark.parametrize("values", [{}, EVERYTHING, {"run": {"enabled": False}}], ids=["defaults", "all", "none"])
def test_kubernetes_accepts_what_the_chart_renders(values: dict[str, Any], tmp_path: Path) -> None:
    manifests = rendered(tmp_path, **values)
    assert manifests
    for manifest in manifests:
        assert manifest["metadata"]["namespace"] == "backups"
        if manifest["kind"] != "ServiceMonitor":  # of the operator of Prometheus
            kubernetes_validate.validate(manifest, "1.31", strict=True)


def test_by_default_one_pod_runs_the_jobs_and_nothing_else_is_there(tmp_path: Path) -> None:
    kinds = sorted(manifest["kind"] for manifest in rendered(tmp_path))
    assert kinds == ["ConfigMap", "Deployment", "Service", "ServiceAccount"]


def test_the_configuration_that_is_mounted_is_one_that_maxbrod_takes(tmp_path: Path) -> None:
    config = Config.model_validate(yaml.safe_load(file_of(rendered(tmp_path))))
    assert {job.name for job in read_jobs(config)} == {"backup", "check", "compact"}


def test_strimzis_secrets_are_mounted_and_used_by_name(tmp_path: Path) -> None:
    manifests = rendered(tmp_path, **EVERYTHING)
    (tmp_path / "maxbrod.yaml").write_text(file_of(manifests))
    kafka = load_config(tmp_path / "maxbrod.yaml").cluster
    assert kafka.security_protocol == "SSL"
    files = {str(path) for path in (kafka.tls.ca_file, kafka.tls.certificate_file, kafka.tls.key_file)}
    for container in containers(manifests):
        items = {
            volume["name"]: (volume["secret"]["secretName"], [item["path"] for item in volume["secret"]["items"]])
            for volume in container["volumes"]
            if "items" in volume.get("secret", {})
        }
        assert {secret for secret, _ in items.values()} == {"kafka-cluster-ca-cert", "me"}
        mounted = {
            f"{mount['mountPath']}/{path}"
            for mount in container["volumeMounts"]
            for path in items.get(mount["name"], ("", []))[1]
        }
        assert mounted == files


def test_a_protocol_of_the_values_is_kept_and_only_the_given_secret_is_mounted(tmp_path: Path) -> None:
    sasl = {"mechanism": "SCRAM-SHA-512", "username": "me", "password": "${KAFKA_PASSWORD}"}
    values = {
        "config": {"kafka": {"bootstrap": "b:1", "security_protocol": "SASL_SSL", "sasl": sasl}},
        "kafka": {"strimzi": {"caSecretName": "ca"}},
    }
    kafka = yaml.safe_load(file_of(rendered(tmp_path, **values)))["kafka"]
    assert (kafka["security_protocol"], list(kafka["tls"])) == ("SASL_SSL", ["ca_file"])


def test_secrets_of_brokers_store_and_messages_are_apart_and_none_is_in_the_configuration(tmp_path: Path) -> None:
    manifests = rendered(tmp_path, **EVERYTHING)
    assert not any(manifest["kind"] == "Secret" for manifest in manifests)
    for container in containers(manifests):
        assert [source["secretRef"]["name"] for source in container["envFrom"]] == ["brokers", "store", "hooks"]


def test_commands_are_ones_that_maxbrod_takes(tmp_path: Path) -> None:
    commands = typer.main.get_command(command_line()).commands  # type: ignore[attr-defined]
    tried = 0
    for container in containers(rendered(tmp_path, **EVERYTHING)):
        verb, *words = container["args"]
        commands[verb].make_context(verb, list(words))
        tried += 1
        assert "--config=/etc/maxbrod/maxbrod.yaml" in words
    assert tried == 3


def test_pods_have_no_more_rights_than_they_need(tmp_path: Path) -> None:
    for container in containers(rendered(tmp_path, **EVERYTHING)):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"/tmp", "/cache"} <= {mount["mountPath"] for mount in container["volumeMounts"]}


def test_probes_and_monitor_ask_the_port_that_answers(tmp_path: Path) -> None:
    manifests = rendered(tmp_path, **EVERYTHING)
    run = next(container for container in containers(manifests) if container["args"][0] == "run")
    probes = {
        run[probe]["httpGet"]["path"]: run[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")
    }
    assert probes == {"/healthz": "metrics", "/readyz": "metrics"}
    monitor = next(manifest for manifest in manifests if manifest["kind"] == "ServiceMonitor")
    services = [manifest for manifest in manifests if manifest["kind"] == "Service"]
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    (found,) = (service for service in services if wanted <= service["metadata"]["labels"].items())
    assert monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in found["spec"]["ports"]}
    # A job that fails makes the pod not ready: what says so must be scraped all the same.
    assert found["spec"]["publishNotReadyAddresses"]


def test_another_configuration_starts_the_pod_again(tmp_path: Path) -> None:
    def checksum(**values: Any) -> str:
        run = next(item for item in rendered(tmp_path, **values) if item["kind"] == "Deployment")
        return str(run["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    assert checksum() != checksum(config={"archive": "s3://other"})
