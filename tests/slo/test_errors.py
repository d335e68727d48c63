"""An unknown name is answered with the known ones and with what to do."""

from __future__ import annotations

import pytest

from bana.slo.errors import describe_unknown


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("appel", ["pear", "apple"], "unknown fruit 'appel' (known: apple, pear); did you mean"),
        ("zzz", ["pear", "apple"], "(known: apple, pear); choose one of these"),
        ("zzz", [], "(known: none); leave it out"),
    ],
)
def test_every_answer_ends_with_the_next_step(name: str, known: list[str], said: str) -> None:
    assert said in describe_unknown("fruit", name, known)
