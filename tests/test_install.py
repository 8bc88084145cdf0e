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

from maxbrod import __version__
from maxbrod.cli.main import command_line
from maxbrod.model import PartitionId
from maxbrod_reference.options import manual_page
from support.archives import Place, commit_run
from support.catalog_rows import TOPIC_ID, segment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


pytestmark = pytest.mark.full

ROOT = Path(__file__).parent.parent
UV = str(ROOT / "scripts" / "uv")
BASE = ("--locked", "--no-dev", "--no-group", "docs")
VERBS = list(get_command(command_line()).commands)  # type: ignore[attr-defined]


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
        command, cwd="/", env={**clean, **variables}, capture_output=True, text=True, check=False, timeout=240
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


def test_the_wheel_brings_the_pages_that_hints_name(maxbrod: Path) -> None:
    assert "s3:PutObject" in said([maxbrod, "help", "storage"])
    assert "howto/topic-is-gone" in said([maxbrod, "help"])


def test_a_tool_of_uv_runs_the_demo_from_start_to_end_and_leaves_nothing_behind(wheel: Path, tmp_path: Path) -> None:
    locked = tmp_path / "locked.txt"
    uv("export", *BASE, "--no-hashes", "--no-emit-project", "-o", str(locked))
    folders = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    uv("tool", "install", "--python", sys.executable, "--constraints", str(locked), str(wheel), **folders)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    kept = {name: value for name, value in os.environ.items() if name.startswith(("JAVA_", "MAXBROD_"))}
    command: list[str | Path] = [tmp_path / "bin" / "maxbrod", "demo", "--records", "5000", "--json"]
    document = json.loads(said(command, TMPDIR=str(temporary), **kept))

    assert document["complete"] is True
    topics = {each["topic"]: each for each in document["topics"]}
    assert {name: topic["records"] for name, topic in topics.items()} == {
        "orders": 3000,
        "clicks": 1500,
        "customers": 500,
        "payments": 600,
    }
    assert all(topic["identical"] and topic["acknowledged"] == topic["records"] for topic in topics.values())
    assert all(topic["restored"] == topic["records"] for topic in topics.values())
    assert document["run"]["complete"] is True
    assert document["comparison"]["equal"] is True
    group = {each["topic"]: each for each in document["group"]}
    assert {name: (each["before"], each["after"]) for name, each in group.items()} == {
        "customers": (250, 250),
        "payments": (300, 300),
    }
    assert all(each["exact"] for each in group.values())
    assert group["payments"]["went_on_at"] == 404, "behind a marker, and a transaction that was aborted"
    assert topics["clicks"]["without_key"] == 1500
    assert topics["customers"]["tombstones"] > 0
    assert topics["orders"]["with_headers"] == 1000
    assert (topics["payments"]["aborted"], topics["payments"]["markers"]) == (200, 8)
    assert list(temporary.iterdir()) == []


def test_the_wheel_has_types_and_a_manual_page_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
    assert "maxbrod/py.typed" in names
    assert any(name.endswith("share/man/man1/maxbrod.1") for name in names)
    assert [name for name in names if "test" in Path(name).name and name.endswith(".py")] == []
    assert [name for name in names if name.startswith(("maxbrod_bench", "maxbrod_reference"))] == []


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


COMPLETIONS: Mapping[str, tuple[dict[str, str], str]] = {
    "bash": (
        {"COMP_WORDS": "maxbrod re", "COMP_CWORD": "1"},
        "COMP_WORDS=(maxbrod re) COMP_CWORD=1; _maxbrod_completion maxbrod; echo ${COMPREPLY[@]}",
    ),
    # Without a terminal there is no completion system: its two functions are those that print.
    "zsh": (
        {"_TYPER_COMPLETE_ARGS": "maxbrod re"},
        "_arguments() { print -r -- $@ }; words=(maxbrod re) CURRENT=2; _maxbrod_completion",
    ),
    "fish": (
        {"_TYPER_COMPLETE_ARGS": "maxbrod re", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        "complete -C 'maxbrod re'",
    ),
}
"""What a shell tells typer, and the words that make the shell itself complete."""


@pytest.mark.parametrize("shell", COMPLETIONS)
def test_a_shell_completes_verbs(shell: str, tmp_path: Path) -> None:
    """By typer's protocol, and in the shell itself where this machine has it."""
    command = Path(sys.executable).with_name("maxbrod")
    script = said([command], _MAXBROD_COMPLETE=f"source_{shell}")
    assert "_MAXBROD_COMPLETE" in script
    variables, words = COMPLETIONS[shell]
    offers = [said([command], _MAXBROD_COMPLETE=f"complete_{shell}", **variables)]
    if found := shutil.which(shell):
        before = "compdef() { : }\n" if shell == "zsh" else ""
        path = f"{command.parent}:{os.environ['PATH']}"
        offers.append(said([found, "-c", f"{before}{script}\n{words}"], PATH=path, HOME=str(tmp_path)))
    for offered in offers:
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
