"""SGLang's batch without tensors, and a model whose next token tells where it was computed."""

from __future__ import annotations

from typing import Any

from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.mem_cache.common import (
    checkpoint_kv_cache,
    evict_from_tree_cache,
    release_kv_cache,
)
from sglang.srt.model_executor.forward_batch_info import ForwardMode


class FakeBatch(ScheduleBatch):
    """Keeps SGLang's retraction and capacity checks; rows of KV are lists of page numbers."""

    def prepare_for_extend(self) -> None:
        self.forward_mode = ForwardMode.EXTEND
        self.prefix_lens = [req.prefix_len for req in self.reqs]
        self.extend_lens = [req.extend_len for req in self.reqs]
        self.extend_num_tokens = sum(self.extend_lens)
        page = self.tree_cache.page_size
        evict_from_tree_cache(self.tree_cache, self.extend_num_tokens + len(self.reqs) * page)
        for req in self.reqs:
            if req.kv.req_pool_idx is None:
                req.kv.req_pool_idx = self.req_to_token_pool.take()
                path = req.last_node.path()
                assert len(path) * page == req.prefix_len == req.kv.cache_protected_len
                self._row(req).extend(node.page for node in path)
            assert req.extend_len > 0
            self._grow(req, req.extend_end)
            req.is_retracted = False
            req.extend_batch_idx += 1

    def prepare_for_decode(self) -> None:
        self.forward_mode = ForwardMode.DECODE
        evict_from_tree_cache(self.tree_cache, self.new_tokens_required_next_decode())
        for req in self.reqs:
            self._grow(req, req.kv.kv_committed_len + 1)
            req.decode_batch_idx += 1

    def mix_with_running(self, running_batch: FakeBatch) -> None:
        self.forward_mode = ForwardMode.MIXED
        for req in running_batch.reqs:
            req.refresh_fill_ids()
            req.extend_end = req.kv.kv_committed_len
        self.reqs = self.reqs + running_batch.reqs
        self.prefix_lens += [req.kv.kv_committed_len - 1 for req in running_batch.reqs]
        self.extend_lens += [1] * len(running_batch.reqs)

    def filter_batch(
        self, reqs_to_exclude: Any = None, keep_indices: list[int] | None = None
    ) -> None:
        if keep_indices is None:
            left_out = reqs_to_exclude or ()
            kept = [req for req in self.reqs if not req.finished() and req not in left_out]
        else:
            kept = [self.reqs[index] for index in keep_indices]
        self.reqs = kept

    def merge_batch(self, other: FakeBatch) -> None:
        self.reqs = self.reqs + other.reqs

    def copy(self) -> FakeBatch:
        return FakeBatch(
            reqs=self.reqs[:],
            forward_mode=self.forward_mode,
            extend_lens=self.extend_lens,
            prefix_lens=self.prefix_lens,
            decoding_reqs=self.decoding_reqs,
        )

    def _row(self, req: Req) -> list[int]:
        row: list[int] = self.req_to_token_pool.taken[req.kv.req_pool_idx]
        return row

    def _grow(self, req: Req, length: int) -> None:
        lacking = -(-length // self.tree_cache.page_size) - len(self._row(req))
        self._row(req).extend(self.token_to_kv_pool_allocator.alloc(max(lacking, 0)))
        req.kv.kv_allocated_len = req.kv.kv_committed_len = length


def compute(batch: ScheduleBatch) -> list[int]:
    """The forward pass: each request's token stands for the place that it was computed for."""
    assert len(set(batch.reqs)) == len(batch.reqs)
    assert all(req.kv.holds_kv for req in batch.reqs)
    return [req.kv.kv_committed_len for req in batch.reqs]


def commit(batch: ScheduleBatch, tokens: list[int], tree: Any) -> None:
    """What SGLang does with a result that has arrived, for prompts, decodes or both."""
    is_prompts = batch.forward_mode.is_extend()
    for req, token in zip(batch.reqs, tokens, strict=True):
        if req.is_retracted or (req.finished() and req.inflight_middle_chunks <= 0):
            continue
        if is_prompts and req.inflight_middle_chunks > 0:
            req.inflight_middle_chunks -= 1
            continue
        assert req.discard_output_reason is None, f"{req.rid} is answered with an error"
        assert token == req.seqlen, f"{req.rid}: token {token} stands at {req.seqlen}"
        req.output_ids.append(token)
        req.update_finish_state()
        if req.finished():
            release_kv_cache(req, tree, checkpoint=True)
        elif is_prompts and req not in (batch.decoding_reqs or ()):
            checkpoint_kv_cache(req, tree)
