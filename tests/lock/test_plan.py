"""Everything that an archive needs is locked, and nothing that passes."""

from __future__ import annotations

from maxbrod.lock.plan import plan_locks
from maxbrod.storage.interface import ObjectInfo

ENTRY = "catalog/segments/_delta_log/00000000000000000007.json"


def test_what_is_needed_is_told_from_what_passes() -> None:
    needed = {"segments/a/b/0/1.log", "snapshots/run.json.zst", ENTRY, "ledger/1.parquet", "keys/one", "unheard/of"}
    others = {"segments/a/b/0/garbage.log", "probes/x", "replication/lease/1.json", f"{ENTRY}.old"}
    listed = [ObjectInfo(path=path, size=1, modified_ms=0, etag=None) for path in sorted(needed | others)]
    plan = plan_locks(listed, named={"segments/a/b/0/1.log", "snapshots/run.json.zst"}, catalog={ENTRY})
    assert {info.path for info in plan.needed} == needed
    assert {info.path for info in plan.others} == others
