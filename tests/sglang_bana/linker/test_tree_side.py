"""Through SGLang's own tree: what one engine computed, another finds, loads and inserts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.unified_cache import unified_cache_linker

from bana.radix_global.keys import page_keys, split_keys
from sglang_bana.engine.linker.requests import is_restorable
from sglang_bana.engine.stay import stay_of

from .stand import NAMESPACE
from .tree_stand import PAGE, TreeStand

PROMPT = list(range(100, 131))
WHOLE = len(PROMPT) // PAGE * PAGE


def saved() -> tuple[TreeStand, torch.Tensor]:
    """An engine that has computed the prompt, and saved it."""
    source = TreeStand()
    slots = source.compute(PROMPT[:WHOLE], seed=1)
    source.save_all()
    return source, slots


def test_a_prompt_is_restored_through_the_tree() -> None:
    source, _ = saved()
    target = TreeStand(source.store)
    req = target.arrive("r", PROMPT)
    assert (req.prefix_len, req.host_hit_length) == (0, WHOLE)
    assert target.load(req) == WHOLE
    assert target.step(req) == []
    private = target.tree.linker.private_load_indices
    assert private == {}
    restored = target.linker.counts
    assert (restored.failed_loads, restored.faults) == (0, 0)
    assert stay_of(req).restored == (WHOLE, 0, 0, 0, 0, 0, 0, 0)
    assert req.storage_hit_length == 0


def test_what_was_loaded_is_what_was_saved() -> None:
    source, slots = saved()
    target = TreeStand(source.store)
    req = target.arrive("r", PROMPT)
    target.load(req)
    loaded = target.tree.linker.private_load_indices["r"].clone()
    target.step(req)
    assert torch.equal(target.kv(loaded), source.kv(slots[:WHOLE]))


def test_an_adapter_gets_its_own_pages_and_no_other_adapter_s() -> None:
    source = TreeStand()
    adapters = (None, "one", "two")
    computed = []
    for seed, name in enumerate(adapters):
        computed.append(source.compute(PROMPT[:WHOLE], seed, name))
        source.save_all()
    target = TreeStand(source.store)
    for name, slots in zip(adapters, computed, strict=True):
        req = target.arrive(f"with {name}", PROMPT, name)
        assert target.load(req) == WHOLE
        loaded = target.tree.linker.private_load_indices[req.rid].clone()
        assert target.step(req) == []
        assert torch.equal(target.kv(loaded), source.kv(slots))
    assert target.arrive("with a third", PROMPT, "three").host_hit_length == 0


def test_only_what_the_device_lacks_is_asked_for_and_loaded() -> None:
    source, slots = saved()
    target = TreeStand(source.store)
    target.compute(PROMPT[: 2 * PAGE], seed=1)
    req = target.arrive("r", PROMPT)
    assert (req.prefix_len, req.host_hit_length) == (2 * PAGE, WHOLE - 2 * PAGE)
    wanted = target.linker.wants.find("r")
    assert wanted is not None
    assert wanted.first == 2
    target.load(req)
    loaded = target.tree.linker.private_load_indices["r"].clone()
    assert target.step(req) == []
    assert torch.equal(target.kv(loaded), source.kv(slots[2 * PAGE : WHOLE]))


def test_a_device_that_got_more_meanwhile_loads_less() -> None:
    source, _ = saved()
    target = TreeStand(source.store)
    req = target.arrive("r", PROMPT)
    target.compute(PROMPT[: 3 * PAGE], seed=1)
    target.match(req)
    assert (req.prefix_len, req.host_hit_length) == (3 * PAGE, WHOLE - 3 * PAGE)
    target.compute(PROMPT[:WHOLE], seed=1)
    target.match(req)
    assert (req.prefix_len, req.host_hit_length) == (WHOLE, 0)


def test_one_token_is_always_computed() -> None:
    source, _ = saved()
    target = TreeStand(source.store)
    req = target.arrive("r", PROMPT[: 4 * PAGE])
    assert req.host_hit_length == 3 * PAGE


def test_what_came_from_a_tier_is_told() -> None:
    source, _ = saved()
    keys = split_keys(page_keys(NAMESPACE.digest(), source_hashes(source)))
    target = TreeStand(source.store)
    blank = bytes(source.layout.page_bytes)
    for key in keys[4:]:
        source.store.evict(key)
        source.store.tier_pages[key] = blank
    req = target.arrive("r", PROMPT)
    assert req.host_hit_length == 4 * PAGE
    wanted = target.linker.wants.find("r")
    assert wanted is not None
    source.store.deliver(wanted.want, 2)
    target.match(req)
    assert target.load(req) == 6 * PAGE
    assert stay_of(req).restored[:2] == (4 * PAGE, 2 * PAGE)
    assert req.storage_hit_length == 2 * PAGE


def source_hashes(stand: TreeStand) -> list[str]:
    """The hashes of the prompt's pages, by SGLang itself."""
    req = stand.arrive("probe", [*PROMPT[:WHOLE], 1])
    node = req.last_node
    hashes = [*stand.tree.get_prefix_hash_values(node), *stand.tree.tree_core.get_hash_values(node)]
    stand.restorer.depart(req)
    return hashes


def test_pages_name_the_one_before_them_across_nodes() -> None:
    source = TreeStand()
    source.compute(PROMPT[: 2 * PAGE], seed=1)
    source.compute(PROMPT[:WHOLE], seed=1)
    other = [*PROMPT[: 3 * PAGE], *range(500, 500 + PAGE)]
    source.compute(other, seed=1)
    source.save_all()
    keys = split_keys(page_keys(NAMESPACE.digest(), source_hashes(source)))
    parents = {key: after for after, key in source.store.published}
    assert [parents[key] for key in keys] == [b"", *keys[:-1]]
    (branch,) = set(parents) - set(keys)
    assert parents[branch] == keys[2]
    assert source.linker.counts.known_pages == 0


def test_hashes_are_made_once_and_nothing_is_looked_for_without_a_want(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, _ = saved()
    target = TreeStand(source.store)
    req = target.arrive("r", PROMPT)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("hashed or reduced again")

    monkeypatch.setattr(unified_cache_linker, "get_storage_hash_str", refuse)
    target.match(req)
    assert req.host_hit_length == WHOLE
    target.restorer.depart(req)
    monkeypatch.setattr(target.tree, "_all_reduce_attn_groups", refuse)
    target.match(req)
    assert req.host_hit_length == 0
    assert not target.tree.linker.has_hit("r")


def test_ranks_sum_up_also_where_one_has_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    target = TreeStand(is_alone=False)
    summed: list[Any] = []
    monkeypatch.setattr(target.tree, "_all_reduce_attn_groups", lambda t, op: summed.append(t))
    req = target.arrive("r", PROMPT)
    assert len(summed) == 1
    target.restorer.depart(req)
    target.match(req)
    assert len(summed) == 1


@pytest.mark.parametrize("others_pages", [0, 3, 99])
def test_ranks_restore_what_all_of_them_have(
    monkeypatch: pytest.MonkeyPatch, others_pages: int
) -> None:
    source, _ = saved()
    target = TreeStand(source.store, is_alone=False)
    monkeypatch.setattr(
        target.tree, "_all_reduce_attn_groups", lambda t, op: t.clamp_(max=others_pages)
    )
    req = target.arrive("r", PROMPT)
    assert req.host_hit_length == min(others_pages * PAGE, WHOLE)
    assert target.tree.linker.has_hit("r") is (others_pages > 0)


def test_a_load_that_fails_marks_its_request_alone_and_frees_on_release() -> None:
    source, _ = saved()
    target = TreeStand(source.store, is_alone=False)
    req = target.arrive("r", PROMPT)
    free = target.allocator.available_size()
    target.load(req)
    source.store.lose()
    assert target.step(req) == [req]
    assert req.discard_output_reason is not None
    assert target.allocator.available_size() == free - WHOLE


def test_a_page_that_is_gone_at_admission_costs_nothing() -> None:
    source, _ = saved()
    target = TreeStand(source.store)
    req = target.arrive("r", PROMPT)
    free = target.allocator.available_size()
    source.store.lose()
    assert target.load(req) == 0
    assert target.allocator.available_size() == free
    assert stay_of(req).restored == ()


def test_an_aborted_request_takes_its_queued_load_back() -> None:
    source, _ = saved()
    target = TreeStand(source.store)
    req = target.arrive("r", PROMPT)
    target.load(req)
    target.tree.linker.release_request("r")
    target.restorer.depart(req)
    assert target.tree.ready_to_load_host_cache() == -1
    assert source.store.wants == {}


def test_an_emptied_tree_keeps_nothing_locked_and_the_store_keeps_its_pages() -> None:
    source = TreeStand()
    source.compute(PROMPT[:WHOLE], seed=1)
    assert source.tree.linker.pending_offloads
    source.tree.reset()
    source.allocator.clear()
    assert source.tree.linker.pending_offloads == []
    source.compute(PROMPT[:WHOLE], seed=1)
    source.save_all()
    published = len(source.store.published)
    assert published >= WHOLE // PAGE
    source.tree.reset()
    source.allocator.clear()
    assert len(source.store.arena_pages) == WHOLE // PAGE
    assert source.arrive("r", PROMPT).host_hit_length == WHOLE


def test_saved_pages_can_be_evicted_and_come_back() -> None:
    source, slots = saved()
    before = source.kv(slots)
    source.tree.evict(EvictParams(num_tokens=WHOLE))
    for buffer in (*source.pool.k_buffer, *source.pool.v_buffer):
        buffer.zero_()
    req = source.arrive("r", PROMPT)
    assert (req.prefix_len, req.host_hit_length) == (0, WHOLE)
    source.load(req)
    loaded = source.tree.linker.private_load_indices["r"].clone()
    source.step(req)
    assert torch.equal(source.kv(loaded), before)


def test_a_refused_offer_is_made_again() -> None:
    source = TreeStand()
    source.linker.rest()
    source.compute(PROMPT[:WHOLE], seed=1)
    assert source.tree.linker.pending_offloads == []
    assert source.linker.counts.refused_saves == 1
    source.linker.reset()
    source.compute(PROMPT[:WHOLE], seed=1)
    source.save_all()
    assert len(source.store.arena_pages) == WHOLE // PAGE


@pytest.mark.parametrize(("rid", "saved_pages"), [("r", 2), ("HEALTH_CHECK_1", 0)])
def test_only_what_others_may_find_is_saved(
    rid: str, saved_pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = TreeStand()
    req = source.arrive(rid, PROMPT)
    # As a request's own checkpoint inserts it.
    monkeypatch.setattr(
        type(source.tree), "checkpoint", lambda self, req, up_to: source.compute(PROMPT[:up_to])
    )
    source = TreeStand()
    source.tree.checkpoint(req, up_to=2 * PAGE)
    source.save_all()
    assert len(source.store.arena_pages) == saved_pages


@pytest.mark.parametrize(
    "state",
    [
        {"session": object()},
        {"beam_group": object()},
        {"input_embeds": [[0.0]]},
        {"positional_embed_overrides": object()},
        {"multimodal_inputs": object()},
        {"skip_radix_cache_insert": True},
        {"rid": "HEALTH_CHECK_1"},
    ],
)
def test_kv_that_tokens_alone_do_not_tell_is_not_asked_for(state: dict[str, Any]) -> None:
    plain = {
        "session": None,
        "beam_group": None,
        "input_embeds": None,
        "positional_embed_overrides": None,
        "multimodal_inputs": None,
        "skip_radix_cache_insert": False,
        "rid": "r",
    }
    assert is_restorable(SimpleNamespace(**plain))
    assert not is_restorable(SimpleNamespace(**(plain | state)))
