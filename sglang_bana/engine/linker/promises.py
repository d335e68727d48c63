"""When a request's first token is due, also where no policy of bana keeps budgets."""

from __future__ import annotations

from typing import Any

import msgspec

from bana.slo.budget import read_budget
from bana.slo.limits import Slo, SloError


class Promises(msgspec.Struct, frozen=True):
    """Reads promises as the front door of this boot writes them."""

    default: Slo
    boot_id: str

    def due_s(self, req: Any, now_s: float) -> float:
        """The deadline of the first token. A promise that is none counts as the default one."""
        standing = getattr(req, "bana", None)
        if standing is not None:
            return float(standing.budget.deadline_s)
        params = getattr(req.sampling_params, "custom_params", None)
        words = params if isinstance(params, dict) else {}
        try:
            return read_budget(words, now_s, self.boot_id, self.default).deadline_s
        except SloError:
            return now_s + self.default.ttft_s
