"""How much memory a local model takes once it is served: its weights, and the KV of one token.

SGLang computes, and keeps KV, in one type of numbers whatever the weights are stored in: one that
is wider than the stored one makes both larger.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sglang_bana.cluster.sglang_args import read_option

WEIGHT_SUFFIXES = frozenset({".safetensors", ".bin", ".gguf", ".pt"})
NUMBER_BYTES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}
# Of a KV cache that is told to be of another type than the model's.
KV_BYTES = {"fp8_e5m2": 1, "fp8_e4m3": 1, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2}
# What SGLang makes of a model in 32 bits unless it is told to keep them.
NARROW = "float16"


class ModelSize(msgspec.Struct, frozen=True):
    """Bytes of one whole copy, 0 where they are not known."""

    weight_bytes: int
    kv_bytes_per_token: int


class _Shape(msgspec.Struct, frozen=True):
    """What a model's config.json says of that, as far as it does."""

    dtype: str = ""
    torch_dtype: str = ""
    quantization_config: object = None
    num_hidden_layers: int = 0
    num_attention_heads: int = 0
    num_key_value_heads: int | None = None
    hidden_size: int = 0
    head_dim: int | None = None


def measure_model(model: str, dtype: str, args: Sequence[str]) -> ModelSize:
    """A model served in `dtype`, `auto` for SGLang's own choice, with SGLang's `args`."""
    shape = _read_shape(Path(model))
    stored = shape.dtype or shape.torch_dtype
    if dtype == "auto":
        dtype = NARROW if NUMBER_BYTES.get(stored) == 4 else stored
    stored_bytes, served_bytes = NUMBER_BYTES.get(stored), NUMBER_BYTES.get(dtype)
    weight_bytes = measure_weights(model)
    if stored_bytes and served_bytes and shape.quantization_config is None:
        weight_bytes = weight_bytes * served_bytes // stored_bytes
    kv_bytes = KV_BYTES.get(read_option(args, "--kv-cache-dtype") or "", served_bytes or 0)
    return ModelSize(weight_bytes, _count_kv_numbers(shape) * kv_bytes)


def measure_weights(model: str) -> int:
    """Bytes of weights in a local model, as they are stored; 0 when they are elsewhere."""
    # Unlike Path's, these take a name that is too long for a file as the name of none.
    if os.path.isfile(model):
        return os.path.getsize(model)
    found = Path(model).glob("*") if os.path.isdir(model) else ()
    return sum(file.stat().st_size for file in found if file.suffix in WEIGHT_SUFFIXES)


def _count_kv_numbers(shape: _Shape) -> int:
    """Of one token, keys and values of all layers; 0 for a model that says it otherwise."""
    heads = shape.num_attention_heads
    if not heads:
        return 0
    head_dim = shape.head_dim or shape.hidden_size // heads
    return 2 * shape.num_hidden_layers * (shape.num_key_value_heads or heads) * head_dim


def _read_shape(folder: Path) -> _Shape:
    try:
        return msgspec.json.decode((folder / "config.json").read_bytes(), type=_Shape)
    except (OSError, ValueError):
        # A model elsewhere, or one that describes itself in other words: SGLang decides.
        return _Shape()
