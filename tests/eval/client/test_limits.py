from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bana.eval.client.isolated import Isolated, TtftPoint
from bana.eval.client.limits import ClassLimits, assign_limits, limits_for
from bana.eval.requests import Limits, Offered, Prompt, Workload
from bana.slo.errors import ConfigError

ISOLATED = Isolated((TtftPoint(100, 0.1), TtftPoint(200, 0.2)), 0.02, 6)
OFFERED = Offered(0, 0.0, Prompt(token_ids=[1]), 150, 10, slo_class="gold")


@pytest.mark.parametrize(
    ("limits", "promised"),
    [
        (ClassLimits(), Limits()),
        (ClassLimits(ttft_ms=250, tpot_ms=50, e2e_ms=9_000), Limits(0.25, 0.05, 9.0)),
        (ClassLimits(ttft_x=4, tpot_x=2.5), Limits(0.6, 0.05)),
        (ClassLimits(ttft_ms=250, tpot_x=2.5), Limits(0.25, 0.05)),
    ],
)
def test_milliseconds_and_multiples(limits: ClassLimits, promised: Limits) -> None:
    found = limits_for(OFFERED, limits, ISOLATED)

    assert msgspec.structs.astuple(found) == pytest.approx(msgspec.structs.astuple(promised))


def test_only_multiples_need_the_idle_server() -> None:
    assert limits_for(OFFERED, ClassLimits(tpot_ms=50), None) == Limits(tpot_s=0.05)
    with pytest.raises(ConfigError, match="'gold' is promised multiples"):
        limits_for(OFFERED, ClassLimits(ttft_x=2), None)
    no_tpot = msgspec.structs.replace(ISOLATED, tpot_s=None)
    with pytest.raises(ConfigError, match="nothing to multiply"):
        limits_for(OFFERED, ClassLimits(tpot_x=2), no_tpot)


@pytest.mark.parametrize("fields", [{"ttft_ms": 1, "ttft_x": 2}, {"tpot_ms": 1, "tpot_x": 2}])
def test_two_promises_for_one_thing_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="keep one of them"):
        ClassLimits(**fields)


@pytest.mark.parametrize("text", [b'{"ttft_ms": 0}', b'{"tpot_x": -1}', b'{"ttft": 3}'])
def test_a_file_cannot_promise_nonsense(text: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=ClassLimits)


def test_each_request_gets_the_promise_of_its_class_and_nothing_else_changes() -> None:
    other = msgspec.structs.replace(OFFERED, index=1, slo_class="default", prompt_tokens=100)
    workload = Workload((OFFERED, other), 1.0, 3, "print", {"a": 1})
    classes = {"gold": ClassLimits(ttft_x=2), "default": ClassLimits(), "unused": ClassLimits()}

    found = assign_limits(workload, classes, ISOLATED)

    assert found.requests[0].limits.ttft_s == pytest.approx(0.3)
    assert found.requests[1].limits == Limits()
    bare = [msgspec.structs.replace(r, limits=Limits()) for r in found.requests]
    assert msgspec.structs.replace(found, requests=tuple(bare)) == workload


def test_a_class_without_promise_must_say_so() -> None:
    workload = Workload((OFFERED,), 1.0, 0, "", {})

    with pytest.raises(ConfigError, match=r"unknown SLO class 'gold' .*did you mean 'golden'"):
        assign_limits(workload, {"golden": ClassLimits()}, ISOLATED)
