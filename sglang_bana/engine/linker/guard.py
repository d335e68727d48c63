"""Keeps a fault of ours from ending the server: it is counted, logged, and answered for."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from sglang_bana.engine.linker.counts import LinkerCounts

logger = logging.getLogger(__name__)


class Counting(Protocol):
    """Whatever keeps the counts of a linker."""

    @property
    def counts(self) -> LinkerCounts: ...


S = TypeVar("S", bound=Counting)
P = ParamSpec("P")
T = TypeVar("T")
Method = Callable[Concatenate[S, P], T]


def answering(answer: T) -> Callable[[Method[S, P, T]], Method[S, P, T]]:
    """Have a method answer so where it fails; SGLang would end the server."""

    def guard(method: Method[S, P, T]) -> Method[S, P, T]:
        @functools.wraps(method)
        def guarded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return method(self, *args, **kwargs)
            except Exception:
                self.counts.faults += 1
                logger.exception("bana: the store's %s failed", method.__qualname__)
                return answer

        return guarded

    return guard
