"""The README and the tutorial run as they are written, every command and every Python block, on one cluster."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.cli.main import run
from maxbrod.sandbox.cluster import Cluster
from maxbrod.sandbox.topics import create_topic, delete_topic
from maxbrod.sandbox.traffic import numbered, produce, read_as_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.full

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)
TARGET = re.compile(r"^([a-z-]+):", re.MULTILINE)


class Page:
    """A page whose names of places are replaced by real ones."""

    def __init__(self, path: Path, replaced: dict[str, str]) -> None:
        text = path.read_text()
        for old, new in replaced.items():
            assert old in text
            text = text.replace(old, new)
        self.blocks = BLOCK.findall(text)

    def carry_out(self, *, before: Callable[[str], None] = lambda _: None) -> None:
        names: dict[str, Any] = {}
        for kind, text in self.blocks:
            for part in text.split("\n\n") if kind == "python" else commands(text):
                before(part)
                if kind == "python":
                    exec(compile(part, "<page>", "exec"), names)
                else:
                    carry_out(part)


def commands(text: str) -> list[str]:
    return [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]


def carry_out(line: str) -> None:
    words = shlex.split(os.path.expandvars(line), comments=True)
    if words[0] == "make":
        assert words[1] in TARGET.findall((ROOT / "Makefile").read_text())
    elif words[0] == "maxbrod":
        assert run(words[1:]) == 0, line
    elif words[0] == "export":
        name = words[1].partition("=")[0]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        shell = ["bash", "-c", f'{line} && printf %s "${name}"']
        ran = subprocess.run(shell, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True)
        os.environ[name] = ran.stdout
    else:
        assert words[0] == "rm", line
        subprocess.run(words, check=True)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a page exports, and the file that it writes into the current folder, end with its test."""
    monkeypatch.setenv("BROKER", "")
    monkeypatch.chdir(tmp_path)
    # As in a user's shell: other tests must find no file, and this one finds what `maxbrod init` has written.
    monkeypatch.delenv("MAXBROD_CONFIG", raising=False)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "box"
    yield folder
    if folder.exists():
        Cluster.attach(folder).dismantle()


def test_the_tutorial_and_the_readme_do_what_they_say(spark: Any, box: Path, tmp_path: Path, environment: None) -> None:
    places = {"/tmp/box": str(box), "/tmp/archive": str(tmp_path / "archive")}
    tutorial = Page(ROOT / "docs" / "tutorial.md", places)
    the_end = f"sandbox down --dir {box}"
    readme: list[Page] = []

    def between(part: str) -> None:
        # The README is about a cluster that is there already: the tutorial's, before it is taken down.
        if the_end in part:
            cluster = Cluster.attach(box)
            place = {"broker1:9092": cluster.bootstrap, "s3://backups/kafka": str(tmp_path / "backups")}
            readme.append(Page(ROOT / "README.md", place))
            readme[0].carry_out(before=lambda each: lose_before_restore(cluster, each))

    tutorial.carry_out(before=between)
    assert len(readme) == 1
    assert not box.exists()


def lose_before_restore(cluster: Cluster, part: str) -> None:
    """The topics that the README is about exist before its backups, and are gone before its restores."""
    if part.startswith("import maxbrod"):
        create_topic(cluster, "orders-eu")
        produce(cluster, "orders-eu", numbered(100))
        read_as_group(cluster, "billing", {"orders-eu": 10})
    elif "restore(" in part:
        delete_topic(cluster, "orders-eu")
    elif part.startswith("maxbrod restore") and "--dry-run" in part:
        delete_topic(cluster, "orders")
