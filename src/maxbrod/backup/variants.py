"""The variants of a backup: into an archive of our own layout or of another tool's, alone or in turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from maxbrod.archive.foreign_target import TargetRequest
from maxbrod.backup.foreign import ForeignBackup
from maxbrod.backup.plan.generations import DAYS, HOURS, parse_length
from maxbrod.backup.plan.turns import OFFSETS
from maxbrod.backup.run import Backup
from maxbrod.backup.turns import TurnsBackup
from maxbrod.errors import UsageError
from maxbrod.layouts.registry import NATIVE
from maxbrod.work.progress import OnProgress, silent

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from maxbrod.backup.part import Part
    from maxbrod.config import Config
    from maxbrod.work.session import Session

_TIMES = {DAYS, HOURS, OFFSETS}
"""Options of the original tool that say when, not how a layout is written."""
AnyBackup: TypeAlias = Backup | ForeignBackup


def open_backup(
    config: Config,
    *,
    session: Session | None = None,
    on_progress: OnProgress = silent,
    stop: threading.Event | None = None,
    take_part: Callable[[], Part] | None = None,
) -> AnyBackup:
    """Return the backup for a configuration, to be used in a `with`. UsageError if options do not fit the layout.

    `take_part`, if several writers of our own layout may divide the partitions: what this one does in the next run.
    """
    request = config.backup
    given = [
        flag
        for flag, value in (
            ("--codec", request.codec),
            ("--layout-option", request.layout_options.keys() - _TIMES),
            ("--accept-loss", request.accept_loss),
        )
        if value
    ]
    if request.generation_role is not None and config.layout != "avro":
        raise UsageError(
            "--generation-role is only for the layout avro", hint="in our own layout use --generation-every"
        )
    if config.layout in {None, NATIVE}:
        if given:
            raise UsageError(f"{given[0]} is only for the layouts of other tools", hint="choose one with --layout")
        return Backup(config, session=session, on_progress=on_progress, stop=stop, take_part=take_part)
    if request.generation_role is not None:
        return TurnsBackup(config, target_request(config), session=session, on_progress=on_progress, stop=stop)
    if parse_length(request.generation_every, request.layout_options) is not None:
        raise UsageError(
            "generations of compacted topics are only for our own layout",
            hint="in the layout avro, two instances take turns: see --generation-role",
        )
    return ForeignBackup(config, target_request(config), session=session, on_progress=on_progress, stop=stop)


def target_request(config: Config) -> TargetRequest:
    """Return how to write a backup in another layout. Segment sizes default to that layout's own."""
    request = config.backup
    return TargetRequest(
        layout=config.layout or NATIVE,
        codec=request.codec,
        segment_bytes=request.segment_bytes,
        segment_records=request.segment_records,
        extra={name: each for name, each in request.layout_options.items() if name not in _TIMES},
        accept_loss=request.accept_loss,
    )
