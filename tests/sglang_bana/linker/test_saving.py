"""Pages are saved once, in their prompt's order, within bounds, and never under a wrong key."""

from __future__ import annotations

import select
import threading
from typing import Any

import pytest

from bana.radix_global.keys import page_keys, split_keys
from bana.radix_global.naive_store import NaiveStore
from sglang_bana.engine.linker.limits import LinkerLimits

from .stand import NAMESPACE, Gate, Stand, hashes_of, layout_of, wait_until


def keys_of(hashes: list[str], digest: bytes = NAMESPACE.digest()) -> list[bytes]:
    return split_keys(page_keys(digest, hashes))


def test_each_page_names_the_one_before_it() -> None:
    stand, hashes = Stand(limits=LinkerLimits(lot_pages=2)), hashes_of(7)
    assert stand.save(hashes[:5], [1, 2, 3, 4, 5])
    assert stand.save(hashes[5:], [6, 7], parent=hashes[4])
    keys = keys_of(hashes)
    assert stand.store.published == list(zip([b"", *keys[:-1]], keys, strict=True))
    assert stand.linker.counts.saved_pages == 7


def test_a_parent_is_told_for_one_offload_only() -> None:
    stand = Stand()
    assert stand.save(hashes_of(1), [1], parent=hashes_of(1, "b")[0])
    assert stand.linker.offload(stand.transfer(hashes_of(1, "c"), [2]))
    assert stand.wait_saved()
    assert [after == b"" for after, _ in stand.store.published] == [False, True]


def test_what_the_store_has_is_not_copied_again() -> None:
    stand, hashes = Stand(), hashes_of(6)
    assert stand.save(hashes[:3], [1, 2, 3])
    assert stand.save(hashes, [1, 2, 3, 4, 5, 6])
    assert stand.save(hashes, [1, 2, 3, 4, 5, 6])
    assert stand.linker.counts.saved_pages == 6
    assert stand.linker.counts.known_pages == 3 + 6
    assert stand.store.counts["duplicate_pages"] == 0


def test_what_was_restored_is_known_and_what_the_store_lacks_is_saved_again() -> None:
    source, hashes = Stand(seed=1), hashes_of(4)
    assert source.save(hashes, [1, 2, 3, 4])
    target = Stand(source.store, seed=2)
    target.want("r", hashes)
    target.linker.wants.release("r")
    assert target.save(hashes, [1, 2, 3, 4])
    assert target.linker.counts.saved_pages == 0

    for key in keys_of(hashes)[2:]:
        source.store.evict(key)
    target.want("s", hashes)
    target.linker.wants.release("s")
    assert target.linker.counts.missed_pages == 2
    assert target.save(hashes, [1, 2, 3, 4])
    assert target.linker.counts.saved_pages == 2


def test_locked_pages_are_bounded() -> None:
    stand = Stand(pages=40, limits=LinkerLimits(locked_share=0.25))
    hashes = hashes_of(12)
    assert stand.linker.offload(stand.transfer(hashes[:8], list(range(8))))
    assert not stand.linker.offload(stand.transfer(hashes[8:11], [8, 9, 10]))
    assert stand.linker.offload(stand.transfer(hashes[8:10], [8, 9]))
    assert stand.linker.counts.refused_saves == 1
    assert stand.wait_saved()
    # The others are still locked, or have ended and were not asked for.
    other = stand.transfer(hashes_of(9, "b"), list(range(9)))
    assert not stand.linker.offload(other)
    assert stand.wait_saved()
    assert stand.linker.offload(other)
    assert stand.wait_saved()


def test_a_piece_that_is_larger_than_the_bound_goes_alone() -> None:
    stand = Stand(pages=40, limits=LinkerLimits(locked_share=0.25))
    assert stand.linker.offload(stand.transfer(hashes_of(12), list(range(12))))
    assert not stand.linker.offload(stand.transfer(hashes_of(1, "b"), [13]))
    assert stand.wait_saved()
    assert stand.linker.counts.saved_pages == 12


def test_a_store_that_is_short_of_slots_gets_the_beginning() -> None:
    stand, hashes = Stand(NaiveStore(3, layout_of().page_bytes, lambda: None)), hashes_of(5)
    assert not stand.save(hashes, [1, 2, 3, 4, 5])
    assert [key for _, key in stand.store.published] == keys_of(hashes)[:3]
    assert stand.linker.counts.failed_saves == 1


def test_nothing_is_offered_to_a_store_that_is_away_unless_ranks_must_agree() -> None:
    alone, together = Stand(), Stand(is_alone=False)
    for stand in (alone, together):
        stand.store.lose()
    assert not alone.linker.offload(alone.transfer(hashes_of(2), [1, 2]))
    assert not together.save(hashes_of(2), [1, 2])
    assert together.store.published == []


def test_what_is_copied_while_the_tree_is_emptied_is_not_published() -> None:
    gate = Gate()
    stand = Stand(limits=LinkerLimits(quiesce_s=0.05), before_layer=gate)
    assert stand.linker.offload(stand.transfer(hashes_of(2), [1, 2]))
    gate.wait()
    stand.linker.reset()
    gate.open()
    # The next one goes through, with a result of its own alone.
    assert stand.save(hashes_of(1, "b"), [3])
    assert [key for _, key in stand.store.published] == keys_of(hashes_of(1, "b"))
    assert stand.linker.num_completed_offloads() == 0


def test_what_is_copied_when_the_pool_goes_is_not_published() -> None:
    gate = Gate()
    stand = Stand(limits=LinkerLimits(quiesce_s=0.05), before_layer=gate)
    assert stand.linker.offload(stand.transfer(hashes_of(2), [1, 2]))
    assert stand.linker.offload(stand.transfer(hashes_of(2, "b"), [3, 4]))
    gate.wait()
    stand.linker.settle()
    gate.open()
    wait_until(lambda: stand.linker.num_completed_offloads() == 2)
    assert [stand.linker.pop_completed_offload() for _ in range(2)] == [False, False]
    assert stand.store.published == []


def test_nothing_of_a_lost_daemons_arena_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand()
    closed: list[str] = []
    mover: Any = stand.linker._saver._mover
    monkeypatch.setattr(mover, "close", lambda: closed.append(threading.current_thread().name))
    assert stand.save(hashes_of(1), [1])
    stand.linker.num_completed_offloads()
    assert closed == []
    stand.store.lose()
    for _ in range(3):
        stand.linker.num_completed_offloads()
    wait_until(lambda: len(closed) == 2)
    stand.store.come_back()
    assert stand.save(hashes_of(2), [1, 2])
    assert sorted(closed) == ["bana-load-pages", "bana-save-pages"]


def test_what_is_copied_while_the_weights_change_is_not_published() -> None:
    gate = Gate()
    stand = Stand(NaiveStore(2, layout_of().page_bytes, lambda: None), before_layer=gate)
    assert stand.linker.offload(stand.transfer(hashes_of(2), [1, 2]))
    gate.wait()
    stand.linker.change_weights()
    gate.open()
    assert not stand.wait_saved()
    assert stand.store.published == []
    # Its slots are there for others.
    assert stand.save(hashes_of(2), [1, 2])


def test_a_copy_that_fails_costs_no_slot() -> None:
    failures = iter([True])

    def fail_once(stand: Stand, layer: int) -> None:
        if next(failures, False):
            raise OSError("bus error")

    stand = Stand(NaiveStore(2, layout_of().page_bytes, lambda: None), before_layer=fail_once)
    assert not stand.save(hashes_of(2), [1, 2])
    assert stand.save(hashes_of(2), [1, 2])
    assert stand.linker.counts.failed_saves == 1


def test_other_weights_neither_find_nor_replace_pages() -> None:
    source, hashes = Stand(seed=1), hashes_of(3)
    assert source.save(hashes, [1, 2, 3])
    target = Stand(source.store, seed=2)
    target.want("before", hashes)
    digest = target.linker.digest
    target.linker.change_weights()
    assert target.linker.digest != digest
    assert list(target.linker.lookup("before", target.transfer(hashes))) == []
    target.want("after", hashes)
    assert list(target.linker.lookup("after", target.transfer(hashes))) == []
    assert target.save(hashes, [1, 2, 3])
    assert target.linker.counts.saved_pages == 3
    assert source.store.namespaces[-1].weights_epoch != NAMESPACE.weights_epoch

    again = Stand(source.store, seed=2)
    again.linker.change_weights()
    assert again.linker.digest not in (digest, target.linker.digest)


def test_a_tree_of_other_weights_is_not_saved_before_it_is_emptied() -> None:
    stand = Stand()
    stand.linker.rest()
    assert stand.linker.is_resting
    assert not stand.linker.offload(stand.transfer(hashes_of(1), [1]))
    stand.linker.reset()
    assert not stand.linker.is_resting
    assert stand.save(hashes_of(1), [1])


def test_the_engine_is_woken_when_a_piece_can_be_unlocked() -> None:
    stand = Stand()
    assert select.select([stand.bell.fd], [], [], 0)[0] == []
    assert stand.save(hashes_of(1), [1])
    wait_until(lambda: select.select([stand.bell.fd], [], [], 0)[0])
    stand.bell.silence()
    assert select.select([stand.bell.fd], [], [], 0)[0] == []


def test_the_end_releases_everything() -> None:
    stand = Stand()
    stand.want("a", hashes_of(2))
    stand.linker.close()
    assert stand.store.wants == {}
    assert str(stand.store.state) == "closed"
    assert not stand.linker.offload(stand.transfer(hashes_of(1), [1]))
