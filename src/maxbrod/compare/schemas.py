"""Compares the captured schemas of an archive with a registry: by their ids, or as a restore has mapped them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.archive.snapshots import find_moment
from maxbrod.compare.report import SchemaComparison
from maxbrod.errors import UsageError
from maxbrod.registry.capture import capture_registry
from maxbrod.registry.client import RegistryClient
from maxbrod.registry.plan import find_differences
from maxbrod.registry.remap import decode_mapped
from maxbrod.registry.stored import capture_in, read_stored
from maxbrod.restore.state import finished_restores, read_restore, read_schema_map

if TYPE_CHECKING:
    from maxbrod.archive.archive import Archive
    from maxbrod.compare.plan import CompareRequest
    from maxbrod.config import Config
    from maxbrod.registry.remap import MappedSchemas

_SHOWN_MAX: Final = 10


def compare_schemas(archive: Archive | None, config: Config, request: CompareRequest) -> SchemaComparison | None:
    """None: no registry is named. UsageError: there is no captured one to compare it with."""
    url = request.schema_registry
    if url is None:
        return None
    if archive is None:
        raise UsageError("schemas are compared with an archive", hint="leave out --schema-registry, or give --archive")
    moment = find_moment(archive.storage, archive.catalog.runs(), request.selection.as_of, needed=True)
    capture = capture_in(moment.snapshot)
    if capture is None:
        raise UsageError("the archive has no captured registry to compare with", hint="back up with --schema-registry")
    archived = read_stored(archive.storage, capture.path).state
    with RegistryClient(url.split(","), config.registry, patience_s=config.patience) as client:
        target = capture_registry(client)
    restore_id, mapped = _map_of(archive, url)
    found = list(find_differences(archived, target, None if mapped is None else mapped.ids))
    return SchemaComparison(
        url=url,
        captured_run=capture.run_id,
        versions=len(archived.versions),
        mapped_by=restore_id,
        different=len(found),
        differences=tuple(map(str, found[:_SHOWN_MAX])),
    )


def _map_of(archive: Archive, url: str) -> tuple[str | None, MappedSchemas | None]:
    """The newest restore that gave the schemas of this registry other ids, and its map."""
    found: tuple[int, str] | None = None
    for restore_id in finished_restores(archive.storage):
        plan, report = read_restore(archive.storage, restore_id)
        if plan.schemas is not None and plan.schemas.remap and plan.schemas.url == url:
            found = max(found or (0, ""), (int(report["finished_at_ms"]), restore_id))
    document = None if found is None else read_schema_map(archive.storage, found[1])
    return (None, None) if found is None or document is None else (found[1], decode_mapped(document))
