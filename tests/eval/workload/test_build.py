from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from bana.eval.requests import Offered, Phase, Workload
from bana.eval.workload.build import build_workload
from bana.eval.workload.spec_reader import read_workload_spec
from bana.slo.errors import ConfigError

CONSTANT_64 = {"kind": "constant", "tokens": 64}
LOGNORMAL = {"kind": "lognormal", "median": 80, "p99": 400, "high": 500}


def build(seed: int = 7, **sections: Any) -> Workload:
    arrivals = {"rate_rps": 10.0, "duration_s": 60.0, **sections.pop("arrivals", {})}
    return build_workload(read_workload_spec({"arrivals": arrivals, **sections}), seed)


def ids_of(request: Offered) -> list[int]:
    assert request.prompt.token_ids is not None
    return list(request.prompt.token_ids)


def shared(one: Offered, other: Offered) -> int:
    pairs = zip(ids_of(one), ids_of(other), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def test_requests_are_numbered_in_order_and_as_long_as_they_say() -> None:
    workload = build(prompts={"input_tokens": LOGNORMAL})
    due = [r.due_s for r in workload.requests]

    assert [r.index for r in workload.requests] == list(range(len(due)))
    assert due == sorted(due)
    assert all(len(ids_of(r)) == r.prompt_tokens for r in workload.requests)
    assert all(100 <= i < 30_000 for r in workload.requests for i in ids_of(r))
    assert workload.window_s == 60.0


def test_prompts_of_no_family_share_nothing() -> None:
    workload = build(prompts={"input_tokens": CONSTANT_64})

    assert workload.facts["shared_prefix_share"] == 0.0
    assert len({tuple(ids_of(r)) for r in workload.requests}) == len(workload.requests)


def test_token_ids_suit_a_small_vocabulary() -> None:
    workload = build(prompts={"token_id_low": 3, "token_id_high": 5, "input_tokens": CONSTANT_64})

    assert {i for r in workload.requests for i in ids_of(r)} == {3, 4}


FAMILIES = {"count": 4, "shared_tokens": 48, "share": 0.6, "zipf": 1.0}


def test_families_share_their_prefix_and_nothing_more() -> None:
    workload = build(
        arrivals={"duration_s": 200.0}, prompts={"input_tokens": CONSTANT_64, "families": FAMILIES}
    )
    requests = workload.requests
    counts = Counter(r.family for r in requests)

    for one, other in pairwise(requests[:300]):
        same = bool(one.family) and one.family == other.family
        assert shared(one, other) == (48 if same else 0)
    assert 1 - counts[""] / len(requests) == pytest.approx(0.6, abs=0.05)
    members = len(requests) - counts[""]
    weights = np.array([1, 1 / 2, 1 / 3, 1 / 4]) / sum([1, 1 / 2, 1 / 3, 1 / 4])
    seen = [counts[f"f{k}"] / members for k in range(4)]
    assert seen == pytest.approx(weights.tolist(), abs=0.05)
    expected = 48 * (members - 4) / (64 * len(requests))
    assert workload.facts["shared_prefix_share"] == pytest.approx(expected)


def test_a_prompt_shorter_than_its_familys_prefix_keeps_a_token_of_its_own() -> None:
    families = {"count": 1, "shared_tokens": 100}
    workload = build(prompts={"input_tokens": CONSTANT_64, "families": families})

    assert {shared(a, b) for a, b in pairwise(workload.requests)} == {63}
    assert workload.facts["prefixes_cut_short"] == len(workload.requests)


TURNS = {"think_s": 2.0, "low": 3, "high": 3, "new_tokens": {"kind": "constant", "tokens": 10}}


def by_session(workload: Workload) -> dict[str, list[Offered]]:
    sessions: dict[str, list[Offered]] = {}
    for request in workload.requests:
        sessions.setdefault(request.session, []).append(request)
    return sessions


def test_a_later_turn_quotes_the_earlier_prompt_and_a_planned_answer() -> None:
    workload = build(turns=TURNS, prompts={"input_tokens": CONSTANT_64, "output_tokens": LOGNORMAL})
    grown = 0
    for turns in by_session(workload).values():
        for earlier, later in pairwise(turns):
            assert ids_of(later)[: earlier.prompt_tokens] == ids_of(earlier)
            assert later.prompt_tokens == earlier.prompt_tokens + earlier.output_tokens + 10
            grown += 1
    assert grown > 300


def test_turns_keep_the_rate_and_are_mixed_from_the_first_second() -> None:
    turns = {**TURNS, "high": 9, "think_s": 5.0}
    workload = build(
        turns=turns,
        arrivals={"rate_rps": 50.0, "duration_s": 100.0, "max_requests": 6000},
        prompts={"input_tokens": CONSTANT_64, "output_tokens": CONSTANT_64},
    )
    due = [r.due_s for r in workload.requests]
    early, late = (
        np.mean([r.prompt_tokens for r in workload.requests if low <= r.due_s < low + 20])
        for low in (0, 80)
    )

    counts = np.histogram(due, bins=5, range=(0, 100))[0]
    assert counts.tolist() == pytest.approx([1000] * 5, rel=0.12)
    assert early == pytest.approx(late, rel=0.1)


def test_think_times_are_kept() -> None:
    workload = build(turns={**TURNS, "think": "constant"}, prompts={"input_tokens": CONSTANT_64})
    gaps = [
        later.due_s - earlier.due_s
        for turns in by_session(workload).values()
        for earlier, later in pairwise(turns)
    ]

    assert gaps == pytest.approx([2.0] * len(gaps))


def test_warmup_is_unlike_the_window_but_shares_as_much() -> None:
    workload = build(
        arrivals={"warmup_s": 60.0, "cooldown_s": 5.0},
        turns=TURNS,
        prompts={"input_tokens": CONSTANT_64, "families": {"count": 2, "shared_tokens": 32}},
    )
    parts = {p: [r for r in workload.requests if r.phase is p] for p in Phase}
    warm, window = parts[Phase.WARMUP], parts[Phase.WINDOW]

    assert max(shared(a, b) for a in warm[::20] for b in window[::20]) == 0
    assert {r.family for r in warm}.isdisjoint({r.family for r in window})
    assert {r.session for r in warm}.isdisjoint({r.session for r in window})
    assert len({tuple(ids_of(r)[:32]) for r in warm}) == 2
    assert len(parts[Phase.COOLDOWN]) > 0
    assert all(60.0 <= r.due_s < 120.0 for r in window)


def test_a_limit_clips_or_drops_and_says_how_many() -> None:
    prompts = {"input_tokens": LOGNORMAL, "max_input_tokens": 100}
    cancel = {"share": 0.5, "mean_s": 1.0}
    clipped = build(prompts=prompts, cancel=cancel)
    dropped = build(prompts={**prompts, "over_limit": "drop"}, cancel=cancel)
    over = clipped.facts["prompts_clipped"]

    assert max(r.prompt_tokens for r in clipped.requests) == 100
    assert sum(r.prompt_tokens == 100 for r in clipped.requests) >= int(str(over)) > 0
    assert dropped.facts["prompts_dropped"] == over
    assert len(dropped.requests) == len(clipped.requests) - int(str(over))
    kept = {r.due_s: (ids_of(r), r.cancel_after_s) for r in clipped.requests}
    assert all(kept[r.due_s] == (ids_of(r), r.cancel_after_s) for r in dropped.requests)


def test_answers_are_limited() -> None:
    workload = build(prompts={"output_tokens": LOGNORMAL, "max_output_tokens": 50})

    assert max(r.output_tokens for r in workload.requests) == 50
    assert int(str(workload.facts["answers_clipped"])) > 0


def test_classes_have_their_shares_and_a_conversation_keeps_its_own() -> None:
    workload = build(
        arrivals={"duration_s": 300.0},
        prompts={"input_tokens": CONSTANT_64},
        turns=TURNS,
        classes={"a": 0.2, "b": 0.8},
    )
    counts = Counter(r.slo_class for r in workload.requests)

    assert counts["a"] / len(workload.requests) == pytest.approx(0.2, abs=0.04)
    assert all(len({r.slo_class for r in turns}) == 1 for turns in by_session(workload).values())


def test_cancellations_have_their_share_and_mean() -> None:
    workload = build(
        arrivals={"duration_s": 400.0},
        prompts={"input_tokens": CONSTANT_64},
        cancel={"share": 0.25, "mean_s": 3.0},
    )
    after = np.sort([r.cancel_after_s for r in workload.requests if r.cancel_after_s is not None])
    n = len(after)

    assert n / len(workload.requests) == pytest.approx(0.25, abs=0.03)
    distance = np.max(np.abs(np.arange(1, n + 1) / n - (1 - np.exp(-after / 3.0)))) * n**0.5
    assert distance < 1.95


def columns(workload: Workload) -> dict[str, list[Any]]:
    return {
        "due_s": [r.due_s for r in workload.requests],
        "prompts": [ids_of(r)[:16] for r in workload.requests],
        "input": [r.prompt_tokens for r in workload.requests],
        "output": [r.output_tokens for r in workload.requests],
        "class": [r.slo_class for r in workload.requests],
        "cancel": [r.cancel_after_s for r in workload.requests],
    }


BASE: dict[str, Any] = {
    "arrivals": {"rate_rps": 5.0},
    "prompts": {"input_tokens": {"kind": "uniform", "low": 20, "high": 40}},
    "classes": {"a": 0.5, "b": 0.5},
    "cancel": {"share": 0.5, "mean_s": 1.0},
}


@pytest.mark.parametrize(
    ("change", "moved"),
    [
        ({"arrivals": {"kind": "gamma", "cv": 1.5, "rate_rps": 5.0}}, {"due_s"}),
        ({"prompts": {"input_tokens": {"kind": "uniform", "low": 20, "high": 60}}}, {"input"}),
        ({"prompts": {**BASE["prompts"], "output_tokens": LOGNORMAL}}, {"output"}),
        ({"prompts": {**BASE["prompts"], "token_id_high": 5000}}, {"prompts"}),
        ({"classes": {"a": 0.9, "b": 0.1}}, {"class"}),
        ({"cancel": {"share": 0.1, "mean_s": 1.0}}, {"cancel"}),
    ],
)
def test_changing_one_thing_shifts_no_other(change: dict[str, Any], moved: set[str]) -> None:
    before, after = columns(build(**BASE)), columns(build(**{**BASE, **change}))
    common = min(len(before["due_s"]), len(after["due_s"]))

    assert {k for k in before if before[k][:common] != after[k][:common]} == moved


def test_the_same_seed_is_the_same_bytes_and_another_is_not() -> None:
    one, same, other = build(**BASE), build(**BASE), build(8, **BASE)

    assert one.requests == same.requests
    assert one.fingerprint == same.fingerprint
    assert one.facts == same.facts
    assert one.fingerprint != other.fingerprint
    assert other.seed == 8


@pytest.mark.parametrize(
    "change",
    [
        {"arrivals": {"rate_rps": 5.1}},
        {"prompts": {**BASE["prompts"], "token_id_low": 101}},
        {"prompts": {**BASE["prompts"], "ignore_eos": False}},
        {"classes": {"a": 0.5, "c": 0.5}},
        {"cancel": {"share": 0.5, "mean_s": 1.1}},
    ],
)
def test_the_fingerprint_covers_everything_offered(change: dict[str, Any]) -> None:
    assert build(**BASE).fingerprint != build(**{**BASE, **change}).fingerprint


def test_facts_are_plain_data_and_true() -> None:
    workload = build(
        arrivals={"kind": "gamma", "cv": 2.0, "duration_s": 300.0},
        prompts={"input_tokens": LOGNORMAL, "output_tokens": CONSTANT_64},
    )
    facts = msgspec.json.decode(msgspec.json.encode(workload.facts))
    lengths = sorted(r.prompt_tokens for r in workload.requests)

    assert facts == workload.facts
    assert facts["source"] == "synthetic"
    assert facts["rate_rps"] == len(lengths) / 300
    assert facts["arrival_cv"] == pytest.approx(2.0, rel=0.1)
    assert facts["input_tokens"]["mean"] == pytest.approx(np.mean(lengths))
    assert facts["input_tokens"]["p99"] == pytest.approx(np.quantile(lengths, 0.99), rel=0.02)
    assert facts["output_tokens"] == {"mean": 64, "p50": 64, "p99": 64, "largest": 64}


def test_text_prompts_have_a_word_for_each_token() -> None:
    workload = build(prompts={"form": "text", "input_tokens": CONSTANT_64, "families": FAMILIES})

    assert all(len((r.prompt.text or "").split()) == 64 for r in workload.requests)
    assert 0.4 < float(str(workload.facts["shared_prefix_share"])) < 0.5
    assert workload.facts["shared_prefix_unit"] == "byte"


def test_chat_prompts_have_a_message_for_each_part_of_the_conversation() -> None:
    families = {"count": 1, "shared_tokens": 8}
    workload = build(
        turns=TURNS, prompts={"form": "chat", "input_tokens": CONSTANT_64, "families": families}
    )
    roles = {tuple(m.role for m in r.prompt.messages or ()) for r in workload.requests}

    assert roles == {
        ("system", "user"),
        ("system", "user", "assistant", "user"),
        ("system", "user", "assistant", "user", "assistant", "user"),
    }
    assert len({(r.prompt.messages or ())[0].content for r in workload.requests}) == 1


def write_file(folder: Path) -> str:
    path = folder / "prompts.jsonl"
    lines = [{"turns": [f"question {i}", f"and then {i}?"]} for i in range(5)]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return str(path)


def test_a_files_prompts_are_all_used_before_any_is_used_again(tmp_path: Path) -> None:
    workload = build(prompts={"file": write_file(tmp_path)})
    texts = [r.prompt.text or "" for r in workload.requests]

    assert all(set(texts[i : i + 5]) == set(texts[:5]) for i in range(0, len(texts) - 4, 5))
    assert set(texts) == {f"question {i}" for i in range(5)}
    assert {r.prompt_tokens for r in workload.requests} == {3}


def test_a_files_turns_quote_what_was_asked_before(tmp_path: Path) -> None:
    workload = build(
        turns={"think_s": 1.0}, prompts={"file": write_file(tmp_path), "output_tokens": CONSTANT_64}
    )
    for turns in by_session(workload).values():
        for earlier, later in pairwise(turns):
            head, answer, question = (later.prompt.text or "").split("\n\n")
            assert head == earlier.prompt.text
            assert len(answer.split()) == 64
            assert question.startswith("and then")


def test_a_files_warmup_begins_unlike_its_window(tmp_path: Path) -> None:
    workload = build(arrivals={"warmup_s": 30.0}, prompts={"file": write_file(tmp_path)})
    texts = {
        phase: {(r.prompt.text or "")[:3] for r in workload.requests if r.phase is phase}
        for phase in (Phase.WARMUP, Phase.WINDOW)
    }

    assert texts[Phase.WINDOW] == {"que"}
    assert texts[Phase.WARMUP].isdisjoint(texts[Phase.WINDOW])


def test_recorded_answers_are_quoted_and_give_the_length(tmp_path: Path) -> None:
    entries = [
        {"from": "human", "value": "why?"},
        {"from": "gpt", "value": "x" * 80},
        {"from": "human", "value": "so?"},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"conversations": entries}))
    workload = build(turns={"think_s": 1.0}, prompts={"file": str(path), "form": "chat"})
    lengths = {(len(r.prompt.messages or ()), r.output_tokens) for r in workload.requests}

    assert lengths == {(1, 20), (3, 64)}


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_seeds_have_a_range(seed: int) -> None:
    with pytest.raises(ConfigError, match="seed"):
        build(seed)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"arrivals": {"rate_rps": 0.001, "duration_s": 1.0}}, "holds no request"),
        ({"prompts": {"max_input_tokens": 1, "over_limit": "drop"}}, "holds no request"),
        ({"prompts": {"input_tokens": {"kind": "constant", "tokens": 10_000_000}}}, "together"),
        ({"turns": {**TURNS, "high": 1000, "think_s": 600_000.0}}, "conversations"),
    ],
)
def test_what_would_be_empty_or_too_big_is_refused(sections: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build(**sections)
