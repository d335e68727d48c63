"""Prompts share what their workload says, and a draw is the same for everybody."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bana.eval.bench.cluster_cache.workloads import (
    CHARS_PER_TOKEN,
    Contents,
    Draw,
    Shared,
    find_data,
    list_questions,
    name_source,
    offer_requests,
)
from bana.eval.bench.errors import BenchError
from bana.eval.requests import Phase, Workload

CONTENTS = Contents(documents=3, document_tokens=40, question_tokens=10, most_tokens=64)


def offer(
    shared: Shared, folder: Path, *, seed: int = 1, cv: float = 1.0, data: Path | None = None
) -> Workload:
    return offer_requests(shared, CONTENTS, Draw(seed, cv, 2.0, 40, 4), data, folder)


def shared_share(workload: Workload) -> float:
    share = workload.facts["shared_prefix_share"]
    assert isinstance(share, float)
    return share


@pytest.mark.parametrize(
    ("shared", "low", "high"),
    [
        (Shared.DOCUMENTS, 0.6, 0.85),
        (Shared.HOT, 0.65, 0.85),
        (Shared.SESSIONS, 0.2, 0.98),
        (Shared.LITTLE, 0.0, 0.15),
    ],
)
def test_prompts_share_as_much_as_their_workload_says(
    shared: Shared, low: float, high: float, tmp_path: Path
) -> None:
    assert low < shared_share(offer(shared, tmp_path)) < high


@pytest.mark.parametrize("shared", list(Shared))
def test_a_draw_is_the_same_for_everybody_and_keeps_its_rate(
    shared: Shared, tmp_path: Path
) -> None:
    first = offer(shared, tmp_path, cv=4.0)
    assert offer(shared, tmp_path, cv=4.0).fingerprint == first.fingerprint
    assert offer(shared, tmp_path, seed=2, cv=4.0).fingerprint != first.fingerprint
    window = [request for request in first.requests if request.phase is Phase.WINDOW]
    assert len(window) / first.window_s == pytest.approx(2.0)
    assert all(r.prompt_tokens <= 120 and r.output_tokens <= 4 for r in first.requests)


def write_record(path: Path, characters: int) -> None:
    text = "".join(chr(ord("a") + place % 26) for place in range(characters))
    asked = str([{"Q": "Who was it, and when?", "A": "x"}, {"Q": "Why?", "A": "y"}])
    path.write_bytes(msgspec.json.encode({"input": text, "qa_pairs": asked, "title": "t"}) + b"\n")


def test_documents_are_cut_from_records_and_each_question_is_asked(tmp_path: Path) -> None:
    data = tmp_path / "qa.jsonl"
    write_record(data, 3 * 40 * CHARS_PER_TOKEN)
    asked = list(list_questions(CONTENTS, data))
    assert len(asked) == 3 * 2
    assert len({prompt[:160] for prompt in asked}) == 3
    assert asked[1].endswith("\n\nQuestion: Why?\nAnswer:")
    workload = offer(Shared.DOCUMENTS, tmp_path, data=data)
    assert {request.prompt.text for request in workload.requests[4:]} <= set(asked)
    write_record(data, 100)
    with pytest.raises(BenchError, match="fewer than 3 documents of 160 characters"):
        list(list_questions(CONTENTS, data))


def words(turn: int) -> str:
    return "word " * (100 + 40 * turn)


def test_recorded_sessions_grow_and_are_cut(tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    folder.mkdir()
    rows = [
        {
            "timestamp": n * 1_000_000,
            "input": "word " * (100 + 40 * n),
            "output": "a b",
            "session_id": s,
        }
        for n in range(60)
        for s in ("one", "two")
    ]
    (folder / "x.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, rows)) + b"\n")
    workload = offer(Shared.SESSIONS, tmp_path, data=folder)
    assert shared_share(workload) > 0.5
    assert max(request.prompt_tokens for request in workload.requests) <= CONTENTS.most_tokens


def test_recorded_texts_are_found_below_the_variable_and_named_without_it(tmp_path: Path) -> None:
    environ = {"BANA_DATA": str(tmp_path)}
    assert find_data(Shared.DOCUMENTS, environ) is None
    (tmp_path / "datasets/loogle").mkdir(parents=True)
    (tmp_path / "datasets/loogle/longdep_qa.jsonl").touch()
    assert find_data(Shared.DOCUMENTS, environ) is not None
    assert find_data(Shared.HOT, environ) is None
    for shared in Shared:
        assert str(tmp_path) not in name_source(shared, CONTENTS, environ)
    assert "LooGLE".lower() in name_source(Shared.DOCUMENTS, CONTENTS, environ)
    assert "random ids" in name_source(Shared.DOCUMENTS, CONTENTS, {})
