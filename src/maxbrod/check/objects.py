"""The objects in a quick check: every slice must lie within an object that exists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.catalog.schema import Kind
from maxbrod.check.problems import Problem, ProblemKind

if TYPE_CHECKING:
    from maxbrod.archive.opening import Archive


def check_objects(archive: Archive, rows: pa.Table, *, narrow: bool) -> tuple[int, list[Problem]]:
    """The number of objects that rows name, and the missing slices. Lists folders, not object by object.

    `narrow`: the rows are of a few topics, so only their folders are listed.
    """
    rows = rows.filter(pc.equal(rows["kind"], Kind.DATA))
    rows = rows.append_column("slice_end", pc.add(rows["position"], rows["bytes"]))
    ends = rows.group_by("path").aggregate([("slice_end", "max")]).to_pylist()
    needed = {each["path"]: each["slice_end_max"] for each in ends}
    folders = {_folder(path, narrow=narrow) for path in needed}
    sizes = {found.path: found.size for folder in sorted(folders) for found in archive.storage.list(folder)}
    bad = [path for path, end in needed.items() if sizes.get(path, -1) < end]
    slices = rows.filter(pc.is_in(rows["path"], value_set=pa.array(bad, pa.string()))).to_pylist()
    problems = [
        _problem(archive, row, sizes.get(row["path"]))
        for row in slices
        if row["slice_end"] > sizes.get(row["path"], -1)
    ]
    return len(needed), problems


def _folder(path: str, *, narrow: bool) -> str:
    parts = path.split("/")[:-1]
    return "/".join(parts[: 2 if narrow else 1])


def _problem(archive: Archive, row: dict[str, Any], size: int | None) -> Problem:
    end = row["slice_end"]
    return Problem(
        kind=ProblemKind.MISSING if size is None else ProblemKind.TRUNCATED,
        message="the object is not there" if size is None else f"the object has {size} bytes, the slice ends at {end}",
        topic=row["topic"],
        topic_id=row["topic_id"],
        partition=row["partition"],
        first_offset=row["base_offset"],
        end_offset=row["end_offset"],
        object_name=archive.storage.name_of(row["path"]),
        hint="restore it from a copy or an older object version"
        + ("; if something deleted it on purpose, such as a lifecycle rule: check --repair" if size is None else ""),
    )
