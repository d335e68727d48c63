"""A long prompt and those that are tighter: side by side, one before the other, and how many."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bana.slo.governor import FixedChunk, FixedChunkOptions
from bana.slo.order import ORDERS

from .asks import ask
from .books import check_books
from .fake_engine import FakeEngine, build_engine, replace_policies

CHUNK_TOKENS = 16


def half_compute(engine: FakeEngine, rid: str = "loose", due_s: float = 90.0) -> Any:
    """A prompt of 60 tokens of which one chunk is computed."""
    req = ask(rid, 60, due_s=due_s)
    assert engine.step(req) == [rid]
    assert engine.chunked_req is req
    return req


@pytest.mark.parametrize("is_overlapping", [False, True])
def test_a_half_computed_prompt_lets_a_tighter_one_pass(is_overlapping: bool) -> None:
    engine = build_engine("edf", "stock", is_overlapping=is_overlapping)
    loose, tight = half_compute(engine), ask("tight", 40, due_s=5.0)
    assert engine.step(tight) == ["tight"]
    assert (engine.queue(), engine.conductor.effects.count_started()) == (["loose"], 1)
    assert len(loose.bana.lock.node.path()) * engine.page_size == CHUNK_TOKENS
    check_books(engine)
    engine.run_dry()
    counts = engine.conductor.counts
    assert (counts.yields, counts.resumes, counts.given_up, counts.shares) == (1, 1, 0, 0)
    assert engine.conductor.outcomes.report()["standard"].yielded == 1
    assert (len(loose.output_ids), len(tight.output_ids)) == (4, 4)
    # Nothing was computed twice.
    assert engine.computed == {"loose": 60, "tight": 40}
    assert (loose.retraction_count, loose.bana.lock) == (0, None)


def test_nobody_passes_who_is_looser() -> None:
    engine = build_engine("edf", "stock")
    half_compute(engine)
    assert engine.step(ask("looser", 40, due_s=95.0)) == ["loose"]
    assert engine.conductor.counts.yields == 0


def test_what_yielded_is_looser_than_who_passes_but_not_than_the_next() -> None:
    engine = build_engine("edf", "stock")
    half_compute(engine)
    engine.step(ask("tight", 20, due_s=5.0), ask("looser", 20, due_s=95.0))
    assert engine.step() == ["tight", "loose"]
    assert engine.queue() == ["looser"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("return_logprob", True),
        ("return_hidden_states", True),
        ("session", SimpleNamespace(streaming=False)),
        ("beam_group", object()),
        ("input_embeds", [[0.0]]),
        ("positional_embed_overrides", object()),
        ("multimodal_inputs", object()),
        ("skip_radix_cache_insert", True),
        ("finished_reason", object()),
        ("lock", None),
    ],
)
def test_who_would_lose_more_than_time_is_not_separated(field: str, value: object) -> None:
    engine = build_engine("edf", "stock")
    loose, effects = half_compute(engine), engine.conductor.effects
    assert effects.can_separate(loose)
    setattr(loose, field, value)
    assert not effects.can_separate(loose)


@pytest.mark.parametrize(
    ("name", "answer"), [("supports_prefix_sharing", False), ("supports_mamba", True)]
)
def test_a_tree_that_keeps_no_prefix_separates_nobody(
    name: str, answer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build_engine("edf", "stock")
    loose = half_compute(engine)
    monkeypatch.setattr(engine.tree_cache, name, lambda: answer)
    assert not engine.conductor.effects.can_separate(loose)


def test_who_is_about_to_be_aborted_is_not_separated() -> None:
    engine = build_engine("edf", "stock")
    loose = half_compute(engine)
    engine._pending_chunked_abort_req = loose
    assert not engine.conductor.effects.can_separate(loose)


def test_a_plan_keeps_together_what_cannot_be_separated() -> None:
    engine = build_engine("edf", "stock")
    half_compute(engine).return_logprob = True
    assert engine.step(ask("tight", 40, due_s=5.0)) == ["loose"]
    assert engine.conductor.counts.yields == 0


@pytest.mark.parametrize("most", [0, 1, 3])
def test_only_so_many_wait_half_computed(most: int) -> None:
    engine = build_engine("edf", "stock", max_started=most)
    half_compute(engine)
    for index in range(5):
        engine.step(ask(f"tighter {index}", 60, due_s=80.0 - index))
        check_books(engine)
        assert engine.conductor.effects.count_started() == min(index + 1, most)
    assert engine.conductor.counts.yields == most
    engine.run_dry()
    assert sum(engine.computed.values()) == 6 * 60


@pytest.mark.parametrize(("prompt_tokens", "left"), [(1, 12), (4, 12), (5, 8), (12, 4)])
def test_who_fits_beside_a_page_shares_the_chunk(prompt_tokens: int, left: int) -> None:
    engine = build_engine("edf", "stock")
    half_compute(engine)
    assert engine.step(ask("tight", prompt_tokens, due_s=5.0)) == ["loose", "tight"]
    assert engine.computed == {"loose": CHUNK_TOKENS + left, "tight": prompt_tokens}
    counts = engine.conductor.counts
    assert (counts.shares, counts.yields) == (1, 0)
    check_books(engine)


def test_who_fits_beside_no_page_passes_alone() -> None:
    engine = build_engine("edf", "stock")
    half_compute(engine)
    assert engine.step(ask("tight", 13, due_s=5.0)) == ["tight"]
    assert (engine.conductor.counts.shares, engine.conductor.counts.yields) == (0, 1)


def test_of_several_only_those_share_that_fit_in_their_order() -> None:
    engine = build_engine("edf", "stock", chunk_tokens=24)
    half_compute(engine)
    shorts = [ask(f"s{due}", tokens, due_s=due) for due, tokens in ((1, 6), (2, 9), (3, 4))]
    assert engine.step(*shorts) == ["loose", "s1", "s2"]
    assert engine.computed["loose"] == 24 + 4
    engine.run_dry()
    assert engine.computed == {"loose": 60, "s1": 6, "s2": 9, "s3": 4}


def test_what_is_shared_is_the_step_that_the_governor_chose() -> None:
    engine = build_engine()
    fixed = FixedChunk(FixedChunkOptions(chunk_tokens=8))
    replace_policies(engine, order=ORDERS.create("edf"), governor=fixed)
    engine.step(ask("loose", 60, due_s=90.0))
    assert engine.step(ask("tight", 4, due_s=5.0)) == ["loose", "tight"]
    assert engine.computed == {"loose": 8 + 4, "tight": 4}


def test_a_chunk_is_cut_for_the_pass_that_shares_it_only() -> None:
    engine = build_engine("edf", "stock")
    half_compute(engine)
    engine.step(ask("tight", 4, due_s=5.0, new_tokens=1))
    engine.step()
    assert engine.computed["loose"] == 16 + 12 + 16
    assert engine.conductor.counts.shares == 1


def test_without_an_order_nobody_shares_or_yields() -> None:
    engine = build_engine("stock", "prefill_first")
    half_compute(engine)
    assert engine.step(ask("tight", 4, due_s=5.0)) == ["loose"]
    assert (engine.conductor.chunk_limit, engine.conductor.counts.yields) == (None, 0)


def test_who_yielded_comes_back_past_a_full_queue() -> None:
    engine = build_engine("edf", "stock")
    loose = half_compute(engine)
    engine.max_queued_requests = 1
    engine.step(ask("tight", 40, due_s=5.0))
    assert (engine.queue(), engine.aborted) == (["loose"], [])
    engine.run_dry()
    assert len(loose.output_ids) == 4


def test_whose_cached_prefix_has_gone_is_measured_again() -> None:
    engine = build_engine("edf", "stock")
    half_compute(engine)
    tight = ask("tight", 40, due_s=5.0)
    engine.process_input_requests([tight])
    # As if its prefix had been cached when it arrived, and evicted since.
    engine.conductor.room.measure(tight.bana.slot, 40, 36)
    assert engine.step() == ["loose"]
    assert engine.step() == ["tight"]
    assert (engine.conductor.counts.shares, engine.conductor.counts.yields) == (0, 1)


def half_compute_beside_decodes(**more: Any) -> FakeEngine:
    """`loose` is half computed while `old` decodes; some 60 tokens of KV are left."""
    engine = build_engine("edf", "stock", pages=40, **more)
    engine.step(ask("old", 4, new_tokens=60))
    assert "loose" in engine.step(ask("loose", 60, due_s=90.0))
    return engine


def test_who_finds_no_kv_holds_a_chunk_back_every_other_time() -> None:
    engine = half_compute_beside_decodes()
    engine.process_input_requests([ask("tight", 8, due_s=5.0, new_tokens=90)])
    computed = []
    for _ in range(4):
        assert engine.step() == ["loose"]
        computed.append(engine.computed["loose"])
    assert computed == [24, 40, 48, 60]
    assert engine.conductor.counts.shares == 0


def test_for_who_finds_no_kv_a_chunk_yields_every_other_time() -> None:
    engine = half_compute_beside_decodes()
    engine.process_input_requests([ask("tight", 40, due_s=5.0, new_tokens=90)])
    for _ in range(3):
        assert engine.step() == ["loose"]
    assert (engine.conductor.counts.yields, engine.computed["loose"]) == (2, 60)


def test_decodes_in_a_mixed_step_share_no_chunk() -> None:
    engine = half_compute_beside_decodes(is_mixing=True)
    assert engine.step(ask("tight", 8, due_s=5.0, new_tokens=90)) == ["loose", "old"]
    assert engine.conductor.counts.shares == 0
