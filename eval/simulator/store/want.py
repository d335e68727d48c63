"""What one waiting request wants of the store, and what it has got.

prompt   │ on the device │ first … arrived │ … known │ nobody has it, or it is the last token │
"""

from __future__ import annotations

from collections.abc import Mapping

from bana.eval.simulator.store.page_map import PageIds


class Want:
    """The pages `ids` of a prompt, which come behind its first `first` ones.

    `known` are the masks of those that the store has promised, None before its answer; `ahead`
    says how many bytes each tier had to read then. `waits_s` is since when its request does nothing
    else. `origins` are the places where pages came from
    that have arrived, in their order.
    """

    __slots__ = (
        "ahead",
        "asked_s",
        "due_s",
        "first",
        "ids",
        "is_over",
        "known",
        "number",
        "origins",
        "request",
        "waits_s",
    )

    def __init__(
        self, number: int, request: int, first: int, ids: PageIds, asked_s: float, due_s: float
    ) -> None:
        self.number = number
        self.request = request
        self.first = first
        self.ids = ids
        self.asked_s = self.waits_s = asked_s
        self.due_s = due_s
        self.known: bytes | None = None
        self.ahead: Mapping[int, float] = {}
        self.origins = bytearray()
        self.is_over = False

    @property
    def arrived(self) -> int:
        """How many pages are there, without a gap."""
        return len(self.origins)

    @property
    def is_settled(self) -> bool:
        """Whether nothing more will come."""
        return self.known is not None and self.arrived >= len(self.known)

    @property
    def missing(self) -> PageIds:
        """The promised pages from the first on that has not come."""
        return self.ids[self.arrived : len(self.known or b"")]
