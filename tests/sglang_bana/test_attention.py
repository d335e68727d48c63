from __future__ import annotations

import dataclasses
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from bana.slo.errors import SeamError

with warnings.catch_warnings():
    # SGLang warns at import about accelerators that are not there.
    warnings.simplefilter("ignore")
    from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.layers.radix_attention import AttentionType
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    from sglang_bana.engine.attention import NAME, BanaCpuAttnBackend, register_backend
    from sglang_bana.engine.attention_stand import Heads, Stand, StandPlan, Work, build_stand

SMALL = Heads(query=9, kv=3, dim=64)
HEADS = [SMALL, Heads(query=8, kv=8, dim=32), Heads(query=16, kv=2, dim=80)]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
EXTENDS = {
    "prefix-free": [Work(0, 33)],
    "prefix": [Work(70, 5)],
    "one token behind a prefix": [Work(200, 1)],
    "one token alone": [Work(0, 1)],
    "several blocks": [Work(40, 600)],
    "mixed": [Work(0, 20), Work(129, 1), Work(64, 40), Work(0, 1), Work(3, 3)],
    "nothing new": [Work(0, 9), Work(40, 0), Work(8, 2)],
}
DECODES = {
    "alone": [Work(130, 1)],
    "first": [Work(0, 1)],
    "batch": [Work(length, 1) for length in (5, 640, 31, 64, 1, 300)],
}


def plan(works: list[Work], mode: ForwardMode, heads: Heads = SMALL, **more: Any) -> StandPlan:
    return StandPlan(heads, works, mode, **{"dtype": torch.float32, "layers": 2, **more})


def run_bana(stand: Stand) -> list[Tensor]:
    return stand.run(BanaCpuAttnBackend(stand.runner))


def assert_like_torch_native(stand: Stand, tolerance: float) -> None:
    want = stand.run(TorchNativeAttnBackend(stand.runner))
    got = run_bana(stand)
    for ours, theirs in zip(got, want, strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("works", EXTENDS.values(), ids=EXTENDS.keys())
def test_extend_agrees_with_torch_native(
    works: list[Work], heads: Heads, dtype: torch.dtype
) -> None:
    stand = build_stand(plan(works, ForwardMode.EXTEND, heads, dtype=dtype), seed=1)

    assert_like_torch_native(stand, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("works", DECODES.values(), ids=DECODES.keys())
def test_decode_agrees_with_torch_native(
    works: list[Work], heads: Heads, dtype: torch.dtype
) -> None:
    stand = build_stand(plan(works, ForwardMode.DECODE, heads, dtype=dtype), seed=1)

    assert_like_torch_native(stand, TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("mode", "works"), [(ForwardMode.MIXED, "mixed"), (ForwardMode.SPLIT_PREFILL, "prefix")]
)
def test_other_extend_modes_agree_with_torch_native(mode: ForwardMode, works: str) -> None:
    assert_like_torch_native(build_stand(plan(EXTENDS[works], mode), seed=2), 1e-5)


@pytest.mark.parametrize("window", [1, 10, 100, 5000])
@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.DECODE])
def test_sliding_window_agrees_with_torch_native(mode: ForwardMode, window: int) -> None:
    works = [Work(40, 600), Work(0, 20)] if mode is ForwardMode.EXTEND else DECODES["batch"]
    options = {"sliding_window_size": window}
    stand = build_stand(plan(works, mode), seed=3, layer_options=options)

    assert_like_torch_native(stand, 1e-5)


def test_encoder_only_attention_agrees_with_torch_native() -> None:
    options = {"attn_type": AttentionType.ENCODER_ONLY}
    works = [Work(0, 30), Work(0, 700)]
    stand = build_stand(plan(works, ForwardMode.EXTEND), seed=4, layer_options=options)

    assert_like_torch_native(stand, 1e-5)


@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.DECODE])
@pytest.mark.parametrize("prefix", [0, 90])
def test_another_value_size_agrees_with_torch_native(mode: ForwardMode, prefix: int) -> None:
    heads = Heads(query=8, kv=4, dim=48, value_dim=32)
    works = [Work(prefix, 40 if mode is ForwardMode.EXTEND else 1)]

    assert_like_torch_native(build_stand(plan(works, mode, heads), seed=5), 1e-5)


@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.DECODE])
def test_a_pool_of_another_type_agrees_with_torch_native(mode: ForwardMode) -> None:
    works = [Work(50, 9 if mode is ForwardMode.EXTEND else 1)]
    more = {"dtype": torch.bfloat16, "kv_dtype": torch.float8_e4m3fn}

    assert_like_torch_native(build_stand(plan(works, mode, **more), seed=6), 2e-2)


@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.DECODE])
def test_the_pool_holds_the_same_bits_as_with_torch_native(mode: ForwardMode) -> None:
    works = EXTENDS["mixed"] if mode is ForwardMode.EXTEND else DECODES["batch"]
    ours, theirs = (build_stand(plan(works, mode), seed=7) for _ in range(2))
    before = [buffer.clone() for buffer in ours.runner.token_to_kv_pool.k_buffer]
    run_bana(ours)
    theirs.run(TorchNativeAttnBackend(theirs.runner))

    for name in ("k_buffer", "v_buffer"):
        pairs = zip(
            getattr(ours.runner.token_to_kv_pool, name),
            getattr(theirs.runner.token_to_kv_pool, name),
            strict=True,
        )
        assert all(torch.equal(mine, their) for mine, their in pairs)
    assert not torch.equal(before[0], ours.runner.token_to_kv_pool.k_buffer[0])


@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.DECODE])
def test_nothing_is_written_when_not_asked(mode: ForwardMode) -> None:
    stand = build_stand(plan([Work(20, 1)], mode), seed=8)
    pool = stand.runner.token_to_kv_pool
    before = pool.k_buffer[0].clone(), pool.v_buffer[0].clone()
    backend = BanaCpuAttnBackend(stand.runner)
    backend.init_forward_metadata(stand.batch)
    backend.forward(*stand.inputs[0], stand.layers[0], stand.batch, save_kv_cache=False)

    assert torch.equal(before[0], pool.k_buffer[0])
    assert torch.equal(before[1], pool.v_buffer[0])


def alone(stand: Stand, index: int) -> Stand:
    """The stand with only the request `index` in its batch."""
    batch, works = dataclasses.replace(stand.batch), slice(index, index + 1)
    counts = batch.extend_seq_lens
    counts = torch.ones_like(batch.seq_lens) if counts is None else counts
    last = int(counts[: index + 1].sum())
    tokens = slice(last - int(counts[index]), last)
    batch.batch_size = 1
    for name in ("req_pool_indices", "seq_lens", "extend_prefix_lens", "extend_seq_lens"):
        whole = getattr(batch, name)
        setattr(batch, name, None if whole is None else whole[works])
    batch.out_cache_loc = batch.out_cache_loc[tokens]
    inputs = tuple((q[tokens], k[tokens], v[tokens]) for q, k, v in stand.inputs)
    return dataclasses.replace(stand, batch=batch, inputs=inputs)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.DECODE])
def test_a_result_is_bitwise_the_same_in_any_batch(
    mode: ForwardMode, heads: Heads, dtype: torch.dtype, threads: int
) -> None:
    works = EXTENDS["mixed"] if mode is ForwardMode.EXTEND else DECODES["batch"]
    stand = build_stand(plan(works, mode, heads, dtype=dtype), seed=9)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = run_bana(stand)
        again = run_bana(stand)
        apart = [run_bana(alone(stand, index)) for index in range(len(works))]
    finally:
        torch.set_num_threads(before)

    for layer, whole in enumerate(together):
        assert torch.equal(whole, again[layer])
        assert torch.equal(whole, torch.cat([outs[layer] for outs in apart]))


def test_a_result_does_not_depend_on_where_its_rows_lie() -> None:
    scattered = build_stand(plan([Work(300, 7)], ForwardMode.EXTEND), seed=10)
    table = scattered.runner.req_to_token_pool.req_to_token
    rows = table[1].long()
    moved = build_stand(plan([Work(300, 7)], ForwardMode.EXTEND), seed=10)
    other = torch.arange(16, 16 + len(rows))
    for name in ("k_buffer", "v_buffer"):
        old, new = (getattr(s.runner.token_to_kv_pool, name) for s in (scattered, moved))
        for source, target in zip(old, new, strict=True):
            target[other] = source[rows]
    moved.runner.req_to_token_pool.req_to_token[1] = other
    moved.batch.out_cache_loc = other[300:]

    for one, two in zip(run_bana(scattered), run_bana(moved), strict=True):
        assert torch.equal(one, two)


class LateLoad:
    """A layer counter whose wait is what brings the layer's prefix into the pool."""

    def __init__(self, pool: Any) -> None:
        self.waited: list[int] = []
        self._pool = pool
        self._loaded = [
            (k.clone(), v.clone()) for k, v in zip(pool.k_buffer, pool.v_buffer, strict=True)
        ]
        for buffer in (*pool.k_buffer, *pool.v_buffer):
            buffer.zero_()

    def wait_until(self, layer: int) -> None:
        if layer not in self.waited:
            self.waited.append(layer)
            pairs = zip(
                (self._pool.k_buffer, self._pool.v_buffer), self._loaded[layer], strict=True
            )
            for buffers, loaded in pairs:
                absent = buffers[layer] == 0
                buffers[layer][absent] = loaded[absent]


@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.DECODE])
def test_reading_waits_for_the_layers_load(mode: ForwardMode) -> None:
    works = [Work(60, 4 if mode is ForwardMode.EXTEND else 1)]
    want = run_bana(build_stand(plan(works, mode), seed=11))
    stand = build_stand(plan(works, mode), seed=11)
    load = LateLoad(stand.runner.token_to_kv_pool)
    stand.runner.token_to_kv_pool.register_layer_transfer_counter(load)

    got = run_bana(stand)

    assert load.waited == [0, 1]
    assert all(torch.equal(mine, full) for mine, full in zip(got, want, strict=True))


def test_one_backend_serves_inference_mode_and_plain_calls() -> None:
    stand = build_stand(plan([Work(30, 6)], ForwardMode.EXTEND), seed=12)
    backend = BanaCpuAttnBackend(stand.runner)
    with torch.inference_mode():
        inside = stand.run(backend)
    with torch.no_grad():
        outside = stand.run(backend)

    assert all(torch.equal(a, b) for a, b in zip(inside, outside, strict=True))


def test_an_idle_batch_has_no_rows() -> None:
    stand = build_stand(plan([Work(9, 1)], ForwardMode.DECODE), seed=13)
    stand.batch.forward_mode = ForwardMode.IDLE
    backend = BanaCpuAttnBackend(stand.runner)
    backend.init_forward_metadata(stand.batch)
    query, key, value = (tensor[:0] for tensor in stand.inputs[0])

    assert backend.forward(query, key, value, stand.layers[0], stand.batch).shape == (0, 9 * 64)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"logit_cap": 30.0}, "logit_cap 30.0"),
        ({"is_cross_attention": True}, "cross attention"),
        ({"attn_type": AttentionType.DECODER_BIDIRECTIONAL}, "decoder_bidirectional"),
        ({"use_irope": True}, "chunked"),
    ],
)
@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.DECODE])
def test_a_layer_it_cannot_compute_is_refused(
    options: dict[str, Any], said: str, mode: ForwardMode
) -> None:
    stand = build_stand(plan([Work(9, 1)], mode), seed=14, layer_options=options)

    with pytest.raises(SeamError, match=f"{said}.*--attention-backend torch_native"):
        run_bana(stand)


def test_inputs_it_does_not_know_are_refused() -> None:
    stand = build_stand(plan([Work(9, 1)], ForwardMode.DECODE), seed=15)
    backend = BanaCpuAttnBackend(stand.runner)
    backend.init_forward_metadata(stand.batch)

    with pytest.raises(SeamError, match="sinks"):
        backend.forward(*stand.inputs[0], stand.layers[0], stand.batch, sinks=torch.zeros(9))


@pytest.mark.parametrize("mode", [ForwardMode.TARGET_VERIFY, ForwardMode.DLLM_EXTEND])
def test_speculative_batches_are_refused(mode: ForwardMode) -> None:
    stand = build_stand(plan([Work(9, 2)], mode), seed=16)

    with pytest.raises(SeamError, match=f"{mode.name}.*speculative"):
        run_bana(stand)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"device": "cuda"}, "device 'cuda'"),
        ({"use_mla_backend": True}, "MLA"),
        ({"model_config": SimpleNamespace(is_encoder_decoder=True)}, "encoder-decoder"),
        ({"token_to_kv_pool": object.__new__(SWAKVPool)}, "SWAKVPool.*--disable-hybrid-swa-memory"),
    ],
)
def test_a_runner_it_cannot_serve_is_refused(change: dict[str, Any], said: str) -> None:
    stand = build_stand(plan([Work(9, 1)], ForwardMode.DECODE), seed=17)
    runner = SimpleNamespace(**{**vars(stand.runner), **change})

    with pytest.raises(SeamError, match=said):
        BanaCpuAttnBackend(runner)


def test_another_layout_of_the_pool_is_refused() -> None:
    stand = build_stand(plan([Work(9, 1)], ForwardMode.DECODE), seed=18)
    stand.runner.token_to_kv_pool.kv_cache_layout = "hnd"

    with pytest.raises(SeamError, match="'hnd'"):
        BanaCpuAttnBackend(stand.runner)


def test_a_batch_that_was_not_planned_is_refused() -> None:
    stand = build_stand(plan([Work(9, 2)], ForwardMode.EXTEND), seed=19)
    backend = BanaCpuAttnBackend(stand.runner)
    with pytest.raises(SeamError, match="before init_forward_metadata"):
        backend.forward(*stand.inputs[0], stand.layers[0], stand.batch)

    backend.init_forward_metadata(stand.batch)
    longer = (torch.cat([tensor, tensor]) for tensor in stand.inputs[0])
    with pytest.raises(SeamError, match="4 query rows but the batch was planned for 2"):
        backend.forward(*longer, stand.layers[0], stand.batch)


def test_graphs_are_refused() -> None:
    stand = build_stand(plan([Work(9, 1)], ForwardMode.DECODE), seed=20)

    with pytest.raises(SeamError, match="graph"):
        BanaCpuAttnBackend(stand.runner).init_cpu_graph_state(8, 8)


def test_registering_twice_leaves_one_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ATTENTION_BACKENDS, NAME, raising=False)
    register_backend()
    register_backend()

    assert ATTENTION_BACKENDS[NAME] is BanaCpuAttnBackend
    assert ATTENTION_BACKEND_CHOICES.count(NAME) == 1


def test_a_name_taken_by_another_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ATTENTION_BACKENDS, NAME, object)

    with pytest.raises(SeamError, match="already has an attention backend 'bana_cpu'"):
        register_backend()
