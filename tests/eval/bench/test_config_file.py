from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bana.eval.bench.config_file import render_toml, write_config

KEYS = st.text("abc_", min_size=1, max_size=4)
PLAIN = (
    st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), max_size=8)
)
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)
)


@given(st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, max_size=4), max_size=3))
def test_what_is_written_is_read_again(sections: dict[str, Any]) -> None:
    assert tomllib.loads(render_toml(sections)) == sections


def test_a_file_is_whole(tmp_path: Path) -> None:
    write_config(tmp_path / "bana.toml", {"store": {"tiers": [{"path": "/x"}]}})
    assert tomllib.loads((tmp_path / "bana.toml").read_text()) == {
        "store": {"tiers": [{"path": "/x"}]}
    }


def test_what_has_no_form_is_refused() -> None:
    with pytest.raises(TypeError, match="no form"):
        render_toml({"store": {"path": None}})
