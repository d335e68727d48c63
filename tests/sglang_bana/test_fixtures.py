from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bana.slo.errors import ConfigError
from sglang_bana.engine.fixtures import FixtureKind, Precision, main, make_fixture

KINDS = list(FixtureKind)
NEW_TOKENS = 64


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[FixtureKind, Path]:
    root = tmp_path_factory.mktemp("fixtures")
    return {kind: make_fixture(kind, 1, root / kind.value) for kind in KINDS}


def hash_files(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def load(folder: Path, dtype: Any = "auto") -> Any:
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, output_loading_info=True
    )
    assert not any(info.values()), info
    return model.eval()


def continue_greedily(model: Any, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    out = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=NEW_TOKENS)
    return list(out[0, len(prompt) :].tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_one_seed_gives_the_same_bytes_in_another_process(
    kind: FixtureKind, folders: dict[FixtureKind, Path], tmp_path: Path
) -> None:
    out = tmp_path / "again"
    argv = [sys.executable, "-m", "sglang_bana.engine.fixtures", kind.value, "1", str(out)]
    subprocess.run(argv, check=True, capture_output=True, timeout=120)
    assert hash_files(out) == hash_files(folders[kind])


def test_another_seed_gives_other_weights_and_the_same_tokenizer(
    folders: dict[FixtureKind, Path], tmp_path: Path
) -> None:
    other = hash_files(make_fixture(FixtureKind.LLAMA, 2, tmp_path / "other"))
    first = hash_files(folders[FixtureKind.LLAMA])
    assert other["model.safetensors"] != first["model.safetensors"]
    assert other["tokenizer.json"] == first["tokenizer.json"]


@pytest.mark.parametrize("kind", KINDS)
def test_shape_allows_two_tensor_parallel_ranks(
    kind: FixtureKind, folders: dict[FixtureKind, Path]
) -> None:
    config = json.loads((folders[kind] / "config.json").read_bytes())
    names = {FixtureKind.LLAMA: "LlamaForCausalLM", FixtureKind.QWEN3: "Qwen3ForCausalLM"}
    assert config["architectures"] == [names[kind]]
    for field in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size"):
        assert config[field] % 2 == 0
    assert config["num_key_value_heads"] < config["num_attention_heads"]


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizer_gives_back_any_text_and_knows_chat(
    kind: FixtureKind, folders: dict[FixtureKind, Path]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folders[kind])
    config = json.loads((folders[kind] / "config.json").read_bytes())
    text = "The capital of France is Paris?\n  Zażółć 你好 🙂"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert len(ids) < len(text.encode())
    assert len(tokenizer) == config["vocab_size"]
    assert tokenizer.eos_token_id == config["eos_token_id"]
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    )
    assert chat == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer("<|im_end|>")["input_ids"] == [tokenizer.eos_token_id]


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_output_is_lively_visible_and_stable_in_fp32(
    kind: FixtureKind, folders: dict[FixtureKind, Path]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folders[kind])
    model, exact = load(folders[kind]), load(folders[kind], torch.float64)
    for text in ("The capital of France is", "Tell me a story about a river. " * 30):
        prompt = tokenizer(text)["input_ids"]
        tokens = continue_greedily(model, prompt)
        assert len(tokens) == NEW_TOKENS
        assert len(set(tokens)) > NEW_TOKENS // 2
        assert tokenizer.decode(tokens).isprintable()
        assert continue_greedily(exact, prompt) == tokens


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_token_of_a_long_prompt_changes_the_answer(
    kind: FixtureKind, folders: dict[FixtureKind, Path]
) -> None:
    model = load(folders[kind])
    prompt = [3 + (7 * i) % 700 for i in range(300)]
    answers = [continue_greedily(model, prompt)]
    for position in (0, 100, 250):
        changed = [*prompt[:position], prompt[position] + 1, *prompt[position + 1 :]]
        answers.append(continue_greedily(model, changed))
    assert all(answer != answers[0] for answer in answers[1:])


def test_bfloat16_is_stored_as_such(tmp_path: Path) -> None:
    out = make_fixture(FixtureKind.QWEN3, 1, tmp_path / "half", Precision.BFLOAT16)
    model = load(out)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert json.loads((out / "config.json").read_bytes())["dtype"] == "bfloat16"


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    with pytest.raises(ConfigError, match="mine exists"):
        make_fixture(FixtureKind.LLAMA, 1, out)
    assert list(tmp_path.iterdir()) == [out]
    assert list(out.iterdir()) == []


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["lama", "1", "out"], "unknown fixture kind 'lama' (known: llama, qwen3)"),
        (["llama", "-1", "out"], "seed '-1' is not a whole number"),
        (["llama", "1", "out", "fp8"], "unknown precision 'fp8' (known: bfloat16, float32)"),
        (["llama"], "usage:"),
    ],
)
def test_bad_arguments_are_one_line_and_status_two(
    argv: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
