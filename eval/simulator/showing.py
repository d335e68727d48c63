"""When clients, and who decides, see the tokens of a step: at its end, or a step later.

AT_END       step 1 ▸ 1   step 2 ▸ 2   idle
AFTER_NEXT   step 1       step 2 ▸ 1   ▸ 2 idle      a result is read when the next step is launched
"""

from __future__ import annotations

from collections.abc import Sequence

from bana.eval.simulator.engine_spec import TokensSeen


class Showing:
    """Told of every step; says when what ended at a moment was seen. O(1), memory O(steps)."""

    def __init__(self, seen: TokensSeen) -> None:
        self._is_late = seen is TokensSeen.AFTER_NEXT
        self._ended_s: float | None = None
        self._seen_s: dict[float, float] = {}

    def note_step(self, begun_s: float, ended_s: float) -> None:
        """A step ran from `begun_s` to `ended_s`."""
        if self._is_late and begun_s == self._ended_s:
            self._seen_s[begun_s] = ended_s
        self._ended_s = ended_s

    def find_seen(self, ended_s: Sequence[float]) -> Sequence[float]:
        """When the tokens of steps that ended at these moments were seen."""
        return [self.when_seen(at_s) for at_s in ended_s] if self._is_late else ended_s

    def when_seen(self, ended_s: float) -> float:
        """The same of one step."""
        return self._seen_s.get(ended_s, ended_s)

    def hides(self, now_s: float) -> bool:
        """Whether who decides at `now_s` does not know yet what the step gave that ended then."""
        return self._is_late and self._ended_s == now_s

    def read_now(self) -> None:
        """Nothing is launched behind the last step: its result is read, and seen, at once."""
        self._ended_s = None
