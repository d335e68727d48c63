from __future__ import annotations

from bana.eval.bench.kvstream.prompts import draw_documents, draw_round, draw_warm_up, merge_evenly
from bana.eval.bench.kvstream.settings import QUICK

DOCUMENTS = draw_documents(QUICK, 7)


def beginnings(prompts: list[list[int]]) -> list[tuple[int, ...]]:
    return [tuple(prompt[: QUICK.document_tokens]) for prompt in prompts]


def test_every_document_is_asked_once_behind_one_that_nobody_has_seen() -> None:
    prompts = draw_round(QUICK, DOCUMENTS, 7, "a")

    assert len(prompts) == QUICK.requests
    fresh, *known = beginnings(prompts)
    assert known == beginnings(DOCUMENTS)
    assert fresh not in known
    whole = QUICK.document_tokens + QUICK.question_tokens
    assert {len(prompt) for prompt in prompts} == {whole}
    assert len({tuple(prompt[-QUICK.question_tokens :]) for prompt in prompts}) == len(prompts)


def test_rounds_share_documents_and_nothing_else() -> None:
    one, again, other = (draw_round(QUICK, DOCUMENTS, 7, where) for where in ("a", "a", "b"))

    assert one == again
    assert set(beginnings(one)) & set(beginnings(other)) == set(beginnings(DOCUMENTS))
    assert not set(map(tuple, one)) & set(map(tuple, other))
    assert draw_documents(QUICK, 8) != DOCUMENTS


def test_nobody_is_warmed_up_with_what_another_wrote() -> None:
    drawn = [draw_warm_up(QUICK, 7, who)[0] for who in ("a-1", "a-2")]
    pages = {tuple(prompt[:16]) for prompt in [*drawn, *DOCUMENTS]}
    assert len(pages) == 2 + QUICK.documents


def test_the_few_lie_evenly_among_the_many() -> None:
    few, many = [[-1], [-2]], [[n] for n in range(5)]
    assert merge_evenly(few, many) == [[-1], [0], [1], [-2], [2], [3], [4]]
    assert merge_evenly([], many) == many
