"""How many requests in flight each API key and each SLO class has, against limits of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from sglang_bana.router.errors import ApiError
from sglang_bana.router.retry import retry_headers


class Quota:
    """One count for each name; whoever is counted in is counted out once, however often it asks."""

    def __init__(self, what: str, code: str, retry_after_s: float) -> None:
        self._what = what
        self._code = code
        self._retry_after_s = retry_after_s
        self._names: dict[Hashable, str] = {}
        self._counts: Counter[str] = Counter()

    def enter(self, guest: Hashable, name: str, limit: int | None) -> None:
        """Count `guest` in under `name`; ApiError 429 where `limit` others are there."""
        if limit is not None and self._counts[name] >= limit:
            raise ApiError(
                429,
                self._code,
                f"{self._counts[name]} requests of {self._what} {name!r} are in flight, allowed: "
                f"{limit}; try again later",
                headers=retry_headers(self._retry_after_s),
            )
        self._names[guest] = name
        self._counts[name] += 1

    def leave(self, guest: Hashable) -> None:
        """Count `guest` out, if it was in."""
        name = self._names.pop(guest, None)
        if name is None:
            return
        self._counts[name] -= 1
        if not self._counts[name]:
            del self._counts[name]
