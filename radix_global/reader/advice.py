"""A reading policy that may be anybody's: where it breaks its law the reader goes on without it."""

from __future__ import annotations

from collections.abc import Sequence

from bana.radix_global.reader.policies import OpenPage, ReadPolicy, TierLoad


class GuardedPolicy:
    """The answers of `policy`; where there is none to be used, any tier may read. Counted."""

    def __init__(self, policy: ReadPolicy) -> None:
        self._policy = policy
        self.faults = 0

    def choose_tiers(self, page: OpenPage, loads: Sequence[TierLoad]) -> int:
        """One or more of the page's tiers, as a mask."""
        try:
            chosen = self._policy.choose_tiers(page, loads).tiers
        except Exception:
            chosen = 0
        if chosen <= 0 or chosen & ~page.tiers:
            self.faults += 1
            return page.tiers
        return chosen

    def may_claim(self, tier: int, loads: Sequence[TierLoad]) -> bool:
        """Whether the tier may take pages now."""
        try:
            return self._policy.may_claim(tier, loads)
        except Exception:
            self.faults += 1
            return True
