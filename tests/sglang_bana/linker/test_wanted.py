"""What a linker learns from the store's answers, and since when a request waits."""

from __future__ import annotations

import pytest

from bana.radix_global.keys import DIGEST_BYTES, page_keys, split_keys
from bana.radix_global.messages import WantOutcome
from bana.radix_global.naive_store import NaiveStore
from sglang_bana.engine.linker.counts import LinkerCounts
from sglang_bana.engine.linker.known_keys import KnownKeys
from sglang_bana.engine.linker.limits import LinkerLimits
from sglang_bana.engine.linker.wanted import Asking, WantBook

DIGEST = b"d" * DIGEST_BYTES
HASHES = [f"{number:064x}" for number in range(4)]
KEYS = split_keys(page_keys(DIGEST, HASHES))
ASKING = Asking(DIGEST, HASHES, 0, 9.0)
ARENA, DISK = 1, 2


class Book(WantBook):
    """Over a store that answers when a test says so."""

    def __init__(self) -> None:
        self.known = KnownKeys(100)
        store = NaiveStore(64, 8, lambda: None)
        super().__init__(store, LinkerLimits(), self.known, LinkerCounts())


@pytest.mark.parametrize(
    ("places", "held"),
    [
        (bytes([ARENA, ARENA | DISK, DISK]), [True, True, False, False]),
        (bytes([DISK, ARENA]), [False, True, False, False]),
        (b"", [False] * 4),
    ],
)
def test_what_only_a_tier_has_is_saved_once_it_is_computed(places: bytes, held: list[bool]) -> None:
    book = Book()
    book.known.add(KEYS)
    wanted = book.ask("a", ASKING, 0.0)
    assert wanted is not None
    wanted.want.note_known(places)
    book.release("a")
    assert [key in book.known for key in KEYS] == held


def test_a_lost_store_teaches_nothing() -> None:
    book = Book()
    wanted = book.ask("a", ASKING, 0.0)
    assert wanted is not None
    wanted.want.note_known(bytes([ARENA] * 4))
    wanted.want.note_settled(WantOutcome.LOST)
    book.release("a")
    assert not any(key in book.known for key in KEYS)


def test_who_asked_ahead_of_time_waits_only_since_it_could_go_on() -> None:
    book = Book()
    book.ask("a", ASKING, 1.0)
    met = book.meet("a", 6.0)
    assert met is not None
    assert (met.asked_s, met.waits_s) == (1.0, 6.0)
    assert book.find("a") is met
    assert book.meet("b", 6.0) is None
