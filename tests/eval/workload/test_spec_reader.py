from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bana.eval.workload.spec import (
    ArrivalKind,
    ArrivalSpec,
    LognormalLength,
    UniformLength,
    WorkloadSpec,
)
from bana.eval.workload.spec_reader import check_workload_spec, read_workload_spec
from bana.slo.errors import ConfigError

WHOLE = """
[arrivals]
kind = "gamma"
rate_rps = 4
cv = 2.5
ramp = {start = 0.5, end = 1.5}
duration_s = 300
warmup_s = 30
cooldown_s = 10.5

[prompts]
form = "text"
input_tokens = {kind = "lognormal", median = 1000, p99 = 4000, high = 8000}
output_tokens = {kind = "uniform", low = 1, high = 200}
max_input_tokens = 6000
over_limit = "drop"
families = {count = 8, shared_tokens = 512, share = 0.5, zipf = 1.0}

[turns]
think_s = 5
low = 1
high = 6

[classes]
interactive = 0.25
batch = 0.75

[cancel]
share = 0.1
mean_s = 2
"""


def changed(**sections: Any) -> dict[str, Any]:
    """A small valid workload with keys replaced: `arrivals={"rate_rps": 0}`."""
    whole: dict[str, Any] = {"arrivals": {"rate_rps": 1.0, "duration_s": 60.0}}
    for name, entries in sections.items():
        merged = isinstance(entries, dict) and isinstance(whole.get(name), dict)
        whole[name] = {**whole[name], **entries} if merged else entries
    return whole


def test_every_section_is_read_from_toml() -> None:
    spec = read_workload_spec(tomllib.loads(WHOLE))

    assert spec.arrivals.kind is ArrivalKind.GAMMA
    assert spec.prompts.input_tokens == LognormalLength(median=1000, p99=4000, high=8000)
    assert spec.prompts.output_tokens == UniformLength(1, 200)
    assert spec.classes == {"interactive": 0.25, "batch": 0.75}
    assert check_workload_spec(spec) == spec


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        (changed(arivals={}), ["'arivals'", "did you mean 'arrivals'"]),
        (changed(arrivals={"rate": 2}), ["'arrivals.rate'", "mean 'arrivals.rate_rps'"]),
        (changed(prompts={"families": {"cout": 1}}), ["'prompts.families.cout'", "count'"]),
        (
            changed(prompts={"input_tokens": {"kind": "uniform", "lo": 1}}),
            ["prompts.input_tokens.lo'", "mean 'prompts.input_tokens.low'"],
        ),
        (changed(arrivals={"kind": "posson"}), ["'posson'", "gamma", "did you mean 'poisson'"]),
        (
            changed(prompts={"output_tokens": {"kind": "lognorml"}}),
            ["'lognorml'", "did you mean 'lognormal'"],
        ),
        (changed(prompts={"output_tokens": {}}), ["prompts.output_tokens", "missing", "kind"]),
        (changed(arrivals={"rate_rps": 0}), ["arrivals.rate_rps=0", "float > 0"]),
        (changed(arrivals={"rate_rps": -1.5}), ["arrivals.rate_rps=-1.5"]),
        (changed(arrivals={"rate_rps": "fast"}), ["arrivals.rate_rps='fast'", "float"]),
        (changed(arrivals={"rate_rps": float("nan")}), ["arrivals.rate_rps=nan"]),
        (changed(arrivals={"rate_rps": float("inf")}), ["arrivals.rate_rps=inf"]),
        (changed(arrivals={"duration_s": float("nan")}), ["arrivals.duration_s=nan"]),
        (changed(arrivals={"warmup_s": float("inf")}), ["arrivals.warmup_s=inf"]),
        (changed(arrivals={"warmup_s": float("nan")}), ["arrivals.warmup_s=nan"]),
        (changed(arrivals={"max_requests": 10**12}), ["max_requests=1000000000000", "1000000"]),
        (changed(arrivals={"max_requests": True}), ["max_requests=True"]),
        (changed(prompts={"input_tokens": 512}), ["prompts.input_tokens=512"]),
        (changed(classes={"gold": 2}), ["classes", "<= 1"]),
        (changed(classes={"no blanks": 1}), ["classes"]),
        (changed(classes={"gold": float("nan")}), ["classes"]),
        ({}, ["arrivals"]),
        ({"arrivals": 3}, ["arrivals=3"]),
    ],
)
def test_a_bad_entry_is_named_with_its_value_and_what_is_allowed(
    mapping: dict[str, Any], said: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_workload_spec(mapping)

    message = str(caught.value)
    assert "\n" not in message
    assert [part for part in said if part not in message] == []


LOGNORMAL = {"kind": "lognormal", "median": 10, "sigma": 1}


def prompts(**length: Any) -> dict[str, Any]:
    return changed(prompts={"input_tokens": {**LOGNORMAL, **length}})


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        (changed(arrivals={"kind": "gamma"}), "arrivals.cv"),
        (changed(arrivals={"cv": 2}), "arrivals.cv"),
        (changed(arrivals={"rate_rps": None}), "arrivals.rate_rps"),
        (changed(arrivals={"duration_s": None}), "arrivals.duration_s"),
        (changed(arrivals={"ramp": {"start": 0, "end": 0}}), "arrivals.ramp"),
        (changed(arrivals={"kind": "trace"}), "needs a section trace"),
        (changed(arrivals={"rate_rps": 1000, "duration_s": 1000}), "1000000 requests"),
        (changed(trace={"path": "x", "time_scale": 2}), "trace.time_scale"),
        (changed(trace={"path": "x"}, prompts={"file": "y"}), "prompts.file"),
        (changed(trace={"path": "x"}, turns={"think_s": 1}), "turns"),
        (changed(trace={"path": "x"}, prompts={"input_tokens": LOGNORMAL}), "prompts.input_tokens"),
        (
            changed(
                arrivals={"kind": "trace", "ramp": {"start": 1, "end": 2}}, trace={"path": "x"}
            ),
            "arrivals.ramp",
        ),
        (
            changed(arrivals={"kind": "trace"}, trace={"path": "x", "time_scale": 2}),
            "keep one of them",
        ),
        (changed(prompts={"token_id_low": 5, "token_id_high": 6}), "prompts.token_id_high"),
        (changed(prompts={"file": "x", "form": "token_ids"}), "prompts.form"),
        (changed(prompts={"file": "x", "input_tokens": LOGNORMAL}), "prompts.input_tokens"),
        (changed(prompts={"field": "x"}), "prompts.field"),
        (changed(turns={"think_s": 1}), "turns.low"),
        (changed(turns={"think_s": 1, "low": 2}), "turns.high"),
        (changed(turns={"think_s": 1, "low": 3, "high": 2}), "turns.low"),
        (changed(prompts={"file": "x"}, turns={"think_s": 1, "low": 3}), "turns.low"),
        (prompts(low=5, high=4), "prompts.input_tokens.low"),
        (prompts(mean=20), "exactly one of mean and median"),
        (prompts(sigma=None), "exactly one of p99 and sigma"),
        (prompts(sigma=None, p99=9), "prompts.input_tokens.p99"),
        (prompts(sigma=None, median=None, mean=10, p99=150), "prompts.input_tokens.p99"),
        (changed(classes={"a": 0.5, "b": 0.4}), "add up to 0.9"),
    ],
)
def test_entries_that_contradict_each_other_are_named(mapping: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_workload_spec(mapping)

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_record_that_code_built_is_checked_as_well() -> None:
    with pytest.raises(ConfigError, match=r"arrivals\.rate_rps"):
        check_workload_spec(WorkloadSpec(ArrivalSpec(rate_rps=-1.0, duration_s=1.0)))


words = st.text("abc_.`\n \u2028é", max_size=4)
plain = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from(["arrivals", "prompts", "turns", "trace", "classes", "cancel", "x"])
keys = st.sampled_from(["kind", "rate_rps", "input_tokens", "families", "ramp", "count", "path"])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(names, st.dictionaries(keys, plain, max_size=3) | plain, max_size=4))
def test_whatever_is_wrong_is_one_line(mapping: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        read_workload_spec(mapping)

    assert len(str(caught.value).splitlines()) == 1


def test_the_readmes_example_is_valid() -> None:
    readme = Path(__file__).parents[3] / "eval" / "workload" / "README.md"
    example = readme.read_text().split("```toml\n")[1].split("```")[0]

    assert read_workload_spec(tomllib.loads(example)).arrivals.cv == 2.0
