"""The options that every verb about an archive shares: where it is, and how to reach it.

A flag wins over the configuration file. Keys are no flags, because a command line can be read by every user of the
machine: they come from the file or from the environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from maxbrod.config import Config, StorageConfig

_PANEL = "Where the archive is"

ArchiveOption = Annotated[
    str | None,
    typer.Option(
        "--archive",
        "-a",
        metavar="URL",
        help="A folder, s3://bucket/prefix, gs://… or az://…; else 'archive' of the configuration.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="A YAML file.", show_default=False, rich_help_panel=_PANEL),
]
S3EndpointOption = Annotated[
    str | None,
    typer.Option(
        "--s3-endpoint",
        metavar="URL",
        help="A server other than Amazon's. Keys: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
S3RegionOption = Annotated[
    str | None,
    typer.Option("--s3-region", metavar="NAME", help="The region.", show_default=False, rich_help_panel=_PANEL),
]
S3PathStyleOption = Annotated[
    bool | None,
    typer.Option(
        "--s3-path-style/--no-s3-path-style",
        help="The bucket in the path, or in the host's name.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
LayoutOption = Annotated[
    str | None,
    typer.Option(
        "--layout",
        metavar="NAME",
        help="kafka (our own), kbak, kbs, binlog, avro or parquet; looked for without.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What the command line and the configuration say together."""

    url: str
    storage: StorageConfig
    config: Config


def find_place(
    archive: str | None,
    config_file: Path | None,
    *,
    layout: str | None = None,
    **s3: Any,  # noqa: ANN401 - flags of any type
) -> Place:
    """`s3` are fields of `S3Config`; None is a flag that was not given."""
    from maxbrod.config import Config, load_config  # noqa: PLC0415 - pydantic: not for `--help`

    config = Config() if config_file is None else load_config(config_file)
    if layout is not None:
        config = config.model_copy(update={"layout": layout})
    url = archive or config.archive
    if url is None:
        raise UsageError("no archive is named", hint="give --archive URL, or 'archive: URL' in the file of --config")
    given = {name: value for name, value in s3.items() if value is not None}
    return Place(url=url, storage=_with_s3(config.storage, given) if given else config.storage, config=config)


def _with_s3(storage: StorageConfig, given: dict[str, Any]) -> StorageConfig:
    from pydantic import ValidationError  # noqa: PLC0415 - as above

    from maxbrod.config import S3Config  # noqa: PLC0415

    try:
        section = S3Config.model_validate({**storage.s3.model_dump(), **given})
    except ValidationError as error:
        complaints = "; ".join(each["msg"] for each in error.errors(include_input=False, include_url=False))
        raise UsageError(f"the S3 options do not go together: {complaints}") from None
    return storage.model_copy(update={"s3": section})
