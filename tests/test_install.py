"""What users install: the wheel in a clean environment, its manual page, completion, components and container file."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.main import get_command

from catalog.examples import TOPIC_ID, segment
from maxbrod import __version__
from maxbrod.cli.main import app
from maxbrod.cli.manual import manual_page
from maxbrod.model import PartitionId
from support.archives import commit_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from support.archives import Place

pytestmark = pytest.mark.full

ROOT = Path(__file__).parent.parent
UV = str(ROOT / "scripts" / "uv")
BASE = ("--locked", "--no-dev", "--no-group", "docs")
VERBS = list(get_command(app).commands)  # type: ignore[attr-defined]


def uv(*arguments: str, **variables: str) -> None:
    """Without network where the cache has everything, as after `make setup`."""
    environment = {**os.environ, "UV_PYTHON_DOWNLOADS": "never", "UV_LINK_MODE": "symlink", **variables}
    environment.pop("VIRTUAL_ENV", None)
    for offline in (["--offline"], []):
        command = [UV, *arguments, "--quiet", *offline]
        ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if ran.returncode == 0:
            return
    pytest.fail(ran.stderr)


def said(command: Sequence[str | Path], **variables: str) -> str:
    clean = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
    ran = subprocess.run(
        command, cwd="/", env={**clean, **variables}, capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--wheel", "--out-dir", str(folder))
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def maxbrod(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command in an environment with the wheel and what it depends on, and nothing else."""
    folder = tmp_path_factory.mktemp("clean") / "environment"
    python = str(folder / "bin" / "python")
    uv("sync", *BASE, "--no-install-project", "--python", sys.executable, UV_PROJECT_ENVIRONMENT=str(folder))
    uv("pip", "install", "--no-deps", "--python", python, str(wheel))
    uv("pip", "check", "--python", python)
    return folder / "bin" / "maxbrod"


def test_the_wheel_has_types_and_a_manual_page_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
    assert "maxbrod/py.typed" in names
    assert any(name.endswith("share/man/man1/maxbrod.1") for name in names)
    assert [name for name in names if "test" in Path(name).name and name.endswith(".py")] == []


def test_the_wheel_works_in_a_clean_environment(maxbrod: Path, local_place: Place) -> None:
    ends = {PartitionId(topic_id=TOPIC_ID, partition=0): 5}
    commit_run(local_place.create(), "run-1", [segment(0, 5)], topics={TOPIC_ID: "orders"}, ends=ends)
    assert said([maxbrod, "--version"]) == f"maxbrod {__version__}\n"
    assert "backup" in said([maxbrod, "--help"])
    listed = json.loads(said([maxbrod, "ls", "--archive", local_place.url, "--json"]))
    assert [topic["topic"] for topic in listed["topics"]] == ["orders"]
    python = maxbrod.with_name("python")
    assert "No module named 'pytest'" in said([python, "-c", "try:\n import pytest\nexcept ImportError as e: print(e)"])
    assert (maxbrod.parent.parent / "share" / "man" / "man1" / "maxbrod.1").is_file()


COMPLETIONS: Mapping[str, dict[str, str]] = {
    "bash": {"COMP_WORDS": "maxbrod re", "COMP_CWORD": "1"},
    "zsh": {"_TYPER_COMPLETE_ARGS": "maxbrod re"},
    "fish": {"_TYPER_COMPLETE_ARGS": "maxbrod re", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
}


@pytest.mark.parametrize("shell", COMPLETIONS)
def test_a_shell_completes_verbs(shell: str) -> None:
    command = [str(Path(sys.executable).with_name("maxbrod"))]
    script = said(command, _MAXBROD_COMPLETE=f"source_{shell}")
    assert "_MAXBROD_COMPLETE" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)
    offered = said(command, _MAXBROD_COMPLETE=f"complete_{shell}", **COMPLETIONS[shell])
    assert {"restore", "repair"} <= set(re.findall(r"[a-z]+", offered))
    assert "backup" not in offered.split()


def test_the_manual_page_has_every_command_and_troff_understands_it() -> None:
    page = manual_page()
    assert [verb for verb in VERBS if f".SS maxbrod {verb}" not in page] == []
    if shutil.which("man"):
        command = ["man", "-l", "--warnings", str(ROOT / "docs" / "reference" / "maxbrod.1")]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        assert ran.stderr == ""


def test_the_list_of_components_names_every_dependency_with_its_version(tmp_path: Path) -> None:
    target = tmp_path / "sbom.json"
    uv("export", *BASE, "--all-extras", "--format", "cyclonedx1.5", "-o", str(target))
    document = json.loads(target.read_text())
    assert document["bomFormat"] == "CycloneDX"
    found = {each["name"]: each["version"] for each in document["components"]}
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    locked = {each["name"]: each["version"] for each in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    names = [re.match(r"[\w-]+", each)[0] for each in wanted]  # type: ignore[index]
    assert {name: found.get(name) for name in names} == {name: locked[name] for name in names}
    assert "pytest" not in found


def test_the_container_file_keeps_its_rules() -> None:
    path = ROOT / "Containerfile"
    linted = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), path], capture_output=True, text=True, check=False
    )
    assert linted.returncode == 0, linted.stdout
    last_stage = path.read_text().rpartition("\nFROM ")[2]
    lines = [line.split(maxsplit=1) for line in last_stage.replace("\\\n", " ").splitlines() if line.strip()]
    instructions = {line[0]: line[1] for line in lines[1:] if len(line) > 1}
    assert instructions["USER"].isdigit()
    assert int(instructions["USER"]) > 0
    assert instructions["ENTRYPOINT"] == '["maxbrod"]'
    assert "9464" in instructions["HEALTHCHECK"]
    # A read-only root: all that is written goes to folders that a user mounts.
    assert "MAXBROD_CACHE=/cache" in instructions["ENV"]
    assert "--require-hashes" in path.read_text()
