"""Cases whose answer can be summed by hand, and queueing theory's."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from bana.eval.requests import Ending, Limits, Observed
from bana.eval.simulator.engine_spec import Overtaking
from bana.eval.simulator.log import Happening
from bana.slo.steps import StepModel

Make = Callable[..., Any]


def first_s(seen: Observed) -> float:
    assert seen.first_s is not None
    return seen.first_s


def test_a_prompt_alone_takes_the_sum_of_its_chunks(server: Any, ask: Make) -> None:
    # Chunks of 64, 64 and 22 tokens, 10 ms each beside them.
    served = server.but(chunk_tokens=64).serve([ask(due_s=1.0, prompt=150)])
    assert first_s(served.observed[0]) == pytest.approx(1.0 + 3 * 0.010 + 0.150)


def test_an_answer_of_n_tokens_takes_n_minus_one_decodes(server: Any, ask: Make) -> None:
    served = server.serve([ask(prompt=100, output=5)])
    [seen] = served.observed
    assert seen.output_tokens == len(seen.event_times_s) == 5
    assert seen.event_times_s == pytest.approx([0.110 + 0.012 * n for n in range(5)])
    assert seen.ending is Ending.FINISHED
    assert seen.end_s == seen.last_s


def test_attention_pays_for_what_each_token_sees(server: Any, ask: Make) -> None:
    times = StepModel(0.0, 0.0, 0.001, 0.0, 0.0, 0.01)
    served = server.but(times=times, chunk_tokens=8).serve([ask(prompt=12, output=3)])
    [seen] = served.observed
    # 1 + 2 + … + 12 tokens are seen whatever the chunks; decodes see 13, then 14 tokens.
    assert seen.event_times_s == pytest.approx([0.078, 0.078 + 0.13, 0.078 + 0.13 + 0.14])


def test_prompts_share_a_chunk_and_decodes_a_step(server: Any, ask: Make) -> None:
    served = server.serve([ask(prompt=100, output=2), ask(prompt=50, output=2)])
    # One step of 150 tokens, then one decode step of two requests.
    for seen in served.observed:
        assert seen.event_times_s == pytest.approx([0.160, 0.160 + 0.014])


def test_a_cut_prompt_shares_its_last_chunk_with_the_next(server: Any, ask: Make) -> None:
    served = server.but(chunk_tokens=64).serve([ask(prompt=96), ask(prompt=32)])
    assert [first_s(seen) for seen in served.observed] == pytest.approx([0.148, 0.148])


def test_prompts_first_stalls_decodes_and_mixing_does_not(server: Any, ask: Make) -> None:
    asks = [ask(prompt=10, output=3), ask(due_s=0.021, prompt=100)]
    stalled = server.serve(asks).observed[0].event_times_s
    # The prompt arrives in the first decode step, and runs for 110 ms before the second.
    assert stalled == pytest.approx([0.020, 0.032, 0.032 + 0.110 + 0.012])
    mixed = server.but(
        can_mix=True,
        governor="fixed_chunk",
        options={"governor": {"chunk_tokens": 100, "decodes": 0}},
    ).serve(asks)
    assert mixed.observed[0].event_times_s == pytest.approx([0.020, 0.032, 0.032 + 0.112])


def test_a_tighter_deadline_overtakes_between_chunks(server: Any, ask: Make) -> None:
    asks = [
        ask(prompt=200, limits=Limits(ttft_s=60.0)),
        ask(due_s=0.001, prompt=10, limits=Limits(ttft_s=1.0)),
    ]
    overtaking = server.but(order="edf", chunk_tokens=64)
    long, short = overtaking.serve(asks).observed
    # A step of 10 tokens and whole pages of what goes on, 52 tokens.
    assert first_s(short) == pytest.approx(0.074 + 0.010 + 0.062)
    assert first_s(long) > first_s(short)
    long, short = overtaking.but(overtaking=Overtaking.NEVER).serve(asks).observed
    # Stock SGLang: the cut prompt goes on, and the short one joins its last chunk.
    assert first_s(short) == first_s(long) == pytest.approx(3 * 0.074 + 0.010 + 0.018)


def test_what_is_cached_is_not_computed_again(server: Any, ask: Make) -> None:
    asks = [ask(prompt=100, shared=80), ask(due_s=1.0, prompt=100, shared=80)]
    first, second = server.serve(asks).observed
    assert (first.cached_tokens, second.cached_tokens) == (0, 80)
    assert first_s(second) == pytest.approx(1.0 + 0.010 + 0.020)
    cold = server.but(has_prefix_cache=False).serve(asks).observed[1]
    assert (cold.cached_tokens, first_s(cold)) == (0, pytest.approx(1.110))


def test_the_last_token_of_a_cached_prompt_is_computed(server: Any, ask: Make) -> None:
    asks = [ask(prompt=80, shared=80), ask(due_s=1.0, prompt=80, shared=80)]
    assert server.serve(asks).observed[1].cached_tokens == 76


def test_a_cached_prefix_that_is_not_used_is_evicted_first(server: Any, ask: Make) -> None:
    # 40 + 40 tokens of KV hold two prompts; the third drives out the one used longest ago.
    small = server.but(kv_tokens=104)
    asks = [
        ask(prompt=40, shared=40),
        ask(due_s=1.0, prompt=40),
        ask(due_s=2.0, prompt=41, shared=40),
        ask(due_s=3.0, prompt=40),
        ask(due_s=4.0, prompt=42, shared=40),
    ]
    cached = [seen.cached_tokens for seen in small.serve(asks).observed]
    assert cached == [0, 0, 40, 0, 40]


def test_kv_overflow_retracts_whoever_has_the_fewest_tokens(server: Any, ask: Make) -> None:
    # Open-ended answers are expected to be short, so that three begin together and overflow.
    small = server.but(kv_tokens=180, has_prefix_cache=False)
    asks = [
        ask(prompt=40, output=60, is_open_ended=True),
        ask(due_s=0.055, prompt=40, output=60, is_open_ended=True),
    ]
    served = small.serve(asks)
    retracted = [e.subject for e in served.log.kept if e.kind is Happening.RETRACTED]
    assert retracted == [1]
    first, second = served.observed
    assert [seen.ending for seen in served.observed] == [Ending.FINISHED] * 2
    assert first.output_tokens == second.output_tokens == 60
    # It waited for the first to end, and its tokens were computed anew with its prompt.
    assert (
        max(b - a for a, b in zip(second.event_times_s, second.event_times_s[1:], strict=False))
        > 0.1
    )


def test_a_batch_that_is_full_admits_nobody(server: Any, ask: Make) -> None:
    served = server.but(max_running=2).serve([ask(output=10) for _ in range(3)])
    assert max(e.decodes for e in served.log.kept) == 2
    last = served.observed[2]
    assert first_s(last) >= served.observed[0].end_s


def test_whoever_goes_away_gives_its_place_to_others(server: Any, ask: Make) -> None:
    one = server.but(max_running=1)
    asks = [ask(prompt=10, output=1000, cancel_after_s=0.1), ask(prompt=10), ask(prompt=10)]
    asks[1] = ask(prompt=10, cancel_after_s=0.05)
    away, waiting, served = one.serve(asks).observed
    assert (away.ending, away.end_s) == (Ending.CANCELLED, pytest.approx(0.1))
    assert away.last_s is not None
    assert away.last_s <= 0.1
    assert (waiting.ending, waiting.output_tokens) == (Ending.CANCELLED, 0)
    assert served.ending is Ending.FINISHED
    assert first_s(served) < 0.15


def test_what_is_not_over_in_time_is_unfinished(server: Any, ask: Make) -> None:
    served = server.but(drain_s=0.5).serve([ask(prompt=10, output=1000), ask(prompt=10)])
    seen = served.observed[0]
    assert (seen.ending, seen.end_s) == (Ending.UNFINISHED, 0.5)
    assert 0 < seen.output_tokens < 1000


def test_an_infeasible_request_is_rejected_at_once(server: Any, ask: Make) -> None:
    asks = [
        ask(prompt=2000, limits=Limits(ttft_s=10.0)),
        ask(due_s=0.5, prompt=10, limits=Limits(ttft_s=0.1)),
        ask(due_s=0.5, prompt=10, limits=Limits(ttft_s=9.0)),
    ]
    seen = server.but(admission="reject_infeasible", chunk_tokens=64).serve(asks).observed
    assert [one.ending for one in seen] == [Ending.FINISHED, Ending.REJECTED, Ending.FINISHED]
    assert (seen[1].status, seen[1].end_s) == (429, 0.5)


def test_waiting_is_that_of_an_m_d_1_queue(server: Any, ask: Make) -> None:
    """Pollaczek and Khinchine: mean wait = rho / (2 (1 - rho)) services, all of one length."""
    rng, now_s, asks = Random(1), 0.0, []
    service_s, rho = 0.060, 0.7
    for _ in range(20_000):
        now_s += rng.expovariate(rho / service_s)
        asks.append(ask(due_s=now_s, prompt=50))
    # A batch of one prompt is the queue's single server.
    one = server.but(chunk_tokens=50, max_running=1, has_prefix_cache=False, page_tokens=1)
    seen = one.serve(asks).observed
    waits = [first_s(s) - s.due_s - service_s for s in seen]
    assert statistics.fmean(waits) == pytest.approx(service_s * rho / (2 * (1 - rho)), rel=0.05)


def test_pages_for_one_prompt_are_not_taken_from_the_next_ones_prefix(
    server: Any, ask: Make
) -> None:
    # Two prefixes lie idle, the one that is asked for again the longer. The long prompt needs more
    # pages than are free: the other prefix has to go.
    asks = [
        ask(prompt=41, shared=40),
        ask(due_s=1.0, prompt=40),
        ask(due_s=2.0, prompt=64),
        ask(due_s=2.0, prompt=42, shared=40),
    ]
    seen = server.but(kv_tokens=140).serve(asks).observed
    assert [one.cached_tokens for one in seen] == [0, 0, 0, 40]
    assert first_s(seen[3]) == pytest.approx(2.0 + 0.010 + 0.066)
