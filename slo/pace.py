"""How far ahead of their TPOT limits the running requests are: what a long step may use up.

first token ──┬──┬──┬──┬───── limit x tokens out ─────┬── credit ──┤
              tokens came early └──────── spare ─────────────────┘   the next token's time

A TPOT is an average, so a token may come later than its predecessors earned, by one gap, where
those to come can well make up for it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

# How much of what the tokens to come can regain is lent: an answer may end before its last one.
LENT_SHARE = 0.5


class Pace(msgspec.Struct, frozen=True, gc=False):
    """One running request: `out_tokens` since `begun_s`, its first token; at most `left_tokens`
    are to come, at least 1.
    """

    begun_s: float
    tpot_s: float
    out_tokens: int
    left_tokens: int

    def ahead_s(self, now_s: float) -> float:
        """How long its next token may take; negative where its average has passed the limit."""
        return self.begun_s + self.tpot_s * self.out_tokens - now_s

    def regain_s(self, decode_s: float) -> float:
        """What its tokens after the next one would earn, if only decodes ran; negative: lose."""
        return (self.left_tokens - 1) * (self.tpot_s - decode_s)

    def is_lost(self, now_s: float, decode_s: float) -> bool:
        """Whether even its last token comes too late, if only decodes ran from now on."""
        return self.ahead_s(now_s) + self.regain_s(decode_s) < decode_s

    def spare_s(self, now_s: float, decode_s: float) -> float:
        """How long its next token may take, with up to one gap on credit."""
        lent_s = min(self.tpot_s, LENT_SHARE * self.regain_s(decode_s))
        return self.ahead_s(now_s) + max(lent_s, 0.0)


def find_spare_s(paces: Iterable[Pace], now_s: float, decode_s: float) -> float | None:
    """How long a step may take, its decodes included, so that every average holds that still can.

    None where there is no such request. A decode step takes `decode_s`. O(paces).
    """
    kept = (pace.spare_s(now_s, decode_s) for pace in paces if not pace.is_lost(now_s, decode_s))
    return min(kept, default=None)
