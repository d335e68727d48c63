"""Small random models for tests: Llama- and Qwen3-shaped, with a real tokenizer.

`python -m sglang_bana.engine.fixtures KIND SEED OUTDIR [PRECISION]` writes one. No network is
needed, and one seed gives the same bytes everywhere. Four query heads on two KV heads allow TP 2,
a head size of 64 suits every attention backend.

The weights are scaled so that greedy decoding is worth comparing: attention is peaked (a uniform
average would forget a long prompt), each block adds about as much as it receives, and only tokens
of printable ASCII can win, so that every token is visible in the text and none ends it.
"""

from __future__ import annotations

import enum
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from bana.slo.errors import ConfigError, describe_unknown

VOCAB_TOKENS = 768
CONTEXT_TOKENS = 8192
_TEXT_LINES = 2000
_SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_WORDS = (
    "the of and to in is that it was for on are as with his they at be this from have or by one "
    "had not but what all were when we there can an your which their said if do will each about "
    "how up out them then she many some so these would other into has more her two like him see "
    "time could no make than first been its who now people my made over did down only way find "
    "use may water long little very after words called just where most know get through back "
    "much before go good new write our used me man too any day same right look think also "
    "around another came come work three word must because does part even place well such here "
    "take why things help put years different away again off went old number great tell men say "
    "small every found still between name should home big give air line set own under read last "
    "never left end along while might next sound below saw something thought both few those "
    "always looked show large often together asked house world going want school important "
    "until form food keep children feet land side without boy once animals life enough took "
    "sometimes four head above kind began almost live page got earth need far hand high year "
    "mother light parts country father let night following picture being study second eyes soon "
    "times story boys since white days ever paper hard near sentence better best across during "
    "today others capital city question answer number river mountain language computer memory "
    "token prompt"
)


class FixtureKind(enum.Enum):
    """The architectures that fixtures come in."""

    LLAMA = "llama"
    QWEN3 = "qwen3"


class Precision(enum.Enum):
    """How a fixture's weights are stored; comparisons of greedy tokens want float32."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


def make_fixture(
    kind: FixtureKind, seed: int, out: Path, precision: Precision = Precision.FLOAT32
) -> Path:
    """Write the fixture of this kind and seed as the new folder `out` and return `out`.

    It appears whole or not at all; raises ConfigError where something is already there.
    """
    if os.path.lexists(out):
        raise ConfigError(
            f"fixture folder {out} exists; a new path is needed: name another one or remove it"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as work:
        built = Path(work) / "model"
        tokenizer = _train_tokenizer()
        tokenizer.save_pretrained(built)
        _build_model(kind, seed, precision, tokenizer).save_pretrained(built)
        os.rename(built, out)
    return out


def _train_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of VOCAB_TOKENS tokens, the same for all fixtures."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    build_trainer: Any = trainers.BpeTrainer  # its stub has no types
    trainer = build_trainer(
        vocab_size=VOCAB_TOKENS,
        special_tokens=list(_SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_generate_text(), trainer)
    end, start, stop = _SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=start,
        eos_token=stop,
        pad_token=stop,
        unk_token=end,
        chat_template=_CHAT_TEMPLATE,
        model_max_length=CONTEXT_TOKENS,
    )


def _generate_text() -> Iterator[str]:
    # random() is the one method whose sequence Python promises to keep between versions.
    rng, known = Random(0), _WORDS.split()
    for _ in range(_TEXT_LINES):
        words = [known[int(rng.random() ** 2 * len(known))] for _ in range(12)]
        yield " ".join(words).capitalize() + f" {int(rng.random() * 100)}.\n"


def _build_model(
    kind: FixtureKind, seed: int, precision: Precision, tokenizer: PreTrainedTokenizerFast
) -> Any:
    model = _build_empty(kind, tokenizer)
    weights = _draw_weights(model.state_dict(), seed)
    weights["lm_head.weight"][_list_unwanted(tokenizer)] = 0.0
    model.load_state_dict(weights, strict=True)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return model.to(getattr(torch, precision.value))


def _build_empty(kind: FixtureKind, tokenizer: PreTrainedTokenizerFast) -> Any:
    shape: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": CONTEXT_TOKENS,
        "tie_word_embeddings": False,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if kind is FixtureKind.LLAMA:
        return LlamaForCausalLM(LlamaConfig(**shape))
    return Qwen3ForCausalLM(Qwen3Config(**shape))


# Standard deviation of what a matrix puts out for an input of unit variance. Queries and keys of
# deviation 1.7 give attention scores of deviation 3, a peaked softmax.
_GAINS: Mapping[str, float] = {
    "q_proj": 1.7,
    "k_proj": 1.7,
    "v_proj": 1.0,
    "o_proj": 1.5,
    "gate_proj": 1.5,
    "up_proj": 1.5,
    "down_proj": 1.5,
    "lm_head": 3.0,
}


def _draw_weights(shapes: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Normal weights in sorted order of names; numpy's stream does not depend on the machine."""
    rng = np.random.Generator(np.random.PCG64(seed))
    drawn = {}
    for name in sorted(shapes):
        noise = rng.standard_normal(tuple(shapes[name].shape), dtype=np.float32)
        drawn[name] = torch.from_numpy(_scale(name, noise))
    return drawn


def _scale(name: str, noise: Any) -> Any:
    layer = name.split(".")[-2]
    if layer in ("q_norm", "k_norm"):
        return 1.7 + 0.1 * noise
    if layer.endswith("norm"):
        return 1.0 + 0.1 * noise
    if layer == "embed_tokens":
        return noise
    return noise * np.float32(_GAINS[layer] / noise.shape[1] ** 0.5)


def _list_unwanted(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """The tokens that greedy decoding must not choose: special, half characters, unprintable."""
    texts = [tokenizer.decode([token]) for token in range(len(tokenizer))]
    special = set(tokenizer.all_special_ids)
    return [
        token
        for token, text in enumerate(texts)
        if token in special or not (text.isascii() and text.isprintable())
    ]


def main(argv: list[str]) -> int:
    """Write `KIND SEED OUTDIR [PRECISION]`; status 2 and one line where that is impossible."""
    if len(argv) not in (3, 4):
        print("usage: ...fixtures KIND SEED OUTDIR [float32|bfloat16]", file=sys.stderr)
        return 2
    try:
        kind = _parse("fixture kind", FixtureKind, argv[0])
        precision = _parse("precision", Precision, argv[3] if len(argv) == 4 else "float32")
        make_fixture(kind, _parse_seed(argv[1]), Path(argv[2]), precision)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _parse(what: str, choices: type[Any], text: str) -> Any:
    known = {choice.value: choice for choice in choices}
    if text not in known:
        raise ConfigError(describe_unknown(what, text, known))
    return known[text]


def _parse_seed(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"seed {text!r} is not a whole number >= 0: pass for example 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
