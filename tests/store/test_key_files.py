"""Keys, namespaces and ages as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bana.slo.errors import ConfigError
from sglang_bana.store.key_files import parse_age, parse_key, parse_namespace, read_keys

KEY = "00112233445566778899aabbccddeeff"


def test_a_file_holds_a_key_a_line(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# the first page first\n{KEY}\n\n  {KEY.upper()}  # again\n")
    assert read_keys(str(file)) == bytes.fromhex(KEY) * 2


@pytest.mark.parametrize("text", ["", "xy", KEY[:-1], KEY + "00", "é"])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="KEY"):
        parse_key(text, "KEY")


@pytest.mark.parametrize("text", ["", "# nothing\n", "zz\n", "\xff"])
def test_a_file_without_keys_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError):
        read_keys(str(file))
    with pytest.raises(ConfigError, match="cannot read"):
        read_keys(str(tmp_path / "none"))


def test_a_namespace_is_eight_digits() -> None:
    assert parse_namespace("0000002a") == 42
    for text in ("", "x", "-1", "1ffffffff"):
        with pytest.raises(ConfigError, match="bana store ls"):
            parse_namespace(text)


@pytest.mark.parametrize(
    ("text", "age_s"), [("90s", 90), ("15m", 900), ("2h", 7200), (" 7d ", 604_800), ("0.5m", 30)]
)
def test_an_age_is_a_number_with_its_unit(text: str, age_s: float) -> None:
    assert parse_age(text) == age_s


@pytest.mark.parametrize("text", ["", "90", "s", "0s", "-1d", "1w", "1 h", "1e3s", "40000d", "nan"])
def test_what_is_no_age_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--older .* 90s, 15m, 2h or 7d"):
        parse_age(text)
