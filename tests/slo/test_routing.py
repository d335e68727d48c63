"""The built-in routing policies choose as they say they do."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bana.slo.errors import ConfigError
from bana.slo.routing import ROUTING, InstanceView, RoutingDecision, RoutingView

COUNTS = st.integers(0, 500)
VIEWS = st.lists(st.tuples(COUNTS, COUNTS, COUNTS, COUNTS, COUNTS), min_size=1, max_size=6).map(
    lambda rows: tuple(InstanceView(f"i{place}", *row) for place, row in enumerate(rows))
)


def _decide(policy: str, view: RoutingView, **options: object) -> RoutingDecision:
    return ROUTING.create(policy, options).decide_instance(view, 0.0, Random(0))


def _view(*instances: InstanceView, dispatched: int = 0, prompt_tokens: int = 100) -> RoutingView:
    return RoutingView(instances, prompt_tokens, 10, "standard", dispatched)


@given(VIEWS, st.integers(0, 100), st.floats(0, 1000))
def test_least_load_takes_the_least_work(
    instances: tuple[InstanceView, ...], dispatched: int, weight: float
) -> None:
    view = _view(*instances, dispatched=dispatched)
    chosen = _decide("least_load", view, decode_request_tokens=weight)
    work = {i.name: i.prefill_tokens + weight * i.decode_requests for i in instances}
    assert work[chosen.instance] == min(work.values())


def test_equal_loads_take_turns() -> None:
    idle = [InstanceView(name, 0, 0, 0) for name in "abc"]
    chosen = [_decide("least_load", _view(*idle, dispatched=n)).instance for n in range(6)]
    assert chosen == list("abcabc")


def test_least_load_ignores_where_a_prefix_is() -> None:
    near = InstanceView("a", 10, 0, 0, prefix_tokens=100)
    assert _decide("least_load", _view(near, InstanceView("b", 0, 0, 0))).instance == "b"


def test_round_robin_takes_turns() -> None:
    views = [InstanceView(name, 9, 9, 9) for name in "ab"]
    chosen = [_decide("round_robin", _view(*views, dispatched=n)).instance for n in range(4)]
    assert chosen == list("abab")


def test_random_reaches_everybody() -> None:
    policy, rng = ROUTING.create("random"), Random(3)
    view = _view(*(InstanceView(name, 0, 0, 0) for name in "abc"))
    counts = [policy.decide_instance(view, 0.0, rng).instance for _ in range(300)]
    assert all(60 < counts.count(name) < 140 for name in "abc")


@pytest.mark.parametrize(
    ("instances", "chosen", "reason"),
    [
        # Above the threshold the longest prefix wins, however busy its owner is.
        ([("a", 9, 5, 5, 31), ("b", 0, 0, 0, 0)], "a", "prefix"),
        ([("a", 9, 5, 5, 30), ("b", 0, 0, 0, 0)], "b", "least_indexed"),
        # Equal prefixes: the one with fewer requests.
        ([("a", 0, 3, 0, 50), ("b", 0, 1, 0, 50)], "b", "prefix"),
        # Imbalanced: more than 64 apart and more than 1.5 times.
        ([("a", 0, 70, 0, 99), ("b", 0, 5, 0, 0)], "b", "imbalanced"),
        ([("a", 0, 60, 9, 99), ("b", 0, 0, 5, 0)], "a", "prefix"),
        ([("a", 0, 300, 0, 99), ("b", 0, 220, 0, 0)], "a", "prefix"),
    ],
)
def test_cache_aware_follows_its_thresholds(
    instances: list[tuple[str, int, int, int, int]], chosen: str, reason: str
) -> None:
    decision = _decide("cache_aware", _view(*(InstanceView(*row) for row in instances)))
    assert (decision.instance, decision.reason) == (chosen, reason)


def test_cache_aware_fills_the_emptiest_index() -> None:
    views = (InstanceView("a", 0, 0, 0, 0, 500), InstanceView("b", 0, 9, 9, 0, 400))
    assert _decide("cache_aware", _view(*views)).instance == "b"


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("least_load", {"decode_request_tokens": -1.0}),
        ("cache_aware", {"cache_threshold": 1.5}),
        ("cache_aware", {"balance_rel_threshold": 0.5}),
        ("round_robin", {"anything": 1}),
    ],
)
def test_options_are_checked(policy: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ROUTING.create(policy, options)
