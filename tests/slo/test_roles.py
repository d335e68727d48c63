"""Roles say what instances are chosen for."""

from __future__ import annotations

import pytest

from bana.slo.roles import Role, Work, suits


@pytest.mark.parametrize(
    ("role", "works"),
    [
        (Role.PREFILL, {Work.PROMPT, Work.ANY}),
        (Role.DECODE, {Work.ANSWER, Work.ANY}),
        (Role.BOTH, set(Work)),
    ],
)
def test_each_role_suits_its_work(role: Role, works: set[Work]) -> None:
    assert {work for work in Work if suits(role, work)} == works
