"""The load of a scheduler, noted once per pass of its loop."""

from __future__ import annotations

import time
from types import SimpleNamespace as Record
from typing import Any

from sglang_bana.engine.load_watch import LoadWatch

DECODE = Record(
    is_extend=lambda: False,
    is_extend_without_speculative=lambda: False,
    is_decode=lambda: True,
    is_target_verify=lambda: False,
)
EXTEND = Record(
    is_extend=lambda: True,
    is_extend_without_speculative=lambda: True,
    is_decode=lambda: False,
    is_target_verify=lambda: False,
)
RESULT = Record(get_num_generated_tokens=lambda batch_size: batch_size)
NOTHING = Record(reqs=[])


def request(length: int, matched: int = 0, extend_end: int | None = None) -> Record:
    return Record(seqlen=length, num_matched_prefix_tokens=matched, extend_end=extend_end)


def extend(requests: list[Any], tokens: int, decoding: list[Any] | None = None) -> Record:
    return Record(
        forward_mode=EXTEND, reqs=requests, extend_num_tokens=tokens, decoding_reqs=decoding
    )


def decode(requests: list[Any]) -> Record:
    return Record(forward_mode=DECODE, reqs=requests, decoding_reqs=None)


class Scheduler:
    """What the watch reads, and a plan to return."""

    def __init__(self) -> None:
        self.waiting_queue: list[Any] = []
        self.grammar_manager = Record(grammar_queue=[])
        self.chunked_req: Any = None
        stats = Record(get_kv_token_stats=lambda: (640, 0.1))
        self.pool_stats_observer = Record(get_pool_stats=lambda: stats, max_total_num_tokens=4096)
        self.plan = Record(batch_to_run=None, running_batch=NOTHING)
        self.results: list[Any] = []

    def get_next_batch_to_run(self, running_batch: Any, last_batch: Any) -> Any:
        return self.plan

    def process_batch_result(self, batch: Any, result: Any) -> None:
        self.results.append(batch)


def watched() -> tuple[Scheduler, LoadWatch]:
    scheduler = Scheduler()
    watch = LoadWatch(scheduler)
    watch.attach()
    return scheduler, watch


def run_pass(scheduler: Scheduler, batch: Any, running: Any = NOTHING) -> None:
    scheduler.plan = Record(batch_to_run=batch, running_batch=running)
    assert scheduler.get_next_batch_to_run(running_batch=None, last_batch=None) is scheduler.plan
    if batch is not None:
        scheduler.process_batch_result(batch, RESULT)
        assert scheduler.results[-1] is batch


def test_waiting_requests_count_with_their_uncached_tokens() -> None:
    scheduler, watch = watched()
    scheduler.waiting_queue = [request(100, matched=64), request(50)]
    scheduler.grammar_manager.grammar_queue = [request(7)]
    run_pass(scheduler, None)
    assert watch.newest.waiting_requests == 3
    assert watch.newest.waiting_uncached_tokens == 36 + 50 + 7
    assert watch.newest.used_tokens == 640
    assert watch.capacity_tokens == 4096


def test_an_emptied_queue_is_seen_at_once_however_long_it_was() -> None:
    scheduler, watch = watched()
    scheduler.waiting_queue = [request(10)] * 10_000
    run_pass(scheduler, None)
    assert watch.newest.waiting_uncached_tokens == 100_000
    scheduler.waiting_queue = []
    run_pass(scheduler, None)
    assert watch.newest.waiting_uncached_tokens == 0


def test_a_long_queue_is_not_summed_at_every_pass() -> None:
    scheduler, watch = watched()
    scheduler.waiting_queue = [request(10)] * 100_000
    run_pass(scheduler, None)
    scheduler.waiting_queue = [request(20)] * 100_000
    run_pass(scheduler, None)
    assert watch.newest.waiting_uncached_tokens == 1_000_000


def test_what_a_queue_was_does_not_outlast_it() -> None:
    scheduler, watch = watched()
    scheduler.waiting_queue = [request(10)] * 100_000
    run_pass(scheduler, None)
    scheduler.waiting_queue = [request(10)]
    time.sleep(0.01)
    run_pass(scheduler, None)
    assert watch.newest.waiting_uncached_tokens == 10


def test_a_sudden_queue_is_seen_at_once() -> None:
    scheduler, watch = watched()
    run_pass(scheduler, None)
    scheduler.waiting_queue = [request(10)] * 10_000
    run_pass(scheduler, None)
    assert watch.newest.waiting_uncached_tokens == 100_000


def test_a_chunked_request_that_sits_a_step_out_is_still_running() -> None:
    scheduler, watch = watched()
    scheduler.chunked_req = request(1000, extend_end=256)
    running = decode([1, 2])
    run_pass(scheduler, running, running)
    assert watch.newest.running_requests == 3
    assert watch.newest.prefilling_tokens == 744


def test_a_chunk_in_flight_and_the_rest_of_its_prompt_are_prefilling() -> None:
    scheduler, watch = watched()
    long = request(1000, extend_end=256)
    scheduler.chunked_req = long
    running = decode([1, 2])
    run_pass(scheduler, extend([long], 128), running)
    assert watch.newest.prefilling_tokens == 128 + 744
    assert watch.newest.running_requests == 3
    scheduler.chunked_req = None
    run_pass(scheduler, running, running)
    assert watch.newest.prefilling_tokens == 0
    assert watch.newest.running_requests == 2


def test_totals_count_prompts_and_generated_tokens_once() -> None:
    scheduler, watch = watched()
    run_pass(scheduler, extend([request(40)], 40))
    run_pass(scheduler, decode([1, 2, 3]), decode([1, 2, 3]))
    run_pass(scheduler, extend([request(30), 1, 2], 32, decoding=[1, 2]))
    run_pass(scheduler, None)
    assert watch.newest.prefill_tokens_total == 40 + 30
    assert watch.newest.decode_tokens_total == 3 + 2


def test_the_pass_time_moves_on() -> None:
    scheduler, watch = watched()
    before = watch.newest.pass_s
    run_pass(scheduler, None)
    assert watch.newest.pass_s > before
