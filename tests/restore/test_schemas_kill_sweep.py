"""A restore of schemas that is killed anywhere is finished by the same command: no subject stays in IMPORT mode."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.config import Config
from maxbrod.registry.client import RegistryClient
from maxbrod.registry.stored import store
from maxbrod.restore.plan.plan import SchemasPlan
from maxbrod.restore.plan.request import RestoreRequest
from maxbrod.restore.schemas import SchemaRestore
from maxbrod.restore.state import read_schema_map
from maxbrod.storage.local import LocalStorage
from support.kill_sweeps import POINTS, LastingFate, sweep
from support.registries import RegistryDouble, serving
from support.registry_states import captured, filled

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from maxbrod.registry.model import RegistryState

RESTORE = "0123456789abcdef"


class Changing(RegistryClient):
    """Has the requests that change a registry as a point of their own."""

    def ask(self, method: str, *path: str, **more: Any) -> Any:
        looks = method == "GET" or (method == "POST" and path[-1] != "versions")
        return super().ask(method, *path, **more) if looks else self.change(method, *path, **more)

    def change(self, method: str, *path: str, **more: Any) -> Any:
        return super().ask(method, *path, **more)


class Place:
    """An archive that has captured a registry, and another registry, which is empty."""

    def __init__(self, folder: Path, archived: RegistryState, target: RegistryDouble, *, remap: bool) -> None:
        self.target = target
        target.versions.clear()
        target.modes = {"": "READWRITE"}
        target.configs = {"": {"compatibilityLevel": "FULL"}}
        self.storage = LocalStorage(folder)
        stored = store(self.storage, "run", archived, None)
        self._plan = SchemasPlan(
            url=target.url, captured=stored.path, captured_run="run", remap=remap, versions=7, present=0
        )
        request = RestoreRequest(schema_registry=target.url, remap_schemas=remap)
        self._restore = SchemaRestore(Config(), request, self.storage)

    def restore(self) -> None:
        self._restore.apply(self._plan, RESTORE)

    def outcome(self) -> list[Any]:
        """All that a restore leaves, but for what its last attempt has counted."""
        document = read_schema_map(self.storage, RESTORE) or {}
        mapped = {name: document[name] for name in document if name not in {"registered", "present"}}
        return [self.target.listing(), dict(self.target.modes), dict(self.target.configs), mapped]


@pytest.mark.parametrize("remap", [False, True])
def test_schemas_come_back_whole_wherever_their_restore_was_killed(
    remap: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("maxbrod.restore.schemas"), "RegistryClient", Changing)
    with serving(filled()) as source:
        archived = captured(source)
    outcomes: list[list[Any]] = []
    with serving(RegistryDouble(first_id=70_000 if remap else 1)) as target:
        killed: list[Place] = []

        def finish() -> None:
            """The same command again."""
            for place in killed:
                place.restore()
                outcomes.append(place.outcome())
            killed.clear()

        def make(point: int) -> Callable[[], None]:
            finish()
            killed.append(Place(tmp_path / str(point), archived, target, remap=remap))
            return killed[-1].restore

        met = sweep(make, monkeypatch, points=(*POINTS, (Changing, "change")), fated=LastingFate)
        finish()
        whole = Place(tmp_path / "whole", archived, target, remap=remap)
        whole.restore()
        expected = whole.outcome()
        if not remap:
            assert captured(target) == archived
    assert [outcome for outcome in outcomes if outcome != expected] == []
    assert len(outcomes) == len(met) + 1
    assert {"before commit", "after commit", "before change", "after change"} <= set(met)
