"""Prompts computed on one instance for another, which decodes: through the store between them.

        ┌─ the copy: one token, nobody reads it ──▶ prefill instance ──pages──▶ store
 call ──┤                                                                         │
        └─ the call itself, at once afterwards ───▶ the one that answers ◀──pages─┘

The copy lives at most as long as the attempt that it was sent for, takes a place and counts as load
where it is, and nothing that becomes of it is told to the client: without it, the instance that
answers computes the prompt itself. A retry is handed off no more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from enum import StrEnum

import aiohttp

from bana.slo.handoff import Handoff
from bana.slo.roles import Role, Work
from sglang_bana.config import HandoffConfig
from sglang_bana.router.call import Attempt, Call, Promise, mint_copy_rid
from sglang_bana.router.dispatch import Dispatcher
from sglang_bana.router.flights import Flight
from sglang_bana.router.handoff_rules import Obstacle, find_obstacle
from sglang_bana.router.instances import Instance
from sglang_bana.router.link_metrics import ATTACHED
from sglang_bana.router.means import Means
from sglang_bana.router.prefill_copy import FORMS, copy_for_prefill
from sglang_bana.router.roles import Roles
from sglang_bana.router.store_feed import StoreFeed
from sglang_bana.router.upstream import is_refusal
from sglang_bana.status import HandoffStatus

_LOG = logging.getLogger(__name__)


class PrefillOutcome(StrEnum):
    """What became of a copy. DROPPED: its request ended, however, before it did."""

    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"
    DROPPED = "dropped"


class Prefill:
    """One copy under way. `end` ends it, and may be said again.

    Once its end is in the books, after the step in which it came, `note(outcome, seconds)` is told.
    """

    def __init__(
        self,
        means: Means,
        flight: Flight,
        attempt: Attempt,
        instance: Instance,
        prompt_tokens: int,
        note: Callable[[PrefillOutcome, float], None],
    ) -> None:
        self.instance = instance
        self._means = means
        self._flight = flight
        self._attempt = attempt
        self._prompt_tokens = prompt_tokens
        self._note = note
        self._is_ended = False
        self._sent_s = time.monotonic()
        means.places.hold(self, instance)
        means.ledger.add_dispatch(attempt.rid, instance.name, self._prompt_tokens, self._sent_s)
        instance.dispatched_total += 1
        self._task = asyncio.create_task(self._carry())
        self._task.add_done_callback(self._settle)

    async def depart(self) -> None:
        """Let it go before what its caller sends next."""
        await asyncio.sleep(0)

    def end(self) -> None:
        """Nobody needs it any more."""
        self._is_ended = True
        self._task.cancel()

    async def _carry(self) -> PrefillOutcome:
        means = self._means
        try:
            response = await means.upstream.send(self.instance, self._attempt.message)
            means.places.board.observe_head(self.instance, time.monotonic())
            try:
                while await response.content.readany():
                    pass
            except BaseException:
                response.close()
                raise
            response.release()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if is_refusal(error):
                means.places.board.observe_refusal(self.instance)
            return PrefillOutcome.FAILED
        return PrefillOutcome.REFUSED if response.status >= 400 else PrefillOutcome.DONE

    def _settle(self, task: asyncio.Task[PrefillOutcome]) -> None:
        """Take it out of the books, however it ended."""
        outcome, now_s = _judge(task), time.monotonic()
        seconds, rid = now_s - self._sent_s, self._attempt.rid
        self._means.ledger.remove_dispatch(rid)
        self._means.places.free(self)
        if outcome in (PrefillOutcome.FAILED, PrefillOutcome.DROPPED):
            self._means.aborts.send(self.instance, self._attempt.rids, seconds)
        flight = self._flight
        is_missed = outcome is not PrefillOutcome.DONE and not self._is_ended
        if is_missed and flight.answered_s is None:
            # The prompt is work of the instance that answers now.
            self._means.ledger.add_dispatch(flight.rid, flight.instance, self._prompt_tokens, now_s)
        self._note(outcome, seconds)


class Handoffs:
    """Decides for each attempt whether its prompt is computed elsewhere, and sends it there."""

    def __init__(
        self,
        config: HandoffConfig,
        means: Means,
        roles: Roles,
        dispatcher: Dispatcher,
        store: StoreFeed,
    ) -> None:
        self._min_prompt_tokens = config.min_prompt_tokens
        self._means = means
        self._metrics = means.metrics.handoff
        self._roles = roles
        self._dispatcher = dispatcher
        self._store = store
        self._promise = Promise.of_this_host()
        self._sent = 0
        self._outcomes: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()

    def status(self) -> HandoffStatus:
        """What was handed off so far."""
        return HandoffStatus(self._sent, dict(self._outcomes), dict(self._skipped))

    def start(self, flight: Flight, call: Call, answerer: Instance) -> Prefill | None:
        """Have the prompt of what `answerer` is to answer computed elsewhere, where that serves."""
        if not self._roles.is_mixed or call.endpoint.path not in FORMS:
            return None
        chosen = self._choose(flight, call, answerer)
        if isinstance(chosen, Obstacle):
            self._skipped[chosen] += 1
            self._metrics.skips.labels(chosen).inc()
            return None
        rid = mint_copy_rid(call, chosen)
        copy = copy_for_prefill(call)
        attempt = self._promise.make_attempt(flight, copy, chosen, rid, Handoff.PREFILL)
        self._sent += 1
        self._metrics.handoffs.labels("sent").inc()
        tokens = call.shape.prompt_tokens
        return Prefill(self._means, flight, attempt, chosen, tokens, self._note)

    def _choose(self, flight: Flight, call: Call, answerer: Instance) -> Instance | Obstacle:
        if flight.attempts > 1:
            return Obstacle.RETRY
        obstacle = find_obstacle(call, self._min_prompt_tokens)
        if obstacle is not None:
            return obstacle
        if call.friend is answerer and self._is_mostly_known(call):
            return Obstacle.ANSWERER_NEARER
        if not _shares_store(answerer):
            return Obstacle.FOREIGN
        if self._store.report() is None or not self._find_namespace(answerer):
            return Obstacle.STORE_SILENT
        if not self._roles.may_do(answerer, Work.ANSWER):
            return Obstacle.NO_DECODER
        return self._choose_prefiller(flight, call, answerer)

    def _choose_prefiller(
        self, flight: Flight, call: Call, answerer: Instance
    ) -> Instance | Obstacle:
        is_able = self._roles.may_do(answerer, Work.PROMPT)
        others = [
            instance
            for instance in self._roles.suited(Work.PROMPT, (answerer.name,))
            # Of two that are there for both, neither is the better one for the prompt.
            if _is_timely(instance) and not (is_able and self._does_both(instance))
        ]
        if not others:
            return Obstacle.NO_PREFILLER
        namespace = self._find_namespace(answerer)
        sharing = [other for other in others if self._find_namespace(other) == namespace]
        if not sharing:
            return Obstacle.APART
        free = [instance for instance in sharing if self._means.places.has_room(instance)]
        if not free:
            return Obstacle.PREFILLERS_FULL
        if is_able:
            free = sorted([*free, answerer], key=lambda instance: instance.name)
        chosen = self._dispatcher.choose_beside(
            answerer, free, call, flight.slo_class, time.monotonic()
        )
        return Obstacle.ANSWERER_NEARER if chosen is None else chosen

    def _is_mostly_known(self, call: Call) -> bool:
        """Whether what its friend has not seen of the prompt is no more than stays together."""
        unseen_share = 1 - call.friend_bytes / max(1, len(call.prompt))
        return call.shape.prompt_tokens * unseen_share < self._min_prompt_tokens

    def _find_namespace(self, instance: Instance) -> str:
        """Whose pages it looks for in the store and keeps there; "" while it does not do both."""
        report = self._means.ledger.report_of(instance.name)
        link = None if report is None else report.store
        if link is None or link.state != ATTACHED or link.is_resting:
            return ""
        return link.namespace

    def _does_both(self, instance: Instance) -> bool:
        return self._roles.of(instance) is Role.BOTH

    def _note(self, outcome: PrefillOutcome, seconds: float) -> None:
        self._outcomes[outcome] += 1
        self._metrics.handoffs.labels(f"prefill_{outcome}").inc()
        if outcome is PrefillOutcome.DONE:
            self._metrics.seconds.observe(seconds)


def _shares_store(instance: Instance) -> bool:
    """Whether it is one of this launch, all of which use the same store."""
    return bool(instance.spec.load_endpoint)


def _is_timely(instance: Instance) -> bool:
    """Whether its pages come to the store, and come soon."""
    return _shares_store(instance) and not instance.is_busy


def _judge(task: asyncio.Task[PrefillOutcome]) -> PrefillOutcome:
    if task.cancelled():
        return PrefillOutcome.DROPPED
    error = task.exception()
    if error is None:
        return task.result()
    _LOG.error("the copy of a request failed unexpectedly", exc_info=error)
    return PrefillOutcome.FAILED
