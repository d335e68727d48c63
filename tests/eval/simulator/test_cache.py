"""The prefix cache against one that looks at every node each time."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bana.eval.simulator.cache import PrefixCache
from bana.eval.simulator.prefixes import ROOT, PrefixPlan

# root ─ 1 ─┬─ 2 ─ 3     and a tree of its own: 5
#           └─ 4
PLAN = PrefixPlan(
    page_tokens=1,
    parents=(ROOT, ROOT, 1, 2, 1, ROOT),
    pages=(0, 3, 2, 4, 1, 5),
    shared=(True,) * 6,
    paths=((1, 2, 3), (1, 4), (5,), (1, 2)),
)
PATHS = st.sampled_from(PLAN.paths)


class CacheMachine(RuleBasedStateMachine):
    """Random users; the model keeps each node's pages, locks and last use in dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: Counter[int] = Counter()
        self.cache = PrefixCache(PLAN, lambda node: self.changes.update([node]))
        self.pages: dict[int, int] = {}
        self.parents = dict(enumerate(PLAN.parents))
        self.locks: Counter[int] = Counter()
        self.used: dict[int, int] = {}
        self.users: list[tuple[int, ...]] = []
        self.uses = 0

    @rule(path=PATHS)
    def lock(self, path: tuple[int, ...]) -> None:
        self.uses += 1
        self.cache.lock(path)
        self.users.append(path)
        self.locks.update(path)
        self.used.update(dict.fromkeys(path, self.uses))

    @rule(place=st.integers(0, 100))
    def unlock(self, place: int) -> None:
        if not self.users:
            return
        self.uses += 1
        path = self.users.pop(place % len(self.users))
        self.cache.unlock(path)
        self.locks.subtract(path)
        self.used.update(dict.fromkeys(path, self.uses))

    @rule(place=st.integers(0, 100), pages=st.integers(0, 12))
    def compute(self, place: int, pages: int) -> None:
        """A user has computed so many pages of its path."""
        if not self.users:
            return
        left = pages
        for node in self.users[place % len(self.users)]:
            if left <= 0:
                return
            before = self.pages.get(node, 0)
            after = max(before, min(left, PLAN.pages[node]))
            assert self.cache.hold(node, left) == after - before
            self.pages[node] = after
            left -= PLAN.pages[node]

    @rule(place=st.integers(0, 100), pages=st.integers(1, 3))
    def finish(self, place: int, pages: int) -> None:
        """Below a path that is whole, an answer's pages stay."""
        if not self.users:
            return
        path = self.users[place % len(self.users)]
        if any(self.pages.get(node, 0) < PLAN.pages[node] for node in path):
            return
        self.uses += 1
        self.cache.append_tail(path[-1], pages)
        node = len(self.parents)
        self.parents[node], self.pages[node], self.used[node] = path[-1], pages, self.uses

    @rule(pages=st.integers(0, 12))
    def evict(self, pages: int) -> None:
        freed = 0
        while freed < pages:
            idle = [node for node in self.pages if self.is_idle(node)]
            if not idle:
                break
            # Of those that were last used together, the one deeper in the tree has no children.
            node = min(idle, key=lambda n: (self.used[n], n))
            freed += self.pages.pop(node)
        assert self.cache.evict(pages) == freed

    def is_idle(self, node: int) -> bool:
        holds = any(self.parents[other] == node for other in self.pages if self.pages[other])
        return self.pages[node] > 0 and not self.locks[node] and not holds

    @invariant()
    def it_holds_what_the_model_holds(self) -> None:
        assert self.cache.resident_pages == sum(self.pages.values())
        unlocked = sum(count for node, count in self.pages.items() if not self.locks[node])
        assert self.cache.evictable_pages == unlocked
        for path in PLAN.paths:
            matched = 0
            for node in path:
                matched += self.pages.get(node, 0)
                if self.pages.get(node, 0) < PLAN.pages[node]:
                    break
            assert self.cache.match(path) == matched
            unlocked = sum(self.pages.get(n, 0) for n in path if not self.locks[n])
            assert self.cache.count_unlocked(path) == unlocked


CacheMachine.TestCase.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)
TestCache = CacheMachine.TestCase


def test_every_change_is_told() -> None:
    told: list[int] = []
    cache = PrefixCache(PLAN, told.append)
    cache.lock((5,))
    assert cache.hold(5, 2) == 2
    assert cache.hold(5, 2) == 0
    cache.unlock((5,))
    assert cache.evict(1) == 2
    assert told == [5, 5]
