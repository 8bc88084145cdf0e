"""The files in deploy/ fit what the code exports and accepts."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml
from prometheus_client import generate_latest

from maxbrod.backup.metrics import BackupMetrics
from maxbrod.cli.main import command_line
from maxbrod.cli.metrics import FIGURES, RunMetrics
from maxbrod.config import Config
from maxbrod.replicate.metrics import IngressMetrics
from maxbrod.schedule.health import JobsCollector, registry_of

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus/maxbrod-alerts.yaml"
DASHBOARD = DEPLOY / "grafana/maxbrod.json"
MANIFESTS: list[dict[str, Any]] = [
    document
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]
UNITS = sorted((DEPLOY / "systemd").glob("*"))
TOOLS = Path(__file__).parents[2] / ".tools"
PROMTOOL = shutil.which("promtool") or shutil.which("promtool", path=TOOLS)
NAME = re.compile(r"\bmaxbrod_\w+")


def exported() -> set[str]:
    registries = [
        BackupMetrics().registry,
        IngressMetrics().registry,
        registry_of(JobsCollector(lambda: ({}, False, (0, 0, 0)))),
        *(RunMetrics(verb, "/a").registry for verb in FIGURES),
    ]
    texts = [generate_latest(each).decode() for each in registries]
    kinds = {name: kind for text in texts for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)}
    buckets = {f"{name}_{part}" for name, kind in kinds.items() for part in ("bucket", "sum") if kind == "histogram"}
    return set(kinds) | buckets


@pytest.mark.parametrize(
    "path", [RULES, DEPLOY / "prometheus/maxbrod-alerts.test.yaml", DASHBOARD], ids=lambda each: each.name
)
def test_every_metric_that_is_named_is_exported(path: Path) -> None:
    named = set(NAME.findall(path.read_text()))
    assert len(named) >= 8
    assert named - exported() == set()


def test_every_alert_is_tested() -> None:
    alerts = {rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
    tests = yaml.safe_load((DEPLOY / "prometheus/maxbrod-alerts.test.yaml").read_text())["tests"]
    fired = {each["alertname"] for test in tests for each in test["alert_rule_test"] if each["exp_alerts"]}
    assert alerts == fired


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: see scripts/install-test-tools")
def test_promtool_accepts_the_rules_and_their_tests() -> None:
    for words in (["check", "rules", RULES.name], ["test", "rules", "maxbrod-alerts.test.yaml"]):
        ran = subprocess.run([str(PROMTOOL), *words], cwd=RULES.parent, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_panel_of_the_dashboard_has_a_title_a_query_and_a_place_of_its_own() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    cells = [
        (x, y)
        for each in panels
        for place in [each["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert all(x < 24 for x, _ in cells)
    assert all(each["title"] and each["targets"] and each["fieldConfig"]["defaults"]["unit"] for each in panels)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda each: each["kind"])
def test_kubernetes_accepts_the_manifests(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, "1.31", strict=True)


def containers() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for manifest in MANIFESTS:
        spec = manifest.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        found += spec.get("template", {}).get("spec", {}).get("containers", [])
    return found


def started() -> list[list[str]]:
    lines = [line for unit in UNITS for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
    return [shlex.split(line.removeprefix("ExecStart="))[1:] for line in lines]


@pytest.mark.parametrize("words", [*(each["args"] for each in containers()), *started()], ids=lambda each: each[0])
def test_the_commands_of_units_and_manifests_are_ones_that_maxbrod_takes(words: list[str]) -> None:
    verb = typer.main.get_command(command_line()).commands[words[0]]  # type: ignore[attr-defined]
    verb.make_context(words[0], list(words[1:]))
    assert "--config" in " ".join(words)


def test_there_are_commands_to_try() -> None:
    assert (len(containers()), len(started())) == (2, 4)


def test_the_configuration_of_the_manifests_is_valid() -> None:
    (text,) = (each["data"]["maxbrod.yaml"] for each in MANIFESTS if each["kind"] == "ConfigMap")
    assert Config.model_validate(yaml.safe_load(text)).log.format == "json"


def test_what_the_image_writes_to_is_mounted_where_the_root_file_system_is_read_only() -> None:
    image = (DEPLOY.parent / "Containerfile").read_text()
    written = {"/tmp", *re.findall(r"MAXBROD_CACHE=(/\w+)/maxbrod", image)}
    for container in containers():
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert written <= {each["mountPath"] for each in container["volumeMounts"]}


def test_probes_ask_the_paths_that_answer() -> None:
    text = (DEPLOY / "kubernetes/follow.yaml").read_text()
    assert {"/healthz", "/readyz", "/metrics"} <= set(re.findall(r"path: (/\w+)", text))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for unit in UNITS:
        # The program is not installed here, and systemd wants it to exist.
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/maxbrod/bin/maxbrod", "/bin/true"))
    ran = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / unit.name) for unit in UNITS)],
        capture_output=True,
        text=True,
        check=False,
    )
    ours = [line for line in ran.stderr.splitlines() if "maxbrod" in line]
    assert ours == []


@pytest.mark.parametrize("name", ["maxbrod-follow.service", "maxbrod-run.service"])
def test_a_service_that_goes_on_is_watched(name: str) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "systemd" / name)
    assert unit["Service"]["Type"] == "notify"
    assert "WatchdogSec" in unit["Service"]
