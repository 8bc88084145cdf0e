"""Command lines that do what a form asks for, from the declarations of the verb's options. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from maxbrod.options import Options, declared
from maxbrod.prune.options import PruneOptions
from maxbrod.restore.options import RestoreOptions

TARGET_UNKNOWN: Final = "HOST:PORT"
"""Stands for brokers that nobody has named."""


def restore_words(given: Mapping[str, Any], *, place: Sequence[str], bootstrap: str = "") -> str:
    """The restore that a form asks for, as a shell reads it. `place`: how the archive is named."""
    cluster = ("--bootstrap", bootstrap or TARGET_UNKNOWN)
    return shlex.join(["maxbrod", "restore", *place, *cluster, *flags_of(RestoreOptions, given)])


def prune_words(given: Mapping[str, Any], *, place: Sequence[str]) -> str:
    """The same for a prune. It lists only, as without `--apply` every prune does."""
    return shlex.join(["maxbrod", "prune", *place, *flags_of(PruneOptions, given)])


def flags_of(model: type[Options], given: Mapping[str, Any]) -> list[str]:
    """The words of a command line for these values of options; those that say nothing are left out."""
    words: list[str] = []
    arguments: list[str] = []
    for known in declared(model):
        value = given.get(known.name)
        if value is None or value is False or value in ("", [], ()):
            continue
        values = value if isinstance(value, list | tuple) else [value]
        if known.option.argument:
            arguments += [str(one) for one in values]
        elif value is True:
            words.append(known.flags[0])
        else:
            words += [word for one in values for word in _pair(known.flags[0], str(one))]
    # A word that begins like a flag must not be taken for one.
    return [*words, *(("--", *arguments) if any(word.startswith("-") for word in arguments) else arguments)]


def _pair(flag: str, value: str) -> Iterable[str]:
    return (f"{flag}={value}",) if value.startswith("-") else (flag, value)
