"""The state of a schema registry: subjects, versions, ids, references, modes and compatibility, and its JSON.

Pure: no client. Values are sorted, so that two captures of the same registry are equal, and so is their JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from maxbrod.errors import CorruptDataError
from maxbrod.layouts.internal_topics import (
    AVRO,
    DEFAULT_CONTEXT,
    RegisteredSchema,
    SchemaReference,
    SchemasTopic,
    context_of,
)

GLOBAL: Final = ""
"""The scope of settings that hold for all subjects."""
READWRITE: Final = "READWRITE"
IMPORT: Final = "IMPORT"
COMPATIBILITY: Final = "compatibilityLevel"
"""The name of the level in what a registry answers; in requests it is `compatibility`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectVersion:
    """One version of a subject, as the registry has it."""

    subject: str
    version: int
    id: int
    """Unique within a context, which is a prefix of the subject."""
    schema: str
    schema_type: str = AVRO
    references: tuple[SchemaReference, ...] = ()
    deleted: bool = False
    """True: it is soft-deleted. Records that were written with it can still be read."""
    guid: str | None = None
    """Derived from the content, so it is the same in all registries that know it."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """`metadata` and `ruleSet`, as the registry's JSON has them."""
    lost_since: str | None = None
    """The run that last saw it: it was deleted for good, and the archive may have records that were written with it."""

    @property
    def place(self) -> tuple[str, int]:
        return self.subject, self.version

    @property
    def context(self) -> str:
        return context_of(self.subject)

    @property
    def content(self) -> tuple[Any, ...]:
        """What two versions have in common if they are the same schema."""
        return self.schema_type, self.schema, self.references, _frozen(self.details)

    def __str__(self) -> str:
        return f"{self.subject} version {self.version}"


def _frozen(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, Mapping):
        return tuple(sorted((name, _frozen(found)) for name, found in value.items()))
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryState:
    """All that a registry has. Settings are those of a subject, of a context (`:.name:`) or, under "", of all."""

    versions: Mapping[tuple[str, int], SubjectVersion] = field(default_factory=dict)
    """By subject and version."""
    lost: tuple[SubjectVersion, ...] = ()
    """Versions that earlier runs have seen and the registry has deleted for good."""
    modes: Mapping[str, str] = field(default_factory=dict)
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Compatibility, and what else the registry's JSON has beside it."""
    contexts: tuple[str, ...] = (DEFAULT_CONTEXT,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "versions", dict(sorted(self.versions.items())))
        object.__setattr__(
            self, "lost", tuple(sorted(self.lost, key=lambda lost: (lost.subject, lost.version, lost.id)))
        )
        object.__setattr__(self, "modes", dict(sorted(self.modes.items())))
        object.__setattr__(self, "configs", dict(sorted(self.configs.items())))
        object.__setattr__(self, "contexts", tuple(sorted(self.contexts)))

    @property
    def subjects(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(subject for subject, _ in self.versions))

    @property
    def scopes(self) -> tuple[str, ...]:
        """All subjects, lost ones too, and everything else that has settings."""
        return tuple(sorted({*self.modes, *self.configs, *(version.subject for version in self.known)}))

    @property
    def known(self) -> tuple[SubjectVersion, ...]:
        """All versions, and those that were lost."""
        return (*self.versions.values(), *self.lost)

    def as_topic(self) -> SchemasTopic:
        """The same in the form of the topic `_schemas`, for decoding. A lost version counts as deleted."""
        versions = {version.place: _registered(version) for version in self.versions.values()}
        for lost in self.lost:
            # Another version may have its number by now, and its id is still needed.
            place = (lost.subject, -lost.id) if lost.place in versions else lost.place
            versions[place] = _registered(lost)
        return SchemasTopic(versions=versions)


def _registered(version: SubjectVersion) -> RegisteredSchema:
    return RegisteredSchema(
        subject=version.subject,
        version=version.version,
        id=version.id,
        schema=version.schema,
        schema_type=version.schema_type,
        references=version.references,
        deleted=version.deleted or version.lost_since is not None,
    )


def keep_lost(before: RegistryState | None, now: RegistryState, *, run_id: str) -> RegistryState:
    """The new state, with the versions that only the state before has. `run_id` is the run that saw them last.

    Another version may have the number of a lost one by now: a subject that was deleted for good counts from 1 again.
    """
    if before is None:
        return now
    there = {(version.place, version.id) for version in now.versions.values()}
    gone = [
        version if version.lost_since is not None else replace(version, lost_since=run_id)
        for version in before.known
        if (version.place, version.id) not in there
    ]
    return replace(now, lost=tuple(gone))


# JSON


def encode_registry(state: RegistryState) -> dict[str, Any]:
    """Plain JSON. Versions are listed by subject and number, so that a change has a short path."""
    subjects: dict[str, dict[str, Any]] = {}
    for version in state.versions.values():
        subjects.setdefault(version.subject, {})[str(version.version)] = _encode_version(version)
    return {
        "subjects": subjects,
        "lost": [
            {"subject": lost.subject, "version": lost.version, "run_id": lost.lost_since, **_encode_version(lost)}
            for lost in state.lost
        ],
        "modes": dict(state.modes),
        "configs": {subject: dict(config) for subject, config in state.configs.items()},
        "contexts": list(state.contexts),
    }


def _encode_version(version: SubjectVersion) -> dict[str, Any]:
    return {
        "id": version.id,
        "schema": version.schema,
        **({} if version.schema_type == AVRO else {"type": version.schema_type}),
        **({"references": encode_references(version.references)} if version.references else {}),
        **({"deleted": True} if version.deleted else {}),
        **({"guid": version.guid} if version.guid else {}),
        **({"details": dict(version.details)} if version.details else {}),
    }


def encode_references(references: Iterable[SchemaReference]) -> list[dict[str, Any]]:
    """As the registry's JSON has them."""
    return [
        {"name": reference.name, "subject": reference.subject, "version": reference.version} for reference in references
    ]


def decode_references(listed: Sequence[Mapping[str, Any]]) -> tuple[SchemaReference, ...]:
    return tuple(
        SchemaReference(name=one["name"], subject=one["subject"], version=int(one["version"])) for one in listed
    )


def decode_registry(document: Mapping[str, Any]) -> RegistryState:
    """The inverse of `encode_registry`. CorruptDataError: it is none. Unknown keys are ignored."""
    try:
        versions = [
            _decode_version(subject, int(number), fields)
            for subject, numbers in document["subjects"].items()
            for number, fields in numbers.items()
        ]
        return RegistryState(
            versions={version.place: version for version in versions},
            lost=tuple(
                replace(_decode_version(one["subject"], one["version"], one), lost_since=str(one["run_id"]))
                for one in document["lost"]
            ),
            modes={subject: str(mode) for subject, mode in document["modes"].items()},
            configs={subject: dict(config) for subject, config in document["configs"].items()},
            contexts=tuple(map(str, document["contexts"])),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptDataError(f"the state of a schema registry cannot be read: {error!r}") from error


def _decode_version(subject: str, number: int, fields: Mapping[str, Any]) -> SubjectVersion:
    identity, text = fields["id"], fields["schema"]
    if not isinstance(identity, int) or isinstance(identity, bool) or not isinstance(text, str):
        raise TypeError(f"{subject} version {number}: id or schema")
    return SubjectVersion(
        subject=str(subject),
        version=number,
        id=identity,
        schema=text,
        schema_type=str(fields.get("type", AVRO)),
        references=decode_references(fields.get("references", ())),
        deleted=bool(fields.get("deleted", False)),
        guid=fields.get("guid"),
        details=dict(fields.get("details", {})),
    )
