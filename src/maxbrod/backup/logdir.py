"""A backup of brokers' log directories: a conversion that reads each log once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.convert.run import ConvertRequest
from maxbrod.layouts.logdir.layout import CHECK_CRC

if TYPE_CHECKING:
    from maxbrod.archive.foreign_target import TargetRequest
    from maxbrod.config import StorageConfig


def logdir_request(
    directory: str,
    archive: str,
    storage: StorageConfig,
    to: TargetRequest,
    *,
    topics: tuple[str, ...] = (),
    uncommitted_tail: bool = False,
) -> ConvertRequest:
    """`directory` is a broker's log directory, or a folder with several of them."""
    return ConvertRequest(
        source_url=directory,
        source=storage,
        target_url=archive,
        target=storage,
        source_layout="logdir",
        # Copying checks the checksums, and reads every byte anyway.
        source_extra={CHECK_CRC: "false", "uncommitted_tail": str(uncommitted_tail).lower()},
        topics=topics,
        to=to,
        # As in any backup, every batch is checked when it is read. `check --deep` proves what was written.
        verify=False,
    )
