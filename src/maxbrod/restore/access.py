"""Brings ACLs and quotas back, as planned. Each may be done again: what is there already is done.

ACLs come before the records, so that no record stands where more people may read it than before; quotas come after
them, so that they do not slow the restore itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.errors import RefusedError
from maxbrod.kafka.admin.access import create_acls, set_quotas
from maxbrod.kafka.state.access import read_quotas
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.restore.plan.access import plan_quotas
from maxbrod.restore.plan.access_preflight import describe_acl, describe_quota

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maxbrod.kafka.admin.outcomes import Outcome
    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.restore.plan.plan import RestorePlan

_AGAIN: Final = "run the same command again when it is mended: it goes on from here"


def restore_acls(client: KafkaClient, plan: RestorePlan, *, patience_s: float) -> None:
    """RefusedError: one at least was not created, which names the first and counts the others."""
    if plan.access.acls is not None and plan.access.acls.create:
        outcomes = create_acls(client, plan.access.acls.create, deadline=Deadline.after(patience_s))
        _demand({describe_acl(acl): outcome for acl, outcome in outcomes.items()}, "create the ACL")


def restore_quotas(client: KafkaClient, plan: RestorePlan, *, patience_s: float) -> None:
    """Those that nobody has set since it was planned. RefusedError as above."""
    if plan.access.quotas is None or not plan.access.quotas.set:
        return
    present = read_quotas(client, deadline=Deadline.after(patience_s))
    missing = plan_quotas(plan.access.quotas.set, present).set
    outcomes = set_quotas(client, missing, deadline=Deadline.after(patience_s)) if missing else {}
    names = {quota.entities: describe_quota(quota) for quota in missing}
    _demand({names[entities]: outcome for entities, outcome in outcomes.items()}, "set the quota")


def _demand(outcomes: Mapping[str, Outcome], what: str) -> None:
    refused = {name: outcome for name, outcome in outcomes.items() if not outcome.done}
    for name, outcome in refused.items():
        more = f", and {len(refused) - 1} more" if len(refused) > 1 else ""
        raise RefusedError(f"cannot {what}: {outcome.reason}{more}", operation="restore", object_name=name, hint=_AGAIN)
