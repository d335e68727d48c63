"""How a GGUF file of the Llama family becomes a Hugging Face folder that SGLang serves.

`python -m sglang_bana.engine.convert GGUF OUTDIR` writes config, bf16 weights, tokenizer, chat
template and generation config into OUTDIR. `cluster/models.py` calls it in a process of its own
and publishes the result; raise CONVERTER_VERSION there when the output changes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from tokenizers import pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    GgufConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

from bana.slo.errors import ConfigError

_HEADER_KEYS = (
    "general.architecture",
    "tokenizer.chat_template",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.pre",
)
_CONFIG_FIELDS = (
    "attention_bias",
    "bos_token_id",
    "eos_token_id",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "mlp_bias",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "pad_token_id",
    "rope_parameters",
    "tie_word_embeddings",
    "vocab_size",
)


def convert(gguf_file: Path, out_dir: Path) -> None:
    """Write the model in `gguf_file` to `out_dir`, dequantized to bf16.

    Raises ConfigError for a file that is no Llama or that chat could not use.
    """
    header = _read_header(gguf_file)
    _check_header(header, gguf_file.name)
    source = _load_dequantized(gguf_file)
    tokenizer = _load_tokenizer(gguf_file, header, source.config.max_position_embeddings)
    model = _copy_as_bf16(source)
    model.generation_config = _build_generation_config(source.config)
    out_dir.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out_dir)
    tokenizer.save_pretrained(out_dir)


@dataclass(frozen=True)
class _Header:
    """The fields of a GGUF file that decide how it is converted; absent ones are empty or None."""

    architecture: str
    pre_tokenizer: str
    chat_template: str
    eos_token_id: int | None
    tokens: int


def _read_header(gguf_file: Path) -> _Header:
    try:
        fields = GGUFReader(gguf_file).fields
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read {gguf_file}: {error}; pass the path of a GGUF file"
        ) from error
    found = {key: fields[key].contents() for key in _HEADER_KEYS if key in fields}
    tokens = fields.get("tokenizer.ggml.tokens")
    return _Header(
        architecture=found.get("general.architecture", ""),
        pre_tokenizer=found.get("tokenizer.ggml.pre", ""),
        chat_template=found.get("tokenizer.chat_template", ""),
        eos_token_id=found.get("tokenizer.ggml.eos_token_id"),
        tokens=0 if tokens is None else len(tokens.data),
    )


def _check_header(header: _Header, name: str) -> None:
    if header.architecture != "llama":
        problem = f"its architecture is {header.architecture!r}, allowed: 'llama'"
    elif not header.chat_template:
        problem = "it has no chat template (tokenizer.chat_template)"
    elif header.eos_token_id not in range(header.tokens):
        problem = (
            f"its end token is {header.eos_token_id}, allowed: one of its {header.tokens} tokens"
        )
    else:
        return
    raise ConfigError(f"cannot convert {name}: {problem}; use another GGUF file")


def _load_dequantized(gguf_file: Path) -> Any:
    # A model that came out of a GGUF file keeps its quantization record and cannot be saved.
    return AutoModelForCausalLM.from_pretrained(
        gguf_file.parent,
        gguf_file=gguf_file.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )


def _copy_as_bf16(source: Any) -> Any:
    """Put the weights into a fresh model of the same shape; raises if one is missing or extra."""
    fields = {name: getattr(source.config, name) for name in _CONFIG_FIELDS}
    # GGUF stores the epsilon as a float32; seven digits give back the number that was written.
    epsilon = float(f"{source.config.rms_norm_eps:.7g}")
    config = LlamaConfig(**fields, rms_norm_eps=epsilon, dtype=torch.bfloat16)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.load_state_dict(source.state_dict(), strict=True)
    return model


def _load_tokenizer(gguf_file: Path, header: _Header, context_tokens: int) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    if header.pre_tokenizer == "smollm":
        # transformers ignores this field. SmolLM was trained with single digits split off before
        # the byte-level pattern, which decides how blanks before a digit are joined.
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    tokenizer.model_max_length = context_tokens
    for loading_detail in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(loading_detail, None)
    return tokenizer


def _build_generation_config(config: Any) -> GenerationConfig:
    return GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    )


def main(argv: list[str]) -> int:
    """Convert `GGUF OUTDIR`; status 2 and one line on stderr when that is not possible."""
    if len(argv) != 2:
        print("usage: python -m sglang_bana.engine.convert GGUF OUTDIR", file=sys.stderr)
        return 2
    try:
        convert(Path(argv[0]), Path(argv[1]))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
