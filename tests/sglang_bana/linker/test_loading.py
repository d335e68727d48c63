"""What has arrived is restored as it was saved; what has not, or is gone, is told in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bana.radix_global.keys import page_keys, split_keys
from sglang_bana.engine.linker.limits import LinkerLimits

from .stand import NAMESPACE, Gate, Stand, hashes_of


def saved(count: int = 6) -> tuple[Stand, list[str]]:
    """A stand that has saved its pages 1 and on as one prompt."""
    stand, hashes = Stand(seed=1), hashes_of(count)
    assert stand.save(hashes, list(range(1, count + 1)))
    return stand, hashes


def other(stand: Stand, **settings: Any) -> Stand:
    """Another engine with the same store, whose pool holds other numbers."""
    return Stand(stand.store, seed=2, **settings)


def assert_same(left: Stand, left_page: int, right: Stand, right_page: int) -> None:
    assert all(map(torch.equal, left.pool.page(left_page), right.pool.page(right_page)))


def test_another_engine_gets_what_one_has_computed() -> None:
    source, hashes = saved()
    target = other(source)
    untouched = target.pool.page(20)
    target.want("r", hashes)
    assert list(target.linker.lookup("r", target.transfer(hashes))) == [1, 2, 3, 4, 5, 6]
    assert target.load("r", hashes, [30, 3, 9, 31, 5, 40])
    for index, page in enumerate([30, 3, 9, 31, 5, 40]):
        assert_same(source, index + 1, target, page)
    assert all(map(torch.equal, target.pool.page(20), untouched))
    assert target.linker.counts.failed_loads == 0


def test_only_what_has_arrived_is_offered_and_from_where_the_device_ends() -> None:
    source, _ = saved(3)
    keys = page_keys(NAMESPACE.digest(), hashes_of(6))
    blank = bytes(source.layout.page_bytes)
    source.store.tier_pages = dict.fromkeys(split_keys(keys)[3:5], blank)
    target = other(source)
    wanted = target.want("r", hashes_of(6), first=1)
    asked = hashes_of(6)

    def offered(begin: int) -> list[int]:
        return list(target.linker.lookup("r", target.transfer(asked[begin:])))

    assert offered(1) == [1, 2]
    assert offered(0) == []
    source.store.deliver(wanted.want, 1)
    assert offered(1) == [1, 2, 3]
    assert offered(2) == [1, 2]
    assert offered(5) == []
    source.store.deliver(wanted.want, 9)
    assert offered(1) == [1, 2, 3, 4]
    assert target.linker.count_origins("r", asked[1], 4)[:3] == (2, 2, 0)


def test_nobody_gets_what_he_did_not_ask_for() -> None:
    source, hashes = saved()
    target = other(source)
    assert list(target.linker.lookup("r", target.transfer(hashes))) == []
    target.want("r", hashes)
    target.linker.wants.release("r")
    assert list(target.linker.lookup("r", target.transfer(hashes))) == []
    assert source.store.wants == {}


def test_requests_of_one_step_load_together() -> None:
    source, hashes = saved()
    target = other(source)
    target.want("r", hashes[:2])
    target.want("s", hashes)
    assert target.linker.load("r", target.transfer(hashes[:2], [50, 51]))
    assert target.linker.load("s", target.transfer(hashes, [10, 11, 12, 13, 14, 15]))
    assert target.step()
    assert_same(source, 2, target, 51)
    assert_same(source, 6, target, 15)
    assert target.linker.start_layer_wise_loading() == -1


def test_a_queued_load_can_be_taken_back() -> None:
    source, hashes = saved()
    target = other(source)
    target.want("r", hashes)
    assert target.linker.load("r", target.transfer(hashes, [1, 2, 3, 4, 5, 6]))
    assert target.linker.cancel_queued_load("r")
    assert not target.linker.cancel_queued_load("r")
    assert target.linker.start_layer_wise_loading() == -1


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_page_that_is_gone_before_its_load_is_computed(is_alone: bool) -> None:
    """Alone, at once; other ranks may have it, so there the load begins and fails for all."""
    source, hashes = saved()
    target = other(source, is_alone=is_alone)
    target.want("r", hashes)
    source.store.evict(page_keys(NAMESPACE.digest(), hashes[2:3]))
    transfer = target.transfer(hashes, [1, 2, 3, 4, 5, 6])
    assert target.linker.load("r", transfer) is not is_alone
    if not is_alone:
        assert not target.step()
        assert target.linker.counts.failed_loads == 1


def test_ranks_that_lack_a_page_say_so_after_the_step() -> None:
    source, hashes = saved()
    target = other(source, is_alone=False)
    target.want("r", hashes)
    source.store.lose()
    assert target.linker.load("r", target.transfer(hashes, [1, 2, 3, 4, 5, 6]))
    assert not target.step()


def fail(stand: Stand, layer: int) -> None:
    raise OSError("bus error")


def evict(stand: Stand, layer: int) -> None:
    if layer == 1:
        stand.store.evict(next(iter(stand.store.arena_pages)))


def dawdle(stand: Stand, layer: int) -> None:
    stand.clock.ahead_s = 60.0


def lose(stand: Stand, layer: int) -> None:
    stand.store.lose()


@pytest.mark.parametrize("happens", [fail, evict, dawdle, lose])
def test_a_load_that_goes_wrong_is_told_and_the_next_one_works(
    happens: Callable[[Stand, int], None],
) -> None:
    source, hashes = saved()
    target = other(source, limits=LinkerLimits(load_s=30.0), before_layer=happens)
    target.want("r", hashes)
    assert not target.load("r", hashes, [1, 2, 3, 4, 5, 6])
    assert target.linker.counts.failed_loads == 1
    source.store.come_back()

    fresh = hashes_of(2, "b")
    assert source.save(fresh, [1, 2])
    calm = other(source)
    calm.want("s", fresh)
    assert calm.load("s", fresh, [4, 5])
    assert_same(source, 2, calm, 5)


def test_a_load_that_outlasts_a_reset_writes_no_further_layer_and_fails_nobody() -> None:
    source, hashes = saved()
    gate = Gate()
    target = other(source, limits=LinkerLimits(quiesce_s=0.05), before_layer=gate)
    target.want("r", hashes)
    assert target.linker.load("r", target.transfer(hashes, [1, 2, 3, 4, 5, 6]))
    target.linker.start_layer_wise_loading()
    gate.wait()
    last = target.pool.k_buffer[2].clone()
    target.linker.reset()
    gate.open()
    # The next batch has the number of the one that was given up.
    target.want("s", hashes[:1])
    assert target.load("s", hashes[:1], [9])
    assert_same(source, 1, target, 9)
    assert torch.equal(target.pool.k_buffer[2][4:28], last[4:28])


def test_nothing_raises_into_the_engine() -> None:
    stand = Stand()
    stand.want("r", hashes_of(2))
    broken: list[Any] = [object()]
    assert list(stand.linker.lookup("r", broken)) == []
    assert stand.linker.load("r", broken) is False
    assert stand.linker.offload(broken) is False
    assert stand.linker.offload(stand.transfer(["no hash"], [1])) is False
    assert stand.linker.counts.faults == 4


def test_at_most_so_many_requests_want_pages() -> None:
    stand = Stand(limits=LinkerLimits(max_wants=2))
    assert [stand.want(rid, hashes_of(1)) is None for rid in "abc"] == [False, False, True]
    stand.linker.wants.release("a")
    assert stand.want("c", hashes_of(1)) is not None
    assert stand.want("d", []) is None


def test_a_request_that_asks_again_wants_once() -> None:
    stand = Stand()
    stand.want("a", hashes_of(3))
    stand.want("a", hashes_of(3), first=1)
    assert len(stand.store.wants) == len(stand.linker.wants) == 1


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_split_between_device_arena_and_tier_restores_the_same(data: st.DataObject) -> None:
    """Pages of a prompt lie anywhere; whatever prefix is offered is the one that was saved."""
    source = Stand(seed=1)
    count = data.draw(st.integers(1, 8))
    hashes = hashes_of(count)
    in_arena = data.draw(st.integers(0, count))
    if in_arena:
        assert source.save(hashes[:in_arena], list(range(in_arena)))
    keys = split_keys(page_keys(NAMESPACE.digest(), hashes))
    bytes_of = [page_bytes(source, page) for page in range(count)]
    source.store.tier_pages = dict(zip(keys[in_arena:], bytes_of[in_arena:], strict=True))
    target = other(source)
    first = data.draw(st.integers(0, count - 1))
    wanted = target.want("r", hashes, first=first)
    source.store.deliver(wanted.want, data.draw(st.integers(0, count)))

    start = data.draw(st.integers(first, count - 1))
    offered = list(target.linker.lookup("r", target.transfer(hashes[start:])))
    if not offered:
        return
    taken = data.draw(st.sampled_from(offered))
    pages = list(range(20, 20 + taken))
    assert target.load("r", hashes[start : start + taken], pages)
    for index, page in enumerate(pages):
        assert_same(source, start + index, target, page)


def page_bytes(stand: Stand, page: int) -> bytes:
    """A page as it lies in a slot."""
    layout = stand.layout
    size = layout.page_tokens
    rows = slice(page * size, (page + 1) * size)
    pieces = [
        buffer[rows].contiguous().view(torch.uint8).numpy().tobytes()
        for pair in zip(stand.pool.k_buffer, stand.pool.v_buffer, strict=True)
        for buffer in pair
    ]
    return b"".join(pieces)
