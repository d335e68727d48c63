"""Which cores are slow with 16-bit numbers, and what their instances are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_bana.cluster.commands import list_commands
from sglang_bana.cluster.cpu_kind import is_half_slow

from .test_launch import plan, value_of


@pytest.mark.parametrize(
    ("text", "is_slow"),
    [
        ("processor : 0\nflags : fpu sse2 avx avx2 fma\n", True),
        ("processor : 0\nflags : fpu avx2 avx512f avx512bw\n", False),
        ("processor : 0\nFeatures : fp asimd bf16\n", False),
        ("", False),
    ],
)
def test_cores_are_judged_by_their_flags(tmp_path: Path, text: str, is_slow: bool) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(text)
    assert is_half_slow(info) is is_slow


def test_what_cannot_be_read_is_taken_as_fast(tmp_path: Path) -> None:
    assert not is_half_slow(tmp_path / "none")


@pytest.mark.parametrize("is_slow", [True, False])
def test_slow_cores_compute_in_32_bits_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    monkeypatch.setattr("sglang_bana.cluster.placement.count_gpus", lambda: 0)
    monkeypatch.setattr("sglang_bana.cluster.launch.is_half_slow", lambda: is_slow)
    with plan(tmp_path) as launch:
        argv = list_commands(launch.blueprint, launch.run_dir)[0].argv
    assert ("--dtype" in argv) is is_slow
    assert any("float32" in warning for warning in launch.warnings) is is_slow
    with plan(tmp_path, 'launch.sglang_args=["--dtype","bfloat16"]') as launch:
        argv = list_commands(launch.blueprint, launch.run_dir)[0].argv
    assert value_of(argv, "--dtype") == "bfloat16"
    assert argv.count("--dtype") == 1
    assert not any("float32" in warning for warning in launch.warnings)
