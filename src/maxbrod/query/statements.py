"""Divides text into SQL statements at semicolons, and completes words of one. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_TOKENS: Final = re.compile(
    r"""
      '(?:[^'\\]|\\.)*'          # text, in which a backslash takes the next character
    | "(?:[^"\\]|\\.)*"
    | `(?:[^`]|``)*`             # a name
    | --[^\n]*                   # a comment to the end of the line
    | /\*.*?\*/                  # a comment between marks
    | (?P<open>['"`]|/\*).*      # one of these that does not end
    | (?P<end>;)
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_WORD: Final = re.compile(r"[\w`.$-]+", re.ASCII)
_KEYWORDS: Final = """
SELECT FROM WHERE GROUP BY ORDER HAVING LIMIT JOIN LEFT ON AS AND OR NOT IN LIKE BETWEEN IS NULL DISTINCT COUNT SUM MIN
MAX AVG WITH UNION ALL CASE WHEN THEN ELSE END CAST DESC ASC
"""


def split(text: str) -> tuple[list[str], str]:
    """The statements that end with a semicolon, without it, and the text after the last one."""
    found, start = [], 0
    for token in _TOKENS.finditer(text):
        if token["end"]:
            found.append(text[start : token.start()].strip())
            start = token.end()
    return [each for each in found if has_words(each)], text[start:]


def has_words(text: str) -> bool:
    """Whether there is anything but comments and spaces."""
    return any(not each[0].isspace() and not each[0].startswith(("--", "/*")) for each in _TOKENS.finditer(text))


def complete(word: str, line: str, tables: Mapping[str, Sequence[str]]) -> list[str]:
    """The words that begin so. `tables` has the columns of each table; those of tables in the line come first."""
    named = {each.strip("`").lower() for each in _WORD.findall(line)}
    here = [name for name in tables if name.lower() in named]
    before, _, start = word.rpartition(".")
    if before and (of := [name for name in tables if quoted(name) == before or name == before]):
        return [f"{before}.{column}" for column in tables[of[0]] if column.startswith(start)]
    columns = _unique(column for name in (here or tables) for column in tables[name])
    names = [*columns, *map(quoted, tables)]
    wanted = word.lstrip("`").lower()
    found = [each for each in names if each.lstrip("`").lower().startswith(wanted)]
    words = (_KEYWORDS if word.isupper() else _KEYWORDS.lower()).split()
    return [*found, *(each for each in words if word and each.startswith(word))]


def quoted(name: str) -> str:
    """The name as it is written in a query."""
    return name if _PLAIN_NAME.fullmatch(name) else f"`{name.replace('`', '``')}`"


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
