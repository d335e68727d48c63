from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter, TokenType
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from sglang_bana.cluster.models import SilentProgress, is_cached, resolve_model
from sglang_bana.engine.convert import main
from sglang_bana.engine.fixtures import FixtureKind, make_fixture

HEADS, KV_HEADS, LAYERS = 4, 2, 4
GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


@pytest.fixture(scope="module")
def fixture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_fixture(FixtureKind.LLAMA, 5, tmp_path_factory.mktemp("convert") / "source")


@pytest.fixture(scope="module")
def converted(fixture_folder: Path) -> Path:
    gguf, out = fixture_folder.with_name("model.gguf"), fixture_folder.with_name("converted")
    write_gguf(fixture_folder, gguf, {})
    done = run_converter(gguf, out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def smollm2() -> Path:
    return Path(resolve_model("smollm2", SilentProgress()))


def run_converter(gguf: Path, out: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sglang_bana.engine.convert", str(gguf), str(out)],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )


def write_gguf(source: Path, gguf: Path, changed: dict[str, Any]) -> None:
    """Pack a fixture the way llama.cpp packs a Llama; `changed` overrides header fields."""
    config = json.loads((source / "config.json").read_bytes())
    writer = GGUFWriter(gguf, changed.get("architecture", "llama"))
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    add_tokenizer(writer, source, {**config, **changed})
    for name, weight in load_file(source / "model.safetensors").items():
        writer.add_tensor(*translate(name, weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: GGUFWriter, source: Path, fields: dict[str, Any]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = json.loads((source / "tokenizer.json").read_bytes())["model"]
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    special = set(tokenizer.all_special_tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [TokenType.CONTROL if t in special else TokenType.NORMAL for t in tokens]
    )
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(fields["eos_token_id"])
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_unk_token_id(tokenizer.unk_token_id)
    if fields.get("chat_template", True):
        writer.add_chat_template(tokenizer.chat_template)


def translate(name: str, weight: Any) -> tuple[str, Any]:
    top = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in top:
        return top[name], weight
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    if part in ("self_attn.q_proj", "self_attn.k_proj"):
        weight = interleave(weight, HEADS if part.endswith("q_proj") else KV_HEADS)
    return f"blk.{layer}.{GGUF_NAMES[part]}.weight", weight


def interleave(weight: Any, heads: int) -> Any:
    """llama.cpp rotates neighbouring rows where Hugging Face rotates halves."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def load(folder: Path) -> Any:
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", output_loading_info=True
    )
    assert not any(info.values()), info
    return model.eval()


def test_weights_come_back_as_they_were_in_bf16(fixture_folder: Path, converted: Path) -> None:
    expected, got = load(fixture_folder).state_dict(), load(converted).state_dict()
    assert sorted(got) == sorted(expected)
    for name, weight in expected.items():
        assert torch.equal(got[name], weight.to(torch.bfloat16)), name


def test_config_is_that_of_the_source_without_a_trace_of_gguf(
    fixture_folder: Path, converted: Path
) -> None:
    expected = json.loads((fixture_folder / "config.json").read_bytes())
    got = json.loads((converted / "config.json").read_bytes())
    assert got == {**expected, "dtype": "bfloat16"}
    assert "gguf" not in (converted / "config.json").read_text()


def test_tokenizer_chat_template_and_end_come_along(fixture_folder: Path, converted: Path) -> None:
    expected, got = (AutoTokenizer.from_pretrained(f) for f in (fixture_folder, converted))
    generation = json.loads((converted / "generation_config.json").read_bytes())
    for text in ("The capital of France is Paris.\n", "Zażółć 你好 🙂", "<|im_start|>x<|im_end|>"):
        assert got(text)["input_ids"] == expected(text)["input_ids"]
        assert got.decode(got(text)["input_ids"]) == text
    assert got.chat_template == expected.chat_template
    assert got.model_max_length == expected.model_max_length
    assert generation["eos_token_id"] == got.eos_token_id == expected.eos_token_id


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"chat_template": False}, "has no chat template"),
        ({"eos_token_id": 100_000}, "its end token is 100000, allowed: one of its 768 tokens"),
        ({"architecture": "rwkv"}, "its architecture is 'rwkv', allowed: 'llama'"),
    ],
)
def test_a_file_that_chat_could_not_use_is_refused_in_one_line(
    changed: dict[str, Any],
    message: str,
    fixture_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_gguf(fixture_folder, tmp_path / "bad.gguf", changed)
    capsys.readouterr()
    assert main([str(tmp_path / "bad.gguf"), str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [None, b"", b"not a model at all"])
def test_what_is_no_gguf_file_is_refused_in_one_line(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "text.gguf"
    if content is not None:
        file.write_bytes(content)
    assert main([str(file), str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert f"cannot read {file}" in said
    assert said.count("\n") == 1


def test_smollm2_knows_the_capital_of_france_and_stops(smollm2: Path) -> None:
    assert is_cached("smollm2")
    tokenizer, model = AutoTokenizer.from_pretrained(smollm2), load(smollm2)
    assert model.dtype == torch.bfloat16
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = model.generate(**prompt, do_sample=False, max_new_tokens=40)
    answer = tokenizer.decode(out[0, prompt["input_ids"].shape[1] :])
    assert answer == "The capital of France is Paris.<|im_end|>"


def test_smollm2_shares_its_embedding_with_its_output(smollm2: Path) -> None:
    model = load(smollm2)
    assert model.config.tie_word_embeddings
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


def test_smollm2_splits_digits_before_blanks_are_joined(smollm2: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    assert tokenizer.tokenize("x  42") == ["x", "ĠĠ", "4", "2"]
    assert tokenizer.decode(tokenizer("1. a\n\n  42")["input_ids"]) == "1. a\n\n  42"
