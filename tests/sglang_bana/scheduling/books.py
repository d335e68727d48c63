"""What holds between any two steps of an engine."""

from __future__ import annotations

from sglang_bana.engine.scheduling.waiting_room import Standing

from .fake_engine import FakeEngine


def check_books(engine: FakeEngine) -> None:
    """Every request, page, row and lock is where it belongs, once."""
    pool, rows, tree = (
        engine.token_to_kv_pool_allocator,
        engine.req_to_token_pool,
        engine.tree_cache,
    )
    waiting, chunked = engine.waiting_queue, engine.chunked_req
    running = {
        *engine.running_batch.reqs,
        *(() if engine.last_batch is None else engine.last_batch.reqs),
        # Whose load failed is in no batch until the result of its own is there.
        *(() if engine.restorer is None else engine.recovery.lost),
    }
    running = {req for req in running if req.kv.holds_kv}
    assert len(set(waiting)) == len(waiting)
    assert not running & set(waiting)
    assert chunked not in waiting
    assert all(not req.kv.holds_kv for req in waiting)
    holders = {*running, *([] if chunked is None else [chunked])}
    assert {req.kv.req_pool_idx for req in holders} == set(rows.taken)
    protected = {req: req.kv.cache_protected_len // pool.page_size for req in holders}
    owned = [p for req in holders for p in rows.taken[req.kv.req_pool_idx][protected[req] :]]
    owned += [node.page for node in tree.nodes()]
    owned += pool.free_numbers
    assert sorted(owned) == list(range(engine.setup.pages))
    assert engine.conductor is not None
    started = engine.conductor.effects.list_started()
    assert set(started) <= set(waiting)
    standings: list[Standing] = [req.bana for req in waiting]
    locks = [req.lock for req in holders] + [req.bana.lock for req in started]
    assert {id(lock) for lock in tree.locks} == {id(lock) for lock in locks}
    assert len(tree.locks) == len(locks)
    assert [s.lock is not None for s in standings] == [req in started for req in waiting]
    slots = [s.slot for s in standings] + ([] if chunked is None else [chunked.bana.slot])
    assert len(set(slots)) == len(slots)
