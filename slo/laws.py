"""Whether a policy's answer is within its law; who asks checks, so that no answer breaks a caller.

view, plan ─▶ PlanError that says what, the value, what is allowed
"""

from __future__ import annotations

import math

import numpy as np

from bana.slo.errors import PlanError
from bana.slo.fetching import RestoreView
from bana.slo.governor import StepKind, StepPlan, StepView
from bana.slo.restore_plan import RestorePlan, count_expected, is_complete
from bana.slo.waiting import OrderPlan, QueueView


def require_order(plan: OrderPlan, view: QueueView) -> OrderPlan:
    """The plan; PlanError unless its head has the wanted number of distinct rows, with a reason
    each, all rows are the queue's, and nobody who has started is demoted. O(rows of the plan).
    """
    rows = view.queue.sequence.size
    wanted = min(view.head_rows, rows)
    head = set(plan.head)
    if len(plan.head) != wanted or len(head) != wanted or len(plan.reasons) != wanted:
        raise PlanError(
            f"queue order answered {len(plan.head)} rows ({len(head)} distinct) with "
            f"{len(plan.reasons)} reasons; allowed: {wanted} of {rows} rows, a reason each; repair "
            "the policy"
        )
    named = np.array((*plan.head, *plan.demote), dtype=np.int64)
    if named.size and not 0 <= named.min() <= named.max() < rows:
        raise PlanError(
            f"queue order names rows {named.min()} to {named.max()}, allowed: 0 to {rows - 1}; "
            "repair the policy"
        )
    demoted = named[len(plan.head) :]
    if view.queue.started[demoted].any():
        raise PlanError(
            f"queue order demotes started requests: {_show_first(demoted)}; repair the policy"
        )
    return plan


def require_step(plan: StepPlan, view: StepView) -> StepPlan:
    """The plan; PlanError unless it is within the chunk and does something that is to be done."""
    tokens, most = plan.prefill_tokens, view.max_chunk_tokens
    if not 0 <= tokens <= most:
        raise PlanError(f"governor plans {tokens} prompt tokens, allowed: 0 to {most}; repair it")
    if plan.kind is StepKind.DECODE and not view.decode_requests:
        raise PlanError(f"governor plans {plan} where nothing decodes; repair the policy")
    if plan.kind is StepKind.MIXED and not view.can_mix:
        raise PlanError(f"governor plans {plan} on an engine that cannot mix; repair the policy")
    if plan.kind is not StepKind.DECODE and view.prefill_tokens and not tokens:
        raise PlanError(f"governor plans {plan} without a prompt token, some wait; repair it")
    return plan


def require_restore(plan: RestorePlan, view: RestoreView, now_s: float) -> RestorePlan:
    """The plan; PlanError unless it waits for what may come, until a time that comes."""
    most = max(view.arrived_pages, count_expected(view))
    if not view.arrived_pages <= plan.pages <= most:
        raise PlanError(
            f"restore policy waits for {plan.pages} pages, allowed: {view.arrived_pages} that are "
            f"there to {most} that may come; repair the policy"
        )
    if not math.isfinite(plan.until_s) or (is_complete(view) and plan.until_s > now_s):
        raise PlanError(
            f"restore policy waits until {plan.until_s:g} s, at {now_s:g} s, allowed: a finite "
            "time, no later than now where no more can come; repair the policy"
        )
    return plan


def _show_first(rows: np.typing.NDArray[np.int64]) -> str:
    return ", ".join(map(str, rows[:8].tolist())) + (" …" if rows.size > 8 else "")
