"""What is computed for somebody else is announced, and withdrawn once it has been published."""

from __future__ import annotations

from bana.radix_global.keys import page_keys, split_keys

from .stand import NAMESPACE, Gate, Stand, hashes_of, wait_until


def test_a_prompt_is_announced_once_and_withdrawn_behind_its_pages() -> None:
    gate = Gate()
    stand, hashes = Stand(before_layer=gate), hashes_of(3)
    stand.linker.announce("r", hashes)
    stand.linker.announce("r", hashes)
    keys = split_keys(page_keys(NAMESPACE.digest(), hashes))
    assert stand.store.announced == {1: keys}
    assert stand.linker.offload(stand.transfer(hashes, [1, 2, 3]))
    gate.wait()
    stand.linker.withdraw("r")
    # Its pages are still being copied.
    assert stand.store.announced == {1: keys}
    gate.open()
    assert stand.wait_saved()
    wait_until(lambda: not stand.store.announced)
    assert [key for _, key in stand.store.published] == keys
    # There are results for pieces of the tree alone.
    assert stand.linker.num_completed_offloads() == 0


def test_nothing_is_withdrawn_that_was_not_announced() -> None:
    stand = Stand()
    stand.linker.withdraw("unknown")
    stand.linker.announce("r", [])
    assert stand.store.announced == {}


def test_new_weights_end_what_was_announced() -> None:
    stand = Stand()
    stand.linker.announce("r", hashes_of(2))
    stand.linker.change_weights()
    # The store ends it by itself; the prompt may be announced anew.
    stand.linker.announce("r", hashes_of(2))
    assert len(stand.store.announced) == 2
