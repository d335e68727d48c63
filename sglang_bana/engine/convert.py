"""How a GGUF file of the Llama family becomes a Hugging Face folder that SGLang serves.

`python -m sglang_bana.engine.convert GGUF OUTDIR` writes config, bf16 weights, tokenizer, chat
template and generation config into OUTDIR. `cluster/models.py` calls it in a process of its own
and publishes the result; raise CONVERTER_VERSION there when the output changes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from tokenizers import pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

from bana.slo.errors import ConfigError

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
    """Write the model in `gguf_file` to `out_dir`, dequantized to bf16."""
    source = _load_dequantized(gguf_file)
    tokenizer = _load_tokenizer(gguf_file, source.config.max_position_embeddings)
    _check_special_tokens(source.config, tokenizer)
    model = _copy_as_bf16(source)
    model.generation_config = _build_generation_config(source.config)
    out_dir.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out_dir)
    tokenizer.save_pretrained(out_dir)


def _load_dequantized(gguf_file: Path) -> Any:
    # A model that came out of a GGUF file keeps its quantization record and cannot be saved.
    model = AutoModelForCausalLM.from_pretrained(
        gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32
    )
    if not isinstance(model, LlamaForCausalLM):
        raise ConfigError(
            f"cannot convert {gguf_file.name}: it holds a {type(model).__name__}, allowed: "
            "LlamaForCausalLM; pass a Hugging Face folder of that model to --model instead"
        )
    return model


def _copy_as_bf16(source: Any) -> Any:
    """Put the weights into a fresh model of the same shape; raises if one is missing or extra."""
    fields = {name: getattr(source.config, name) for name in _CONFIG_FIELDS}
    # GGUF stores the epsilon as a float32; seven digits give back the number that was written.
    epsilon = float(f"{source.config.rms_norm_eps:.7g}")
    config = LlamaConfig(**fields, rms_norm_eps=epsilon, dtype=torch.bfloat16)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.load_state_dict(source.state_dict(), strict=True)
    return model


def _load_tokenizer(gguf_file: Path, context_tokens: int) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    if _read_text_field(gguf_file, "tokenizer.ggml.pre") == "smollm":
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


def _read_text_field(gguf_file: Path, key: str) -> str:
    field = GGUFReader(gguf_file).get_field(key)
    return "" if field is None else str(field.contents())


def _build_generation_config(config: Any) -> GenerationConfig:
    return GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    )


def _check_special_tokens(config: Any, tokenizer: Any) -> None:
    """Refuse a file whose model and tokenizer disagree on where an answer ends."""
    if config.eos_token_id != tokenizer.eos_token_id:
        raise ConfigError(
            f"cannot convert: the model ends with token {config.eos_token_id}, its tokenizer with "
            f"{tokenizer.eos_token_id}; they must be equal: use another GGUF file"
        )
    if len(tokenizer) > config.vocab_size:
        raise ConfigError(
            f"cannot convert: the tokenizer has {len(tokenizer)} tokens, the model "
            f"{config.vocab_size}; at most as many are allowed: use another GGUF file"
        )
    if not tokenizer.chat_template:
        raise ConfigError(
            "cannot convert: the GGUF file has no chat template (tokenizer.chat_template), "
            "which chat endpoints need: use another GGUF file"
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
