"""Adapters of one model, each with KV of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from .conftest import StartInstance
from .store_asks import (
    CHUNK,
    ask,
    await_saved,
    check_alike,
    empty_device,
    hit_of,
    linked,
    prompt_of,
    run_store,
    whole_pages,
)

pytestmark = [pytest.mark.engine, pytest.mark.full, pytest.mark.timeout(900)]

# SGLang pins the memory of whatever belongs to an adapter, which torch refuses without a GPU. Its
# own computation with adapters needs none.
UNPINNED = """
import functools, torch
torch.Tensor.pin_memory = lambda tensor, *_: tensor
def unpinned(make):
    return functools.wraps(make)(lambda *args, pin_memory=False, **more: make(*args, **more))
for name in ("tensor", "zeros", "empty"):
    setattr(torch, name, unpinned(getattr(torch, name)))
"""
RANK, LAYERS, HIDDEN = 8, 4, 128
WIDTHS = {"q_proj": 256, "v_proj": 128}


def write_adapter(folder: Path, seed: int) -> Path:
    """One for the fixture models, strong enough to change what they say."""
    folder.mkdir()
    rng = np.random.Generator(np.random.PCG64(seed))
    weights = {}
    for layer in range(LAYERS):
        for module, width in WIDTHS.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            down, up = rng.standard_normal((RANK, HIDDEN)), rng.standard_normal((width, RANK))
            weights[f"{name}.lora_A.weight"] = (0.1 * down).astype(np.float32)
            weights[f"{name}.lora_B.weight"] = (0.5 * up).astype(np.float32)
    save_file(weights, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": 16, "bias": "none"}
    more = {"target_modules": sorted(WIDTHS), "task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps({**settings, **more}))
    return folder


def test_each_adapter_gets_its_own_pages(
    start_instance: StartInstance, llama_fixture: Path, tmp_path: Path
) -> None:
    one, two = (write_adapter(tmp_path / name, n) for n, name in enumerate(("one", "two")))
    (tmp_path / "sitecustomize.py").write_text(UNPINNED)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    adapters = ("--enable-lora", "--lora-backend", "torch_native", "--lora-paths")
    arguments = (*CHUNK, *adapters, f"one={one}", f"two={two}")
    prompt = prompt_of(200, seed=3)
    with (
        run_store() as store,
        start_instance(
            llama_fixture, *arguments, environment={"PYTHONPATH": path}, **linked(store)
        ) as instance,
    ):
        hits = {name: hit_of(instance, prompt, name) for name in (None, "one", "two")}
        assert len({hit.ids for hit in hits.values()}) == 3
        await_saved(instance, 3 * 12)
        empty_device(instance)
        for name in ("two", None, "one"):
            restored = ask(instance, prompt, adapter=name)
            check_alike(restored, hits[name])
            assert restored.details["host"] == whole_pages(prompt)

        # Another one by the same name finds nothing of the first.
        instance.request("/unload_lora_adapter", {"lora_name": "one"})
        instance.request("/load_lora_adapter", {"lora_name": "one", "lora_path": str(two)})
        renewed = ask(instance, prompt, adapter="one")
        assert renewed.cached_tokens == 0
        assert renewed.ids == hits["two"].ids
        await_saved(instance, 4 * 12)
        empty_device(instance)
        check_alike(ask(instance, prompt, adapter="one"), hits["two"])
