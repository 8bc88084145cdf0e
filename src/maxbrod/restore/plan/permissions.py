"""Which rights a restore needs at its target, and which of them are denied there, or unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.restore.plan.obstacles import Obstacle, ObstacleKind
from maxbrod.restore.plan.request import OffsetsMode
from maxbrod.restore.plan.targets import Right

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from maxbrod.restore.plan.access import AccessPlan
    from maxbrod.restore.plan.preflight import Subject
    from maxbrod.restore.plan.request import RestoreRequest
    from maxbrod.restore.plan.targets import TargetState

_HOLES_HINT: Final = "holes are closed by empty transactions then, 200 a second"


def find_missing_rights(
    request: RestoreRequest, subjects: Sequence[Subject], state: TargetState, access: AccessPlan
) -> Iterator[Obstacle]:
    """One obstacle for each right that is not known to be allowed."""
    for right, is_needed in _needed(request, subjects, access).items():
        if is_needed and not state.rights.get(right, False):
            yield _obstacle(request, right, state)


def _needed(request: RestoreRequest, subjects: Sequence[Subject], access: AccessPlan) -> Mapping[Right, bool]:
    exact = [each for subject in subjects for each in subject.offsets if each.mode is OffsetsMode.EXACT]
    return {
        Right.WRITE: bool(subjects),
        Right.READ: bool(subjects),
        Right.CREATE: any(not each.target.exists for each in subjects),
        # A topic that is created comes with what is held, but has to lose it in the end.
        Right.ALTER_CONFIGS: bool(subjects),
        Right.DELETE: any(each.cost.leading for each in exact),
        Right.CLUSTER_ACTION: any(each.cost.holes for each in exact),
        Right.READ_GROUPS: bool(request.groups),
        Right.ALTER_CLUSTER: access.acls is not None and bool(access.acls.create),
        Right.ALTER_CLUSTER_CONFIGS: access.quotas is not None and bool(access.quotas.set),
    }


def _obstacle(request: RestoreRequest, right: Right, state: TargetState) -> Obstacle:
    known, dispensable = right in state.rights, right is Right.CLUSTER_ACTION
    names = state.denied.get(right, ())
    more = f", nor on {len(names) - 1} more" if len(names) > 1 else ""
    return Obstacle(
        kind=ObstacleKind.PERMISSION if known else ObstacleKind.RIGHT_UNKNOWN,
        where=names[0] if names else None,
        what=f"this user may not {right}{more}" if known else f"nobody knows whether this user may {right}",
        hint=_HOLES_HINT if dispensable else f"allow {right}",
        fatal=not dispensable and (known or request.strict),
    )
