"""Proofs of an archive: its last checks and drills, kept as small objects in the archive.

A check or a drill leaves `proofs/<time>-<kind>-<nonce>.json`, so that `maxbrod status` can say on any machine when the
archive was last read or restored. Nothing else depends on these objects. Recording needs the right to write; without it
a check still works, and says that it was not recorded.
"""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError

from maxbrod.errors import MaxbrodError, ObjectNotFoundError

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage

PROOFS: Final = "proofs"
"""The folder of these objects."""
KEPT: Final = 20
"""The proofs of each kind that are kept: enough for a trend."""


class ProofKind(StrEnum):
    QUICK_CHECK = "check"
    DEEP_CHECK = "deep-check"
    DRILL = "drill"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """One check of the whole archive, or one drill."""

    __pydantic_config__ = ConfigDict(strict=False, extra="ignore")

    kind: ProofKind
    verdict: str
    sound: bool
    """True if it found nothing wrong."""
    started_at_ms: int
    finished_at_ms: int
    details: dict[str, Any] = field(default_factory=dict)
    """The extent of the check: the share of the archive, the records, how long the parts took."""


_DOCUMENT: Final = TypeAdapter(Proof)


def record_proof(storage: Storage, proof: Proof) -> str | None:
    """Keep a proof, and only the newest of its kind. Returns why it could not be kept; None if it was."""
    name = f"{PROOFS}/{proof.finished_at_ms:013d}-{proof.kind}-{uuid.uuid4().hex[:8]}.json"
    try:
        storage.put(name, json.dumps(asdict(proof), sort_keys=True).encode())
    except MaxbrodError as error:
        return error.message
    # One too many is no harm: the next proof deletes it.
    with suppress(MaxbrodError):
        mine = sorted(info.path for info in storage.list(PROOFS) if f"-{proof.kind}-" in info.path)
        if len(mine) > KEPT:
            storage.delete(mine[:-KEPT])
    return None


def read_proofs(storage: Storage) -> list[Proof]:
    """The proofs that are kept, oldest first. An unreadable one proves nothing."""
    found = []
    for info in sorted(storage.list(PROOFS), key=lambda listed: listed.path):
        with suppress(ValidationError, ObjectNotFoundError):
            found.append(_DOCUMENT.validate_json(bytes(storage.get(info.path))))
    return found


def last_proof(proofs: list[Proof], kind: ProofKind) -> Proof | None:
    return max((proof for proof in proofs if proof.kind is kind), key=lambda proof: proof.finished_at_ms, default=None)
