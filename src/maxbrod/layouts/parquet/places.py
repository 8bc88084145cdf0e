"""Where new segments go: the folder and region that the archive has already, or those that are wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maxbrod.errors import UsageError
from maxbrod.layouts.parquet.names import PREFIX, REGION, STREAMING, SegmentName, check_topic, region_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maxbrod.layouts.foreign import Survey
    from maxbrod.model import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPlace:
    """One level of one partition."""

    folder: str
    region: str
    where: TopicPartition
    level: int = STREAMING

    def name(self, start: int, end: int) -> SegmentName:
        return SegmentName(folder=self.folder, where=self.where, level=self.level, start=start, end=end)


def place_of(where: TopicPartition, wanted: str | None, survey: Survey) -> SegmentPlace:
    """UsageError: the wanted region is not that of the partition's records, or no region follows from anything."""
    check_topic(where.topic)
    folders: Mapping[str, str] = survey.details.get("regions", {})
    region = _region(where, wanted, survey, tuple(folders))
    return SegmentPlace(folder=_folder(region, folders), region=region, where=where)


def _region(where: TopicPartition, wanted: str | None, survey: Survey, regions: tuple[str, ...]) -> str:
    own = next((segment for segment in survey.segments if segment.where == where), None)
    if own is not None:
        region = str(own.details["region"])
        if wanted not in {None, region}:
            raise UsageError(
                f"{where} is in the archive already, of region {region}",
                object_name=own.path,
                hint=f"say --layout-option region={region}, or write into another archive",
            )
        return region
    if wanted is None and len(regions) > 1:
        raise UsageError(
            f"the archive has the regions {', '.join(regions)}",
            hint="say which one is written to by --layout-option region=NAME",
        )
    return wanted or next(iter(regions), REGION)


def _folder(region: str, folders: Mapping[str, str]) -> str:
    if region in folders:
        return folders[region]
    if "" in folders.values():
        raise UsageError(
            f"the storage is the folder of another region than {region}", hint="open the folder above the regions"
        )
    prefixes = {folder.rpartition("/")[0] for folder in folders.values()} or {PREFIX}
    prefix = prefixes.pop()
    name = region_folder(region).rpartition("/")[2]
    return f"{prefix}/{name}" if prefix else name
