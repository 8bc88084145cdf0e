"""Azurite in a box: installed once, started with keys of its own, and gone without a trace."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import obstore
import psutil
import pytest
from obstore.store import AzureStore

from maxbrod.errors import EnvironmentMissingError
from maxbrod.sandbox import programs
from maxbrod.sandbox.azure import AzureServer

if TYPE_CHECKING:
    from pathlib import Path


def test_a_server_of_another_process_is_found_again_its_key_shows_nowhere_and_nothing_stays(tmp_path: Path) -> None:
    server = AzureServer.start(tmp_path / "azure", detached=True)
    with server:
        again = AzureServer.attach(tmp_path / "azure")
        store = AzureStore(**again.store_options())
        obstore.put(store, "a", b"bytes")
        assert bytes(obstore.get(store, "a").bytes()) == b"bytes"
        commands = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
        ours = [command for command in commands if str(server.objects_dir) in command]
        assert ours
        for text in (*ours, repr(server), server.output.read_text()):
            assert server.secret_key not in text
    assert not server.alive
    assert list(tmp_path.iterdir()) == []


def test_a_machine_without_node_or_pip_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in (("node", "echo v16.20.0"), ("uv", "echo no index >&2; exit 1")):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("MAXBROD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(programs, "_installer", lambda _: [str(folder / "uv")])
    with pytest.raises(EnvironmentMissingError) as raised:
        AzureServer.start(tmp_path / "azure")
    assert "install Node.js 18" in str(raised.value.hint)
    assert "no index" in str(raised.value.hint)
    assert not (tmp_path / "azure").exists()
