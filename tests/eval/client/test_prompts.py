from __future__ import annotations

from random import Random

from bana.eval.client.prompts import SMALL_TOKENS, PromptMaker
from bana.eval.requests import Message, Offered, Prompt


def maker(prompt: Prompt, seed: int = 0) -> PromptMaker:
    return PromptMaker([Offered(0, 0.0, prompt, 1, 1)], Random(seed))


def test_ids_are_as_many_and_of_those_known() -> None:
    known = list(range(100, 400))
    made = [
        maker(Prompt(token_ids=known), seed).make_like(Prompt(token_ids=known)) for seed in (1, 2)
    ]

    for prompt in made:
        assert prompt.token_ids is not None
        assert len(prompt.token_ids) == 300
        assert set(prompt.token_ids) <= set(known)
    assert made[0].token_ids != made[1].token_ids


def test_text_keeps_its_length_and_begins_like_no_other() -> None:
    text = "once upon a time there was a king" * 10
    prompts = maker(Prompt(text=text))

    made = [prompts.make_like(Prompt(text=text)).text or "" for _ in range(2)]

    assert [len(one) for one in made] == [len(text)] * 2
    assert len({one[:16] for one in made}) == 2


def test_messages_keep_their_roles_and_begin_like_no_other() -> None:
    messages = [Message("system", "be brief"), Message("user", "hello")]
    prompts = maker(Prompt(messages=messages))

    made = [prompts.make_like(Prompt(messages=messages)).messages or () for _ in range(2)]

    for one in made:
        assert [m.role for m in one] == ["system", "user"]
        assert one[1] == messages[1]
    assert made[0][0] != made[1][0]


def test_small_prompts_are_unlike_each_other_and_of_the_workloads_kind() -> None:
    by_ids, by_text = maker(Prompt(token_ids=list(range(64)))), maker(Prompt(text="x"))

    made = [by_ids.make_small().token_ids or () for _ in range(2)]
    assert [len(one) for one in made] == [SMALL_TOKENS] * 2
    assert made[0] != made[1]
    assert by_text.make_small().text != by_text.make_small().text
