"""Differences of two snapshots, as JSON: runs that follow each other closely share one document. Pure.

A change is `[path, value]`: the value stands at this path instead. Without a value, the key is gone. A path lists keys
of objects and positions in lists, from the document's root on; null stands for every key, or every position that is not
null. Changes apply in order. docs/format.md describes them.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Change: TypeAlias = "list[Any]"
_POINTS: Final = "recovery_points"
_PATH_AND_VALUE: Final = 2


def find_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Return the changes that make `after` of `before`. Both are plain JSON."""
    points = list(_differences(before.get(_POINTS), after.get(_POINTS), [_POINTS]))
    common = _commonest(after.get(_POINTS))
    if len(points) > 1 and common is not None:
        # A run moves nearly all recovery points to its own start.
        everywhere: Change = [[_POINTS, None, None], common]
        moved = apply_changes({_POINTS: before.get(_POINTS)}, [everywhere])
        points = min(points, [everywhere, *_differences(moved[_POINTS], after[_POINTS], [_POINTS])], key=len)
    rest = _differences(_without(before, _POINTS), _without(after, _POINTS), [])
    return [*points, *rest]


def apply_changes(document: Mapping[str, Any], changes: Sequence[Change]) -> dict[str, Any]:
    """The changed document; the given one stays. LookupError, TypeError, ValueError: a change does not fit it."""
    changed: dict[str, Any] = deepcopy(dict(document))
    for path, *value in changes:
        *way, last = path
        for place in _places(changed, way):
            if not value:
                del place[last]
            elif last is None:
                for key in _keys(place):
                    place[key] = value[0]
            elif isinstance(place, list):
                place[_position(last)] = value[0]
            else:
                place[str(last)] = value[0]
    return changed


def _places(place: Any, way: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401 - JSON
    if not way:
        yield place
        return
    key, *rest = way
    if key is None:
        for inner in _keys(place):
            yield from _places(place[inner], rest)
    else:
        yield from _places(place[_position(key) if isinstance(place, list) else key], rest)


def _keys(place: Any) -> list[Any]:  # noqa: ANN401 - JSON
    if isinstance(place, list):
        return [position for position, value in enumerate(place) if value is not None]
    return list(place)


def _position(key: Any) -> int:  # noqa: ANN401 - JSON
    if not isinstance(key, int) or key < 0:
        raise ValueError(f"{key!r} is no position in a list")
    return key


def _differences(before: Any, after: Any, path: list[Any]) -> Iterator[Change]:  # noqa: ANN401 - JSON
    # Python takes 1, 1.0 and True for equal, JSON does not.
    if before == after and repr(before) == repr(after):
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() - after.keys():
            yield [[*path, key]]
        for key, value in after.items():
            if key in before:
                yield from _differences(before[key], value, [*path, key])
            else:
                yield [[*path, key], value]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for position, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _differences(old, new, [*path, position])
    else:
        yield [path, after]


def _commonest(points: Mapping[str, Sequence[int | None]] | None) -> int | None:
    counts = Counter(point for numbers in (points or {}).values() for point in numbers if point is not None)
    return counts.most_common(1)[0][0] if counts else None


def _without(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != key}
