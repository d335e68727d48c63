"""Promises are resolved once, refused when they cannot be meant, clamped when out of range."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bana.slo.errors import ConfigError
from bana.slo.limits import SloAsk, SloClass, SloError, SloRange, SloRules, resolve_slo

CLASSES = {
    "gold": SloClass(rank=2, ttft_ms=100, tpot_ms=10),
    "silver": SloClass(rank=1, ttft_ms=1000, tpot_ms=100),
    "bronze": SloClass(rank=0, ttft_ms=9000, tpot_ms=900),
}
RULES = SloRules("silver", CLASSES, SloRange(50, 10_000, 5, 1000))


def test_silence_gets_the_default_class() -> None:
    slo = resolve_slo(SloAsk(), RULES)
    assert (slo.slo_class, slo.ttft_s, slo.tpot_s, slo.clamped) == ("silver", 1.0, 0.1, ())


def test_a_key_fixes_the_class_and_a_client_only_lowers_it() -> None:
    assert resolve_slo(SloAsk(key_class="gold"), RULES).slo_class == "gold"
    lowered = SloAsk(slo_class="bronze", key_class="silver")
    assert resolve_slo(lowered, RULES).slo_class == "bronze"
    with pytest.raises(SloError) as raised:
        resolve_slo(SloAsk(slo_class="gold", key_class="silver"), RULES)
    assert raised.value.code == "slo_class_not_allowed"
    # Nobody's key: the client chooses freely.
    assert resolve_slo(SloAsk(slo_class="gold"), RULES).slo_class == "gold"


@pytest.mark.parametrize(
    ("ttft_ms", "kept_s", "clamped"),
    [
        ("50", 0.05, ()),
        ("49.9", 0.05, ("ttft",)),
        ("1e-300", 0.05, ("ttft",)),
        ("10000", 10.0, ()),
        ("1e308", 10.0, ("ttft",)),
        ("inf", 10.0, ("ttft",)),
        ("1e999", 10.0, ("ttft",)),
    ],
)
def test_the_range_is_kept_and_told(ttft_ms: str, kept_s: float, clamped: tuple[str]) -> None:
    slo = resolve_slo(SloAsk(ttft_ms=ttft_ms), RULES)
    assert (slo.ttft_s, slo.clamped) == (kept_s, clamped)


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "nan", "-inf", "abc", "1 2", "0x10", "None", "1_000", "\u0661\u0662"]
)
@pytest.mark.parametrize("limit", ["ttft_ms", "tpot_ms", "e2e_ms"])
def test_what_is_no_positive_number_is_refused(text: str, limit: str) -> None:
    with pytest.raises(SloError) as raised:
        resolve_slo(SloAsk(**{limit: text}), RULES)
    assert (raised.value.code, raised.value.param) == ("slo_invalid", f"slo_{limit}")


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text_is_refused_or_within_the_range(ttft_ms: str, tpot_ms: str) -> None:
    try:
        slo = resolve_slo(SloAsk(ttft_ms=ttft_ms, tpot_ms=tpot_ms), RULES)
    except SloError:
        return
    assert 0.05 <= slo.ttft_s <= 10
    assert 0.005 <= slo.tpot_s <= 1
    assert math.isfinite(slo.ttft_s + slo.tpot_s)


def test_unknown_classes_are_refused_with_the_nearest() -> None:
    with pytest.raises(SloError, match="did you mean 'gold'"):
        resolve_slo(SloAsk(slo_class="gild"), RULES)
    with pytest.raises(ConfigError, match="silber"):
        SloRules("silber", CLASSES)
    with pytest.raises(ConfigError, match="swap or widen"):
        SloRules("gold", CLASSES, SloRange(min_ttft_ms=10, max_ttft_ms=5))


@pytest.mark.parametrize("limit_ms", [0, -1, 86_400_001, math.inf, math.nan])
@pytest.mark.parametrize("kind", [SloClass, SloRange])
def test_a_configured_limit_is_positive_and_at_most_a_day(kind: type, limit_ms: float) -> None:
    word = "ttft_ms" if kind is SloClass else "max_ttft_ms"
    given = {"rank": 1, "ttft_ms": 1, "tpot_ms": 1} if kind is SloClass else {}
    assert msgspec.convert({**given, word: 86_400_000}, kind)
    with pytest.raises(msgspec.ValidationError, match=word):
        msgspec.convert({**given, word: limit_ms}, kind)


@pytest.mark.parametrize(
    ("own_ms", "asked_ms", "kept_s", "clamped"),
    [
        (None, None, None, ()),
        (None, "800", 0.8, ()),
        (3000.0, None, 3.0, ()),
        (3000.0, "9000", 9.0, ()),
        (3000.0, "inf", 86_400.0, ("e2e",)),
        (0.5, None, 0.001, ("e2e",)),
    ],
)
def test_the_whole_answer_is_limited_where_somebody_says_so(
    own_ms: float | None, asked_ms: str | None, kept_s: float | None, clamped: tuple[str, ...]
) -> None:
    rules = SloRules("only", {"only": SloClass(rank=0, ttft_ms=10, tpot_ms=1, e2e_ms=own_ms)})
    slo = resolve_slo(SloAsk(e2e_ms=asked_ms), rules)
    assert (slo.e2e_s, slo.clamped) == (kept_s, clamped)
