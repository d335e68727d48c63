"""Who holds which lease, and the row that each one's prefix ends at."""

from __future__ import annotations

from bana.slo.errors import StoreError


class LeaseBook:
    """At most `max_leases` leases by owner and number; a number is never used again."""

    def __init__(self, max_leases: int) -> None:
        self._max_leases = max_leases
        self._rows: dict[str, dict[int, int]] = {}
        self._next_id = 0
        self._held = 0

    def __len__(self) -> int:
        return self._held

    def require_room(self) -> None:
        """StoreError where no lease more may be given."""
        if self._held >= self._max_leases:
            raise StoreError(
                f"{self._held} leases are held, allowed: {self._max_leases}; "
                "release some or raise index.max_leases"
            )

    def add(self, owner: str, row: int) -> int:
        """Note a new lease that ends at `row`; its number."""
        lease_id = self._next_id
        self._next_id += 1
        self._rows.setdefault(owner, {})[lease_id] = row
        self._held += 1
        return lease_id

    def pop(self, owner: str, lease_id: int) -> int | None:
        """Strike a lease out; the row it ended at, None where `owner` holds no such lease."""
        rows = self._rows.get(owner, {})
        row = rows.pop(lease_id, None)
        if row is not None:
            self._held -= 1
            if not rows:
                del self._rows[owner]
        return row

    def pop_owner(self, owner: str) -> list[int]:
        """Strike all of an owner's leases out; the rows they ended at."""
        rows = list(self._rows.pop(owner, {}).values())
        self._held -= len(rows)
        return rows
