"""A backup of brokers' log directories: a conversion like any other, which knows that logs are read but once."""

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
    """`directory` is a broker's log directory, or a folder that has several of them."""
    return ConvertRequest(
        source_url=directory,
        source=storage,
        target_url=archive,
        target=storage,
        source_layout="logdir",
        # Checksums are looked at when the batches are copied, which reads every byte anyway.
        source_extra={CHECK_CRC: "false", "uncommitted_tail": str(uncommitted_tail).lower()},
        topics=topics,
        to=to,
        # As any backup: every batch is checked when it is read. To prove what was written there is `check --deep`.
        verify=False,
    )
