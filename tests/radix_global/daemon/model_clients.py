"""Clients as a model of the daemon's books sees them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Seen:
    """A want as its client sees it."""

    keys: list[bytes]
    known: bytes | None = None
    slots: list[int] = field(default_factory=list)
    generations: list[int] = field(default_factory=list)
    outcome: str | None = None


@dataclass
class Client:
    """A client that believes what it is told, and checks it."""

    number: int
    life: int = 0
    is_attached: bool = False
    was_told_lost: bool = False
    wants: dict[int, Seen] = field(default_factory=dict)
    slots: list[int] = field(default_factory=list)
    next_want: int = 0
    announced: list[int] = field(default_factory=list)
    next_announcement: int = 0

    @property
    def route(self) -> bytes:
        return b"%d.%d" % (self.number, self.life)

    @property
    def client_id(self) -> bytes:
        return bytes([self.number + 1]) * 16

    def lose(self) -> None:
        """It is not attached; slots stay in its hands until it has forgotten them."""
        self.is_attached = False
        self.wants.clear()
        self.announced.clear()

    def forget(self) -> None:
        self.lose()
        self.was_told_lost = False
        self.slots.clear()
