"""What to bring back into a registry, and what stands in the way. Pure: two states in, a plan out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from maxbrod import strict_json
from maxbrod.layouts.internal_topics import DEFAULT_CONTEXT, SchemaReference
from maxbrod.registry.model import COMPATIBILITY, GLOBAL, IMPORT, READWRITE, RegistryState, SubjectVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaConflict:
    """A captured version that cannot come back as it was, and why."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportPlan:
    """The versions that a target lacks, each after those that it refers to, and the settings to make."""

    register: tuple[SubjectVersion, ...]
    present: int
    """Captured versions that the target has already, with the same id."""
    conflicts: tuple[SchemaConflict, ...] = ()
    """Each prevents the import."""
    left_out: tuple[str, ...] = ()
    """What cannot come back, and prevents nothing."""
    modes: Mapping[str, str] = field(default_factory=dict)
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings to make at the end, by subject or context."""


def plan_import(archived: RegistryState, target: RegistryState) -> ImportPlan:
    """Bring all captured versions back with their ids. Versions that were lost come back soft-deleted."""
    by_id: dict[tuple[str, int], SubjectVersion] = {}
    for version in target.versions.values():
        by_id.setdefault((version.context, version.id), version)
    missing: dict[tuple[str, int], SubjectVersion] = {}
    conflicts: list[SchemaConflict] = []
    left_out: list[str] = []
    present = 0
    for version in archived.known:
        there, same_id = target.versions.get(version.place), by_id.get((version.context, version.id))
        if there is not None and there.id == version.id and is_same(version, there):
            present += 1
        elif version.lost_since is not None and (version.place in archived.versions or there is not None):
            left_out.append(f"{version}, id {version.id}: it was deleted for good, and another has its number now")
        elif there is not None:
            conflicts.append(_taken(version, there))
        elif same_id is not None and not is_same(version, same_id):
            conflicts.append(_other_schema(version, same_id))
        else:
            missing[version.place] = replace(version, deleted=version.deleted or version.lost_since is not None)
    register, broken = in_reference_order(missing.values(), {**target.versions, **archived.versions})
    modes, configs, more = _settings(archived, target)
    return ImportPlan(
        register=tuple(register),
        present=present,
        conflicts=(*conflicts, *broken),
        left_out=(*left_out, *more),
        modes=modes,
        configs=configs,
    )


def _taken(version: SubjectVersion, there: SubjectVersion) -> SchemaConflict:
    what = "another schema" if there.id == version.id else f"id {there.id}, not {version.id},"
    return SchemaConflict(where=str(version), what=f"the target has {what} under this version")


def _other_schema(version: SubjectVersion, same_id: SubjectVersion) -> SchemaConflict:
    return SchemaConflict(where=str(version), what=f"the target has another schema under id {version.id}: {same_id}")


def is_same(one: SubjectVersion, other: SubjectVersion) -> bool:
    """True if both are the same schema. Registries store the same JSON with other blanks."""
    same = one.schema_type == other.schema_type and one.references == other.references
    return same and one.details == other.details and _normal(one) == _normal(other)


def _normal(version: SubjectVersion) -> Any:  # noqa: ANN401 - JSON, or words
    try:
        return strict_json.parse(version.schema.encode(), wide=True)
    except ValueError:
        return version.schema.split()


def in_reference_order(
    versions: Iterable[SubjectVersion], known: Mapping[tuple[str, int], SubjectVersion]
) -> tuple[list[SubjectVersion], list[SchemaConflict]]:
    """Each version after those that it refers to; and those that refer to something that nobody has.

    Versions of one subject stay in the order of their numbers, as far as references allow.
    """
    todo = {version.place: version for version in sorted(versions, key=lambda version: version.place)}
    ordered: dict[tuple[str, int], SubjectVersion] = {}
    conflicts: list[SchemaConflict] = []

    def visit(version: SubjectVersion, above: tuple[tuple[str, int], ...]) -> None:
        if version.place in ordered:
            return
        for reference in version.references:
            place = place_of(reference, version, {**known, **todo})
            if place is None or place in above:
                what = f"it refers to version {reference.version} of {reference.subject}, which was not captured"
                conflicts.append(SchemaConflict(where=str(version), what=what))
            elif place in todo:
                visit(todo[place], (*above, version.place))
        ordered[version.place] = version

    for version in todo.values():
        visit(version, ())
    return list(ordered.values()), conflicts


def place_of(
    reference: SchemaReference, version: SubjectVersion, known: Mapping[tuple[str, int], object]
) -> tuple[str, int] | None:
    """The version that a reference means: a subject without a context is one of the schema's own context."""
    names = [reference.subject]
    if version.context != DEFAULT_CONTEXT:
        names.insert(0, f":{version.context}:{reference.subject}")
    return next(((name, reference.version) for name in names if (name, reference.version) in known), None)


def _settings(
    archived: RegistryState, target: RegistryState
) -> tuple[dict[str, str], dict[str, Mapping[str, Any]], list[str]]:
    """Settings that the target lacks. Its own are kept, and those for all subjects if it has any subject."""
    notes: list[str] = []
    modes = {}
    for scope, mode in archived.modes.items():
        own = target.modes.get(scope)
        if own == mode or (own is None and mode == READWRITE and scope == GLOBAL):
            continue
        if scope == GLOBAL or own is not None or mode == IMPORT:
            notes.append(f"the mode {mode} of {scope or 'all subjects'}: the target keeps {own or READWRITE}")
        else:
            modes[scope] = mode
    configs = {}
    for scope, config in archived.configs.items():
        there = target.configs.get(scope)
        if there == config:
            continue
        if there is None or (scope == GLOBAL and not target.versions):
            configs[scope] = config
        else:
            notes.append(
                f"the compatibility {config.get(COMPATIBILITY)} of {scope or 'all subjects'}: the target keeps "
                f"{there.get(COMPATIBILITY)}"
            )
    return modes, configs, notes


def find_differences(
    archived: RegistryState, target: RegistryState, ids: Mapping[tuple[str, int], int] | None = None
) -> Iterator[SchemaConflict]:
    """Captured versions that a target does not have, or has otherwise. `ids` maps ids of contexts to the target's.

    Through a map only the schemas count: versions may have other numbers there.
    """
    if ids is None:
        for version in archived.versions.values():
            there = target.versions.get(version.place)
            if there is None:
                yield SchemaConflict(where=str(version), what="the target lacks it")
            elif there.id != version.id or not is_same(version, there):
                yield _taken(version, there)
            elif there.deleted != version.deleted:
                state = "soft-deleted" if there.deleted else "not soft-deleted"
                yield SchemaConflict(where=str(version), what=f"it is {state} in the target")
        return
    by_id: dict[tuple[str, int], list[SubjectVersion]] = {}
    for version in target.versions.values():
        by_id.setdefault((version.context, version.id), []).append(version)
    for version in archived.versions.values():
        new = ids.get((version.context, version.id))
        found = by_id.get((version.context, -1 if new is None else new), ())
        if new is None or not found:
            yield SchemaConflict(where=str(version), what=f"id {version.id} is not mapped to a schema of the target")
        elif not any(_normal(version) == _normal(there) for there in found):
            yield SchemaConflict(where=str(version), what=f"id {new} of the target is another schema")
