"""The schema registry of a restore: planned with the topics, brought back before the first record is written.

All changes of the registry are idempotent, and what it was like before is stored in the restore's state first. So the
same command again does the rest, and sets back what a killed attempt has left in IMPORT mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from maxbrod.batch.schema_ids import SchemaIdMap
from maxbrod.registry.capture import capture_registry
from maxbrod.registry.client import RegistryClient
from maxbrod.registry.model import RegistryState
from maxbrod.registry.plan import ImportPlan, plan_import
from maxbrod.registry.remap import encode_mapped, map_for
from maxbrod.registry.restoration import import_registry, map_registry
from maxbrod.registry.stored import RegistryCapture, capture_in, read_stored
from maxbrod.restore.plan.obstacles import Obstacle, ObstacleKind
from maxbrod.restore.plan.plan import SchemasPlan
from maxbrod.restore.state import keep_registry, read_schema_map, store_schema_map

if TYPE_CHECKING:
    from maxbrod.archive.snapshots import Moment
    from maxbrod.config import Config
    from maxbrod.restore.plan.request import RestoreRequest
    from maxbrod.storage.interface import Storage

_CAPTURE: Final = "back up with --schema-registry first, or restore the topic _schemas"
_CONFLICT: Final = "restore into an empty registry, or say --remap-schemas, which gives the schemas other ids"


class SchemaRestore:
    """The registry that a request names, and the captured one in an archive."""

    def __init__(self, config: Config, request: RestoreRequest, storage: Storage) -> None:
        self._config, self._request, self._storage = config, request, storage

    def plan(self, moment: Moment) -> tuple[SchemasPlan | None, tuple[Obstacle, ...]]:
        """What will be brought back, and what stands in the way. Changes nothing."""
        url = self._request.schema_registry
        if url is None:
            return None, ()
        capture = capture_in(moment.snapshot)
        if capture is None:
            what = "no schema registry was captured" + ("" if moment.as_of is None else f" up to run {moment.as_of}")
            return None, (Obstacle(ObstacleKind.SCHEMAS, url, what, _CAPTURE),)
        archived = read_stored(self._storage, capture.path).state
        with self._client(url) as client:
            target = capture_registry(client, also=archived.scopes)
        found = plan_import(archived, target)
        remap = self._request.remap_schemas
        planned = SchemasPlan(
            url=url,
            captured=capture.path,
            captured_run=capture.run_id,
            remap=remap,
            versions=len(archived.versions) + len(archived.lost),
            present=found.present,
        )
        return planned, tuple(_obstacles(url, found, capture, moment, remap=remap))

    def apply(self, plan: SchemasPlan | None, restore_id: str) -> SchemasPlan | None:
        """Bring the schemas back. Returns the plan with what was done. RefusedError: nothing else was changed."""
        if plan is None:
            return None
        archived = read_stored(self._storage, plan.captured).state

        def remember(before: Mapping[str, Any]) -> Mapping[str, Any]:
            return keep_registry(self._storage, restore_id, before)

        with self._client(plan.url) as client:
            if not plan.remap:
                done = import_registry(client, archived, remember)
                return replace(plan, registered=len(done.register), left_out=done.left_out)
            document = self._map(client, archived, remember, restore_id)
        return replace(plan, registered=int(document["registered"]))

    def _map(self, client: RegistryClient, archived: RegistryState, remember: Any, restore_id: str) -> dict[str, Any]:  # noqa: ANN401 - a function
        """The map of ids: found once for all attempts, with what the user says now about frames."""
        words = {"framed": list(self._request.framed), "unframed": list(self._request.unframed)}
        known = read_schema_map(self._storage, restore_id)
        if known is None:
            document = encode_mapped(map_registry(client, archived, remember), archived, **words)
        else:
            document = {**known, **words}
        if document != known:
            store_schema_map(self._storage, restore_id, document)
        return document

    def map_for(self, plan: SchemasPlan | None, restore_id: str, topic: str) -> SchemaIdMap | None:
        """The map for the records of a topic of the archive; None: its records stay as they are."""
        if plan is None or not plan.remap:
            return None
        document = read_schema_map(self._storage, restore_id)
        return None if document is None else map_for(document, topic)

    def _client(self, url: str) -> RegistryClient:
        return RegistryClient(url.split(","), self._config.registry, patience_s=self._config.patience)


def _obstacles(
    url: str, found: ImportPlan, capture: RegistryCapture, moment: Moment, *, remap: bool
) -> Iterator[Obstacle]:
    if not remap:
        for conflict in found.conflicts:
            yield Obstacle(ObstacleKind.SCHEMAS, conflict.where, conflict.what, _CONFLICT)
        for words in found.left_out:
            yield Obstacle(ObstacleKind.SCHEMAS, url, f"not restored: {words}", None, fatal=False)
    run = moment.run
    if run is not None and capture.run_id != run.run_id and moment.as_of is not None:
        what = f"the registry was last captured by run {capture.run_id}"
        yield Obstacle(ObstacleKind.SCHEMAS, url, what, None, fatal=False)
