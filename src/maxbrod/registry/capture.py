"""Captures the state of a schema registry over HTTP.

`GET /schemas` lists versions with their texts, which saves a request for each. Which versions there are, and which are
soft-deleted, the lists of each subject say: Karapace leaves deleted versions out of all schemas if they are asked for,
and lists them if they are not; registries before contexts list the default one only; others have no such list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, TypeVar

from maxbrod.errors import CorruptDataError
from maxbrod.layouts.internal_topics import AVRO, DEFAULT_CONTEXT
from maxbrod.registry.client import RegistryClient
from maxbrod.registry.model import GLOBAL, RegistryState, SubjectVersion, decode_references

Value = TypeVar("Value")
_READERS: Final = 8
_PAGE: Final = 1000
_EVERYWHERE: Final = ":*:"
"""The prefix of subjects in all contexts. Registries without contexts ignore it."""
_DETAILS: Final = ("metadata", "ruleSet")


def capture_registry(client: RegistryClient, *, also: Iterable[str] = ()) -> RegistryState:
    """The state of the registry. MaxbrodError: it does not answer, or this user may not read all of it.

    `also`: subjects and contexts whose settings are asked for, although the registry may have no version of them.
    """
    contexts = client.find("contexts") or [DEFAULT_CONTEXT]
    versions = _versions(client)
    subjects = sorted({subject for subject, _ in versions})
    named = {f":{context}:" for context in contexts if context != DEFAULT_CONTEXT}
    scopes = sorted({*subjects, *named, *also} - {GLOBAL})
    return RegistryState(
        versions=versions,
        modes=_modes(client, subjects, scopes),
        configs=_configs(client, scopes),
        contexts=tuple(map(str, contexts)),
    )


def _versions(client: RegistryClient) -> dict[tuple[str, int], SubjectVersion]:
    listed = {**_listed(client, deleted="true"), **_listed(client, deleted="false")}
    named = _texts(client.get("subjects", deleted="true", subjectPrefix=_EVERYWHERE))
    subjects = sorted({*named, *(subject for subject, _ in listed)})
    found = _each(subjects, lambda subject: _of_subject(client, subject, listed))
    return {version.place: version for versions in found for version in versions}


def _listed(client: RegistryClient, *, deleted: str) -> dict[tuple[str, int], SubjectVersion]:
    """The versions that the registry lists, page by page; none if it has no such list."""
    found: dict[tuple[str, int], SubjectVersion] = {}
    offset = 0
    while True:
        page = client.find("schemas", deleted=deleted, subjectPrefix=_EVERYWHERE, offset=offset, limit=_PAGE)
        new = [version for version in map(version_of, page or ()) if version.place not in found]
        if not new:
            return found  # the end; or a registry without pages, which answers the same again
        found |= {version.place: version for version in new}
        offset += len(page)


def _of_subject(
    client: RegistryClient, subject: str, listed: Mapping[tuple[str, int], SubjectVersion]
) -> list[SubjectVersion]:
    """All versions of a subject. Those that the list of all schemas lacks are asked for one by one."""
    every = _numbers(client.find("subjects", subject, "versions", deleted="true"))
    live = _numbers(client.find("subjects", subject, "versions"))  # not found if all are deleted
    found = []
    for number in sorted(every | live):
        version = listed.get((subject, number))
        if version is None:
            fields = client.find("subjects", subject, "versions", str(number), deleted="true")
            version = None if fields is None else version_of(fields)
        if version is not None:  # else deleted for good meanwhile
            found.append(replace(version, deleted=number not in live))
    return found


def _numbers(found: Any) -> set[int]:  # noqa: ANN401 - JSON
    if found is not None and not (isinstance(found, list) and all(isinstance(number, int) for number in found)):
        raise CorruptDataError("the schema registry does not list the versions of a subject", hint="check the URL")
    return set(found or ())


def version_of(fields: Mapping[str, Any]) -> SubjectVersion:
    """A version as the registry's JSON has it. CorruptDataError: it is none."""
    try:
        identity, number = fields["id"], fields["version"]
        if not isinstance(identity, int) or not isinstance(number, int):
            raise TypeError("id or version is no number")
        return SubjectVersion(
            subject=str(fields["subject"]),
            version=number,
            id=identity,
            schema=str(fields["schema"]),
            schema_type=str(fields.get("schemaType") or AVRO),
            references=decode_references(fields.get("references") or ()),
            guid=fields.get("guid"),
            details={name: fields[name] for name in _DETAILS if fields.get(name)},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptDataError(
            f"the schema registry lists something that is no version of a subject: {error!r}"
        ) from error


def _modes(client: RegistryClient, subjects: Iterable[str], scopes: Iterable[str]) -> dict[str, str]:
    """The mode of everything, and of each subject or context that has one of its own."""
    whole = client.find("mode")
    found = {} if whole is None else {GLOBAL: str(whole["mode"])}
    answers = dict(_each(scopes, lambda scope: (scope, client.find("mode", scope))))
    own = {scope: str(answer["mode"]) for scope, answer in answers.items() if answer is not None}
    # A registry without modes of subjects answers for each with that of everything.
    if all(own.get(subject) == found.get(GLOBAL) for subject in subjects):
        own = {scope: mode for scope, mode in own.items() if mode != found.get(GLOBAL)}
    return {**found, **own}


def _configs(client: RegistryClient, scopes: Iterable[str]) -> dict[str, dict[str, Any]]:
    whole = client.find("config")
    found = {} if whole is None else {GLOBAL: dict(whole)}
    answers = _each(scopes, lambda scope: (scope, client.find("config", scope)))
    return {**found, **{scope: dict(answer) for scope, answer in answers if answer is not None}}


def _each(values: Iterable[str], ask: Callable[[str], Value]) -> list[Value]:
    with ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(ask, values))


def _texts(found: Any) -> list[str]:  # noqa: ANN401 - JSON
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise CorruptDataError("the schema registry does not list subjects", hint="check the URL")
    return found
