"""Whose bytes this rank's pages are: everything besides the tokens that changes them."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from huggingface_hub import try_to_load_from_cache

from bana.radix_global.keys import Namespace
from bana.slo.errors import ConfigError
from sglang_bana.engine.linker.layout import PageLayout

# What a model is loaded from; the rest of its folder does not change its numbers.
WEIGHT_SUFFIXES = frozenset(
    (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".json", ".model", ".py", ".npz")
)
PARTS, PART_BYTES = 32, 32_768
# Arguments of SGLang that change weights or what is computed with them.
CHANGING_FIELDS = (
    "load_format",
    "dtype",
    "quantization",
    "quantization_param_path",
    "kv_cache_dtype",
    "json_model_override_args",
    "model_loader_extra_config",
    "modelopt_quant",
    "rl_quant_profile",
    "custom_weight_loader",
    "quantize_and_serve",
)


class Shard(msgspec.Struct, frozen=True):
    """Which part of the model a rank holds."""

    tp_rank: int
    tp_size: int
    first_layer: int
    end_layer: int


def describe_pages(server_args: Any, shard: Shard, layout: PageLayout, salt: str) -> Namespace:
    """The namespace of the weights as loaded; ConfigError where they cannot be told apart."""
    return Namespace(
        model=Path(server_args.model_path).name or server_args.model_path,
        revision=f"{fingerprint_model(server_args)}-{fingerprint_options(server_args)}",
        # An adapter named at start is known by its name and path only, whatever is in it.
        weights_epoch=uuid.uuid4().hex if server_args.lora_paths else "",
        dtype=f"{server_args.dtype}",
        layout=layout.name,
        page_tokens=layout.page_tokens,
        tp_rank=shard.tp_rank,
        tp_size=shard.tp_size,
        first_layer=shard.first_layer,
        end_layer=shard.end_layer,
        salt=salt,
    )


def renew_epoch(namespace: Namespace) -> Namespace:
    """The namespace of other weights than any before."""
    return msgspec.structs.replace(namespace, weights_epoch=uuid.uuid4().hex)


def move_epoch(namespace: Namespace) -> Namespace:
    """The namespace once an adapter more has come or gone; equal for all instances that have seen
    as many changes since they had the same. What adapters compute has their own names in its hash.
    """
    epoch = _digest(f"{namespace.weights_epoch}+adapter")
    return msgspec.structs.replace(namespace, weights_epoch=epoch)


def fingerprint_options(server_args: Any) -> str:
    """Of the arguments beside the model's files that change the bytes of KV."""
    told = [f"{name}={getattr(server_args, name)!r}" for name in CHANGING_FIELDS]
    return _digest("\0".join(told))


def fingerprint_model(server_args: Any) -> str:
    """Of the model's files: a hub's content hashes where there are any, else size, time and a
    sample of what is in them: images of containers give all files one time.

    Two copies with other times count as other models: that costs sharing, never a wrong page.
    """
    path = _find_files(server_args.model_path, server_args.revision)
    files = [path] if path.is_file() else sorted(_list_weights(path))
    if not files:
        raise ConfigError(
            f"the model in {path} has no file of weights (known: "
            f"{', '.join(sorted(WEIGHT_SUFFIXES))}), so that its pages cannot be told from those "
            "of other models; leave the store off"
        )
    return _digest("\0".join(f"{file.name}:{_describe_file(file)}" for file in files))


def _find_files(model_path: str, revision: str | None) -> Path:
    path = Path(model_path)
    if path.exists():
        return path
    config = try_to_load_from_cache(model_path, "config.json", revision=revision)
    if isinstance(config, str):
        return Path(config).parent
    raise ConfigError(
        f"the files of model {model_path!r} are neither in a folder of that name nor in the hub's "
        "cache, so that its pages cannot be told from those of other models; download the model "
        "and name its folder, or leave the store off"
    )


def _list_weights(folder: Path) -> Iterator[Path]:
    for file in folder.iterdir():
        if file.suffix in WEIGHT_SUFFIXES and file.is_file():
            yield file


def _describe_file(file: Path) -> str:
    real = file.resolve()
    if real.parent.name == "blobs":
        # The hub's cache names a file by its content.
        return real.name
    status = real.stat()
    return f"{status.st_size}:{status.st_mtime_ns}:{_sample(real, status.st_size)}"


def _sample(file: Path, size_bytes: int) -> str:
    """Of a small file all, of a large one parts from its beginning to its end. O(1) bytes."""
    digest = hashlib.sha256()
    last = max(0, size_bytes - PART_BYTES)
    with file.open("rb") as opened:
        for part in range(PARTS):
            opened.seek(last * part // (PARTS - 1))
            digest.update(opened.read(PART_BYTES))
    return digest.hexdigest()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]
