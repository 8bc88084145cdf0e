"""Brings a captured registry back: with the same ids in IMPORT mode, or under ids that the target gives.

Modes and compatibility that have to change meanwhile are remembered before the first change (`Remember`), and set back
at the end, after a failure too; a killed restore does it when it is resumed. The registry is read again at the end:
what it says then counts, not its answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from maxbrod.errors import MaxbrodError, RefusedError
from maxbrod.layouts.internal_topics import AVRO
from maxbrod.registry.capture import capture_registry, version_of
from maxbrod.registry.client import RegistryClient
from maxbrod.registry.model import COMPATIBILITY, GLOBAL, IMPORT, RegistryState, SubjectVersion, encode_references
from maxbrod.registry.plan import ImportPlan, find_differences, in_reference_order, place_of, plan_import
from maxbrod.registry.remap import MappedSchemas

_OPERATION: Final = "restore schemas"
_ALREADY_DELETED: Final = frozenset({40401, 40402, 40406})
"""Error codes for a subject or a version that is soft-deleted already."""

Remember: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Stores what the target was like before, and returns what was stored first: a resumed restore gets that."""


def import_registry(client: RegistryClient, archived: RegistryState, remember: Remember) -> ImportPlan:
    """Register what the target lacks with its own ids and versions. Returns what was planned.

    RefusedError: the target has other schemas under these ids or versions, or cannot import. Nothing has changed then.
    """
    target = capture_registry(client, also=archived.scopes)
    plan = plan_import(archived, target)
    for conflict in plan.conflicts:
        raise RefusedError(
            f"the schemas cannot be restored with their ids: {conflict.what}, and {len(plan.conflicts) - 1} more"
            if len(plan.conflicts) > 1
            else f"the schemas cannot be restored with their ids: {conflict.what}",
            operation=_OPERATION,
            object_name=conflict.where,
            hint="restore into an empty registry, or say --remap-schemas, which gives them other ids",
        )
    subjects = sorted({version.subject for version in plan.register})
    before = remember(
        {
            "modes": {subject: target.modes.get(subject) for subject in subjects},
            "missing": [list(version.place) for version in plan.register],
            # A resumed import cannot plan these again: subjects have versions by then, and may be in IMPORT mode.
            "settings": {
                "modes": dict(plan.modes),
                "configs": {scope: dict(config) for scope, config in plan.configs.items()},
                "left_out": list(plan.left_out),
            },
        }
    )
    settings = before.get("settings")
    if settings is not None:  # an import that an earlier release began has none
        plan = replace(plan, modes=settings["modes"], configs=settings["configs"], left_out=tuple(settings["left_out"]))
    missing = {(subject, number) for subject, number in before["missing"]}
    gone = [
        version
        for version in archived.known
        if (version.deleted or version.lost_since is not None) and version.place in missing
    ]
    with _importing(client, before["modes"], {*subjects, *(version.subject for version in gone)}):
        for version in plan.register:
            _register(client, version)
        _soft_delete(client, gone, archived)
    _set(client, plan.modes, plan.configs)
    for difference in find_differences(archived, capture_registry(client)):
        raise RefusedError(
            f"the target does not have the schemas as they were captured: {difference.what}",
            operation=_OPERATION,
            object_name=difference.where,
            hint="see 'maxbrod compare --schema-registry'; somebody else may have changed it meanwhile",
        )
    return plan


@contextmanager
def _importing(client: RegistryClient, modes: Mapping[str, str | None], subjects: Iterable[str]) -> Iterator[None]:
    """Subjects in IMPORT mode. At the end, and after any failure, all `modes` are as they were."""
    changed = list(modes)
    try:
        for subject in sorted(subjects):
            # Without `force` a registry deletes for good what is soft-deleted under the subject.
            answer = client.ask("PUT", "mode", subject, body={"mode": IMPORT}, query={"force": "true"})
            if not answer.fine:
                raise RefusedError(
                    f"the registry cannot import schemas with their ids: {answer.code} {answer.message}",
                    operation=_OPERATION,
                    object_name=client.url,
                    hint="it must allow changes of modes (Confluent: mode.mutability=true; Karapace cannot); or say "
                    "--remap-schemas",
                )
        yield
    finally:
        _set_back(client, {subject: modes[subject] for subject in changed})


def _set_back(client: RegistryClient, modes: Mapping[str, str | None]) -> None:
    """Give every subject the mode that it had. A failure about one does not keep the others from theirs."""
    failures: list[str] = []
    for subject, mode in modes.items():
        try:
            if mode is None:
                answer = client.ask("DELETE", "mode", subject)
                # Registries without this request, and older ones, have no way back to "none of its own".
                if answer.status in {HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}:
                    whole = client.get("mode")
                    answer = client.ask("PUT", "mode", subject, body={"mode": whole["mode"]})
            else:
                answer = client.ask("PUT", "mode", subject, body={"mode": mode}, query={"force": "true"})
            if not answer.fine and not answer.absent:
                failures.append(f"{subject} ({answer.code} {answer.message})")
        except MaxbrodError as error:
            failures.append(f"{subject} ({error.message})")
    if failures:
        raise RefusedError(
            f"the mode of {failures[0]} could not be set back, and {len(failures) - 1} more",
            operation=_OPERATION,
            object_name=client.url,
            hint="run the same command again, which sets it back; producers cannot register schemas until then",
        )


def _register(client: RegistryClient, version: SubjectVersion) -> None:
    body = {**_body(version), "id": version.id, "version": version.version}
    answer = client.send("POST", "subjects", version.subject, "versions", body=body)
    if not isinstance(answer, dict) or answer.get("id") != version.id:
        raise RefusedError(
            f"the registry gave another id than {version.id}: {answer!r:.100}",
            operation=_OPERATION,
            object_name=str(version),
            hint="it does not import ids; say --remap-schemas",
        )


def _body(version: SubjectVersion) -> dict[str, Any]:
    return {
        "schema": version.schema,
        # Left out where it is the default: older registries do not know the field.
        **({} if version.schema_type == AVRO else {"schemaType": version.schema_type}),
        **({"references": encode_references(version.references)} if version.references else {}),
        **version.details,
    }


def _soft_delete(client: RegistryClient, versions: Sequence[SubjectVersion], archived: RegistryState) -> None:
    """After all registrations: a version that is registered later with the same id would take a deleted one's place."""
    ordered, _ = in_reference_order(versions, archived.versions)
    for version in reversed(ordered):  # what refers to others first
        answer = client.ask("DELETE", "subjects", version.subject, "versions", str(version.version))
        if not answer.fine and answer.code not in _ALREADY_DELETED:
            raise RefusedError(
                f"the registry refuses to soft-delete it: {answer.code} {answer.message}",
                operation=_OPERATION,
                object_name=str(version),
            )


def _set(client: RegistryClient, modes: Mapping[str, str], configs: Mapping[str, Mapping[str, Any]]) -> None:
    for scope, config in configs.items():
        body = {"compatibility" if name == COMPATIBILITY else name: value for name, value in config.items()}
        client.send("PUT", "config", *([] if scope == GLOBAL else [scope]), body=body)
    for scope, mode in modes.items():
        client.send("PUT", "mode", scope, body={"mode": mode})


# Scratch registries


def delete_imported(client: RegistryClient, archived: RegistryState, before: RegistryState) -> None:
    """Delete what `import_registry` has registered in a registry that had no versions, for good.

    RefusedError: it still has versions then.
    """
    found = capture_registry(client, also=archived.scopes)
    imported = {version.place for version in archived.known}
    # A subject that is READONLY does not let its versions be deleted.
    changed = {scope for scope, mode in found.modes.items() if before.modes.get(scope) != mode} - {GLOBAL}
    _set_back(client, {scope: before.modes.get(scope) for scope in changed})
    mine = [version for place, version in found.versions.items() if place in imported]
    ordered, _ = in_reference_order(mine, found.versions)
    _soft_delete(client, ordered, found)
    for version in reversed(ordered):  # what refers to others first
        path = "subjects", version.subject, "versions", str(version.version)
        client.ask("DELETE", *path, query={"permanent": "true"})
    _set(client, {}, {scope: own for scope, own in before.configs.items() if found.configs.get(scope) != own})
    for scope in set(found.configs) - set(before.configs):
        client.ask("DELETE", "config", scope)
    for version in capture_registry(client).versions.values():
        raise RefusedError(
            "a schema could not be deleted from the scratch registry",
            operation=_OPERATION,
            object_name=str(version),
            hint="delete it by hand: soft first, then with permanent=true",
        )


# Other ids


def map_registry(client: RegistryClient, archived: RegistryState, remember: Remember) -> MappedSchemas:
    """Find every captured schema in the target under its subject, or register it there. Returns the ids that it has.

    RefusedError: the target refuses a schema, such as one that is not compatible with what it has of the subject.
    """
    target = capture_registry(client, also=archived.scopes)
    before = remember(
        {"subjects": list(target.subjects), "configs": {scope: dict(own) for scope, own in target.configs.items()}}
    )
    fresh = sorted({version.subject for version in archived.known} - set(before["subjects"]))
    ordered, conflicts = in_reference_order(_numbered(archived), {})
    for conflict in conflicts:
        raise RefusedError(conflict.what, operation=_OPERATION, object_name=conflict.where)
    for subject in fresh:
        # Captured versions need not be compatible with each other: the level may have changed between them.
        client.send("PUT", "config", subject, body={"compatibility": "NONE"})
    try:
        found, registered = _map_all(client, ordered)
    finally:
        _set_configs_back(client, fresh, {**archived.configs, **before["configs"]})
    gone = [
        found[version.place]
        for version in ordered
        if version.subject in fresh and (version.deleted or version.lost_since is not None)
    ]
    live = {found[version.place].place for version in ordered if not version.deleted and version.lost_since is None}
    _soft_delete(client, [version for version in _unique(gone) if version.place not in live], archived)
    return MappedSchemas(
        ids={(version.context, version.id): found[version.place].id for version in ordered},
        guids={
            version.guid: str(found[version.place].guid)
            for version in ordered
            if version.guid is not None and found[version.place].guid is not None
        },
        registered=registered,
        present=len(ordered) - registered,
    )


def _numbered(archived: RegistryState) -> list[SubjectVersion]:
    """All captured versions, each at a place of its own: a lost one may have the number of another."""
    lost = [
        replace(version, version=-version.id) if version.place in archived.versions else version
        for version in archived.lost
    ]
    return [*archived.versions.values(), *lost]


def _unique(versions: Iterable[SubjectVersion]) -> list[SubjectVersion]:
    return list({version.place: version for version in versions}.values())


def _map_all(
    client: RegistryClient, ordered: Sequence[SubjectVersion]
) -> tuple[dict[tuple[str, int], SubjectVersion], int]:
    """The target's version of each captured one, by the captured place; and how many had to be registered."""
    found: dict[tuple[str, int], SubjectVersion] = {}
    registered = 0
    for version in ordered:
        references = []
        for reference in version.references:
            place = place_of(reference, version, found)
            meant = reference if place is None else replace(reference, version=found[place].version)
            references.append(meant)
        body = _body(replace(version, references=tuple(references)))
        there = _look_up(client, version, body)
        if there is None:
            answer = client.ask("POST", "subjects", version.subject, "versions", body=body)
            if not answer.fine:
                raise RefusedError(
                    f"the registry refuses this schema: {answer.code} {answer.message}",
                    operation=_OPERATION,
                    object_name=str(version),
                    hint="the target has other versions of this subject; restore into a registry without it, or "
                    "change its compatibility",
                )
            registered += 1
            there = _look_up(client, version, body)
        if there is None:
            raise RefusedError(
                "the registry does not find a schema that it has just registered",
                operation=_OPERATION,
                object_name=str(version),
            )
        found[version.place] = there
    return found, registered


def _look_up(client: RegistryClient, version: SubjectVersion, body: Mapping[str, Any]) -> SubjectVersion | None:
    answer = client.ask("POST", "subjects", version.subject, body=body, query={"deleted": "true"})
    if answer.absent:
        return None
    if not answer.fine:
        raise RefusedError(
            f"the registry does not accept this schema: {answer.code} {answer.message}",
            operation=_OPERATION,
            object_name=str(version),
        )
    return version_of({"schema": version.schema, **answer.body})


def _set_configs_back(
    client: RegistryClient, subjects: Iterable[str], configs: Mapping[str, Mapping[str, Any]]
) -> None:
    """Give new subjects the compatibility that the target had for them, or was captured, or none of their own."""
    for subject in subjects:
        config = configs.get(subject)
        if config is not None:
            _set(client, {}, {subject: config})
        else:
            answer = client.ask("DELETE", "config", subject)
            if not answer.fine and not answer.absent:
                raise RefusedError(
                    f"the compatibility of {subject} could not be set back: {answer.code} {answer.message}",
                    operation=_OPERATION,
                    object_name=client.url,
                    hint="run the same command again",
                )
