"""The configuration in force, setting by setting, and where each comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import yaml
from pydantic import BaseModel, SecretStr

from maxbrod.config import ARCHIVE_VARIABLE, VARIABLE, Config, KafkaConfig, find_config
from maxbrod.errors import EXIT_DONE
from maxbrod.option_values import show_seconds
from maxbrod.options import Declared, Options, declared
from maxbrod.work.report import Report

_HIDDEN: Final = "********"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of the configuration. `source` is a flag, a variable, the file, or the default."""

    name: str
    value: Any
    source: str

    @property
    def text(self) -> str:
        """The value as people write it in the file: 60s, 64MiB, true."""
        if self.value is None or isinstance(self.value, bool):
            return {None: "", True: "true", False: "false"}[self.value]
        section, _, key = self.name.partition(".")
        if not key:
            return show_seconds(self.value) if section == "patience" else str(self.value)
        model = Config.model_fields[section].annotation
        options = declared(model) if isinstance(model, type) and issubclass(model, Options) else []
        reads = next((option.reads for option in options if option.name == key), None)
        return reads.show(self.value) if reads is not None and isinstance(self.value, int | float) else str(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReport(Report):
    file: str | None
    """The configuration file; None: there is none."""
    named_by: str | None
    """Who named the file, or where it was found."""
    settings: tuple[Setting, ...]

    published: ClassVar[tuple[str, ...]] = ()

    @property
    def exit_code(self) -> int:
        return EXIT_DONE


def show_config(
    config: Config,
    given: Mapping[str, Any],
    flags: Mapping[str, Declared],
    environ: Mapping[str, str],
    *,
    defaults: bool,
) -> ConfigReport:
    """Return every setting with its source. `given` is what flags say, `flags` are those that set something."""
    found = find_config(given.get("config"), environ)
    document = {} if found is None else yaml.safe_load(found[1].read_text(encoding="utf-8")) or {}
    by_flag = {option.option.setting: option.flags[0] for name, option in flags.items() if name in given}
    written = dict(_leaves(document))
    own = dict(_leaves(Config(kafka=KafkaConfig(bootstrap=""))))
    settings = []
    for name, value in _leaves(config):
        if name in by_flag:
            source = by_flag[name]
        elif name == "archive" and environ.get(ARCHIVE_VARIABLE):
            source = ARCHIVE_VARIABLE
        elif found is not None and (value != own.get(name) or name in written):
            source = _source(found[1], written, name)
        else:
            source = "default"
        if source != "default" or defaults:
            settings.append(Setting(name=name, value=_shown(value), source=source))
    return ConfigReport(
        file=None if found is None else str(found[1]),
        named_by=None if found is None else found[0],
        settings=tuple(settings),
    )


def _source(file: Path, written: Mapping[str, Any], name: str) -> str:
    """The file, and the variables that stand in its text at this place."""
    variables = {found["name"] for found in VARIABLE.finditer(str(written.get(name, ""))) if found["name"]}
    return ", ".join([str(file), *sorted(variables)])


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - models, options and YAML
    if isinstance(node, BaseModel):
        node = {name: getattr(node, name) for name in type(node).model_fields}
    elif is_dataclass(node) and not isinstance(node, type):
        node = asdict(node)
    if isinstance(node, Mapping) and (node or not prefix):
        for name, value in node.items():
            yield from _leaves(value, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, node


def _shown(value: Any) -> Any:  # noqa: ANN401 - any setting
    if isinstance(value, SecretStr):
        return _HIDDEN
    if isinstance(value, tuple | list | set | frozenset):
        return [_shown(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
