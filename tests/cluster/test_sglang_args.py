"""What may stand after `--`, and how many ranks it asks for."""

from __future__ import annotations

import pytest

from bana.slo.errors import ConfigError
from sglang_bana.cluster.sglang_args import (
    OWNED,
    Ranks,
    check_sglang_args,
    has_option,
    read_option,
    read_ranks,
)


@pytest.mark.parametrize("option", sorted(OWNED))
def test_owned_options_are_refused_in_every_spelling(option: str) -> None:
    for args in ([option, "1"], [f"{option}=1"], ["--dtype", "auto", option, "1"], [option[:-1]]):
        with pytest.raises(ConfigError, match="cannot be given after"):
            check_sglang_args(args)


def test_the_refusal_names_the_flag_to_use_instead() -> None:
    with pytest.raises(ConfigError, match=r"--host cannot be given .* use bana's own --host"):
        check_sglang_args(["--host", "0.0.0.0"])


def test_other_arguments_pass_untouched() -> None:
    check_sglang_args(["--tp-size", "2", "--mem-fraction-static=0.5", "--dtype", "float32", "-x"])
    check_sglang_args(["--hicache-size", "2", "--max-total-tokens", "9"])


def test_a_word_before_any_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="unexpected argument 'modle'"):
        check_sglang_args(["modle"])


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], Ranks(1, 1)),
        (["--tp-size", "2"], Ranks(2, 1)),
        (["--tp", "2"], Ranks(2, 1)),
        (["--tensor-parallel", "2", "--pipeline=3"], Ranks(2, 3)),
        (["--tokenizer-mode", "auto", "--pp-max-micro-batch-size", "7"], Ranks(1, 1)),
        (["--tensor-parallel-size=4", "--pp-size", "2"], Ranks(4, 2)),
        (["--pipeline-parallel-size", "3"], Ranks(1, 3)),
        (["--tp-size", "2", "--tp-size=8"], Ranks(8, 1)),
    ],
)
def test_ranks_are_read_from_every_spelling(args: list[str], expected: Ranks) -> None:
    assert read_ranks(args) == expected
    assert read_ranks(args).count == expected.tensor * expected.pipeline


@pytest.mark.parametrize("args", [["--tp-size"], ["--tp-size", "x"], ["--tp=0"], ["--pp", "9999"]])
def test_sizes_that_are_none_are_refused(args: list[str]) -> None:
    with pytest.raises(ConfigError):
        read_ranks(args)


def test_options_are_found_with_and_without_equals() -> None:
    assert has_option(["--sleep-on-idle"], "--sleep-on-idle")
    assert has_option(["--max-total-tokens=3"], "--max-total-tokens")
    assert not has_option(["--max-total-tokens-x"], "--max-total-tokens")


@pytest.mark.parametrize(
    ("args", "value"),
    [
        ((), None),
        (("--dtype", "float32"), "float32"),
        (("--dtype=half", "--x"), "half"),
        (("--dtype", "half", "--dtype=float32"), "float32"),
        (("--dtypes", "half"), None),
        (("--dtype",), ""),
    ],
)
def test_the_last_value_of_an_option_counts(args: tuple[str, ...], value: str | None) -> None:
    assert read_option(args, "--dtype") == value
