"""Schemas come back with their ids, or under other ids, and modes are as they were afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from maxbrod.errors import MaxbrodError, RefusedError
from maxbrod.registry.model import RegistryState, keep_lost
from maxbrod.registry.plan import plan_import
from maxbrod.registry.restoration import delete_imported, import_registry, map_registry
from support.registries import RegistryDouble, record, serving
from support.registry_states import captured, client_of, filled


class Remembered:
    """The state of a restore, in memory: what is stored first stays."""

    def __init__(self) -> None:
        self.kept: Mapping[str, Any] | None = None

    def __call__(self, before: Mapping[str, Any]) -> Mapping[str, Any]:
        self.kept = before if self.kept is None else self.kept
        return self.kept


@pytest.fixture
def archived() -> RegistryState:
    with serving(filled()) as source:
        return captured(source)


@pytest.fixture
def target() -> Iterator[RegistryDouble]:
    with serving() as double:
        yield double


def test_an_import_brings_back_ids_versions_references_settings_and_what_is_soft_deleted(
    archived: RegistryState, target: RegistryDouble
) -> None:
    with client_of(target) as client:
        import_registry(client, archived, Remembered())
    assert captured(target) == archived


def test_an_import_into_a_scratch_registry_is_deleted_without_a_trace(
    archived: RegistryState, target: RegistryDouble
) -> None:
    before, settings = captured(target), (dict(target.modes), dict(target.configs))
    with client_of(target) as client:
        import_registry(client, archived, Remembered())
        delete_imported(client, archived, before)
    assert not target.versions
    assert (target.modes, target.configs) == settings
    # What somebody else has registered meanwhile is not deleted, and said.
    target.register("theirs", record("Theirs", "id"))
    with client_of(target) as client, pytest.raises(RefusedError, match="could not be deleted") as told:
        delete_imported(client, archived, before)
    assert told.value.object_name == "theirs version 1"


def test_an_import_again_changes_nothing(archived: RegistryState, target: RegistryDouble) -> None:
    with client_of(target) as client:
        import_registry(client, archived, Remembered())
        del target.requests[:]
        done = import_registry(client, archived, Remembered())
    assert not done.register
    assert {method for method, _ in target.requests} == {"GET"}


def test_another_schema_under_one_of_the_ids_refuses_the_import_before_anything_changes(
    archived: RegistryState, target: RegistryDouble
) -> None:
    target.register("mine-value", record("Mine", "id"))
    before = target.listing()
    with (
        client_of(target) as client,
        pytest.raises(RefusedError, match="another schema under id 1: mine-value") as told,
    ):
        import_registry(client, archived, Remembered())
    assert "--remap-schemas" in (told.value.hint or "")
    assert target.listing() == before
    assert target.modes == {"": "READWRITE"}


def test_modes_are_set_back_after_a_failure_in_the_middle(archived: RegistryState, target: RegistryDouble) -> None:
    target.modes["orders-value"] = "READONLY"
    before = dict(target.modes)
    target.fail_after = 2
    remembered = Remembered()
    with client_of(target) as client:
        with pytest.raises(MaxbrodError, match="backend data store"):
            import_registry(client, archived, remembered)
        assert ("PUT", "/mode/orders-value") in target.requests, "it must have been in IMPORT mode"
        assert target.modes == before
        target.fail_after = None
        import_registry(client, archived, remembered)
    assert {**captured(target).modes, "frozen-value": "READONLY"} == {**before, "frozen-value": "READONLY"}
    assert target.listing() == {place: (version.id, version.deleted) for place, version in archived.versions.items()}


def test_a_killed_import_is_finished_and_set_back_by_the_next_attempt(
    archived: RegistryState, target: RegistryDouble
) -> None:
    """`kill -9` leaves subjects in IMPORT mode, and versions that should be soft-deleted alive."""
    remembered = Remembered()
    with client_of(target) as client:
        import_registry(client, archived, remembered)
        for subject in {subject for subject, _ in archived.versions}:
            target.modes[subject] = "IMPORT"
        target.versions["orders-value", 1]["deleted"] = False
        del target.versions[":.other:orders-value", 1]
        import_registry(client, archived, remembered)
    assert captured(target).modes == archived.modes
    assert captured(target).versions == archived.versions


def test_a_registry_that_cannot_import_refuses_and_names_the_other_way(
    archived: RegistryState, target: RegistryDouble
) -> None:
    target.imports = False
    with client_of(target) as client, pytest.raises(RefusedError, match="cannot import") as told:
        import_registry(client, archived, Remembered())
    assert "--remap-schemas" in (told.value.hint or "")
    assert not target.versions


def test_a_version_that_was_deleted_for_good_stays_archived_and_comes_back_soft_deleted(
    target: RegistryDouble,
) -> None:
    source = filled()
    with serving(source):
        before = captured(source)
        source.hard_delete("copies-value", 1)
        now = keep_lost(before, captured(source), run_id="run-1")
    assert [(lost.subject, lost.lost_since) for lost in now.lost] == [("copies-value", "run-1")]
    assert now.as_topic().versions["copies-value", 1].deleted
    with client_of(target) as client:
        import_registry(client, now, Remembered())
    assert target.listing()["copies-value", 1] == (before.versions["copies-value", 1].id, True)


def test_a_lost_version_whose_number_is_taken_is_named_and_prevents_nothing(target: RegistryDouble) -> None:
    source = RegistryDouble()
    with serving(source):
        source.register("orders-value", record("Order", "id"))
        before = captured(source)
        source.hard_delete("orders-value", 1)
        source.first_id = 7
        source.register("orders-value", record("Other", "id"))
        now = keep_lost(before, captured(source), run_id="run-1")
    planned = plan_import(now, captured(target))
    assert [version.id for version in planned.register] == [7]
    assert ["another has its number now" in words for words in planned.left_out] == [True]
    schemas = now.as_topic().by_id()
    assert {number: schema.schema for number, schema in schemas.items()} == {
        1: record("Order", "id"),
        7: record("Other", "id"),
    }


def test_a_schema_without_what_it_refers_to_is_refused(archived: RegistryState, target: RegistryDouble) -> None:
    torn = replace(archived, versions={place: one for place, one in archived.versions.items() if place[0] != "address"})
    with client_of(target) as client, pytest.raises(RefusedError, match="refers to version 1 of address"):
        import_registry(client, torn, Remembered())
    assert not target.versions


def test_mapped_schemas_get_ids_of_the_target_under_their_subjects(
    archived: RegistryState, target: RegistryDouble
) -> None:
    """Also where the target has other versions of referred subjects, so that references have other numbers."""
    target.first_id = 100
    target.register("address", record("Address", "city"))
    target.configs["address"] = {"compatibilityLevel": "NONE"}
    with client_of(target) as client:
        mapped = map_registry(client, archived, Remembered())
        again = map_registry(client, archived, Remembered())
    assert mapped.ids == again.ids
    assert again.registered == 0
    for version in archived.versions.values():
        new = mapped.ids[version.context, version.id]
        assert new >= 100
        found = [one for one in target.versions.values() if one["id"] == new and one["subject"] == version.subject]
        assert [one["schema"] for one in found] == [version.schema]
    references = [one["references"] for one in target.versions.values() if one.get("references")]
    assert references == [[{"name": "Address", "subject": "address", "version": 2}]]
    assert target.configs["orders-value"] == {"compatibilityLevel": "FULL"}
    assert "copies-value" not in target.configs, "the level that mapping needs is set back"
    assert target.versions["orders-value", 1]["deleted"]
    assert set(mapped.guids) == {version.guid for version in archived.versions.values()}


def test_a_schema_that_the_target_refuses_stops_the_mapping_by_name(
    archived: RegistryState, target: RegistryDouble
) -> None:
    target.register("proto-value", record("Note", "id"))
    target.register("orders-value", record("Order", "other"))
    with client_of(target) as client, pytest.raises(RefusedError, match="refuses this schema") as told:
        map_registry(client, archived, Remembered())
    assert told.value.object_name == "orders-value version 1"


def test_an_import_keeps_what_the_target_has_soft_deleted_under_the_same_subject(
    archived: RegistryState, target: RegistryDouble
) -> None:
    """A registry deletes it for good if it is not told to keep it."""
    target.modes["orders-value"] = "IMPORT"
    target.register("orders-value", record("Theirs", "id"), id=500, version=9)
    target.soft_delete("orders-value", 9)
    del target.modes["orders-value"]
    with client_of(target) as client:
        import_registry(client, archived, Remembered())
    assert target.listing()["orders-value", 9] == (500, True)
