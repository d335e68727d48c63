"""Which instance gets the next request: builds the view, asks the policy, checks its answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from random import Random

from bana.radix_global.admin_messages import StoreReport
from bana.slo.load import LoadLedger
from bana.slo.routing import (
    DEFAULT_ROUTING,
    ROUTING,
    InstanceView,
    RoutingDecision,
    RoutingView,
    StoreView,
)
from bana.slo.steps import EnginePrices
from sglang_bana.config import RoutingConfig
from sglang_bana.router.call import Call
from sglang_bana.router.instances import Instance, InstanceBoard
from sglang_bana.router.metrics import RouterMetrics
from sglang_bana.router.prefix_index import BLOCK_BYTES, PrefixIndex, hash_prefixes
from sglang_bana.router.store_view import view_store

_LOG = logging.getLogger(__name__)


class Dispatcher:
    """Applies the configured routing policy; a fault falls back to the default, counted."""

    def __init__(
        self,
        config: RoutingConfig,
        board: InstanceBoard,
        ledger: LoadLedger,
        metrics: RouterMetrics,
        find_store: Callable[[], StoreReport | None],
    ) -> None:
        self._find_store = find_store
        self.policy_name = config.policy
        self._policy = ROUTING.create(config.policy, config.options)
        self._fallback = ROUTING.create(DEFAULT_ROUTING)
        self._ledger = ledger
        self._metrics = metrics
        self._rng = Random(config.seed)
        self._dispatched = 0
        # Counted apart: by one count, policies that take turns among those who answer would skip
        # every second of them whenever a prompt is given to another.
        self._handed_off = 0
        self._prefixes: PrefixIndex | None = None
        self.fault: str | None = None
        if self._policy.needs_prefix:
            names = [instance.name for instance in board.all()]
            self._prefixes = PrefixIndex(names, config.prefix_index_pages)

    def choose(
        self, usable: Sequence[Instance], call: Call, slo_class: str, now_s: float
    ) -> Instance:
        """The one of `usable`, which must not be empty, that the policy wants to answer `call`."""
        keys = self._hash(call)
        view = self._build_view(usable, call, keys, slo_class, self._dispatched)
        decision = self._decide(view, now_s)
        self._dispatched += 1
        self._note(decision, keys)
        return next(i for i in usable if i.name == decision.instance)

    def choose_beside(
        self,
        answerer: Instance,
        usable: Sequence[Instance],
        call: Call,
        slo_class: str,
        now_s: float,
    ) -> Instance | None:
        """The one of `usable`, which must not be empty, that the policy wants for the prompt.

        None where that is `answerer`, the one that was chosen to answer.
        """
        keys = self._hash(call)
        view = self._build_view(usable, call, keys, slo_class, self._handed_off)
        decision = self._decide(view, now_s)
        self._handed_off += 1
        if decision.instance == answerer.name:
            return None
        self._note(decision, keys)
        return next(i for i in usable if i.name == decision.instance)

    def forget_instance(self, instance: str) -> None:
        """It restarted or died: its load and its cache are gone."""
        self._ledger.forget_instance(instance)
        self.forget_cache(instance)

    def forget_cache(self, instance: str) -> None:
        """It keeps nothing of earlier prompts any more."""
        if self._prefixes is not None:
            self._prefixes.forget_instance(instance)

    def _hash(self, call: Call) -> list[int]:
        return hash_prefixes(call.prompt) if self._prefixes is not None else []

    def _note(self, decision: RoutingDecision, keys: list[int]) -> None:
        if self._prefixes is not None:
            self._prefixes.insert(keys, decision.instance)
        reason = self._metrics.cap_reason(decision.reason)
        self._metrics.dispatches.labels(decision.instance, reason).inc()

    def _build_view(
        self,
        usable: Sequence[Instance],
        call: Call,
        keys: list[int],
        slo_class: str,
        dispatched: int,
    ) -> RoutingView:
        loads = self._ledger.loads(i.name for i in usable)
        index = self._prefixes
        known = self._find_known(call, keys)
        views = tuple(
            InstanceView(
                name=name,
                prefill_tokens=load.prefill_tokens,
                decode_requests=load.decode_requests,
                waiting_requests=load.waiting_requests,
                prefix_tokens=known.get(name, 0),
                indexed_tokens=0 if index is None else index.indexed_tokens(name),
                prices=self._find_prices(name),
            )
            for name, load in loads.items()
        )
        return RoutingView(
            instances=views,
            prompt_tokens=call.shape.prompt_tokens,
            output_tokens=call.shape.output_tokens,
            slo_class=slo_class,
            dispatched=dispatched,
            store=self._view_store(known),
        )

    def _find_known(self, call: Call, keys: list[int]) -> Mapping[str, int]:
        """How much of the prompt each instance has seen, in tokens as its size is estimated."""
        if self._prefixes is None or not keys:
            return {}
        block_tokens = BLOCK_BYTES * call.shape.prompt_tokens / len(call.prompt)
        matched = self._prefixes.match(keys)
        return {name: int(blocks * block_tokens) for name, blocks in matched.items()}

    def _find_prices(self, name: str) -> EnginePrices | None:
        report = self._ledger.report_of(name)
        told = None if report is None else report.scheduling
        return None if told is None else told.prices

    def _view_store(self, known: Mapping[str, int]) -> StoreView | None:
        """What any instance has computed is in their store, as far as it has been kept there."""
        report = self._find_store() if known else None
        if report is None:
            return None
        links = (told.store for name in known if (told := self._ledger.report_of(name)))
        token_bytes = max((link.token_bytes for link in links if link is not None), default=0.0)
        return view_store(report, max(known.values()), token_bytes)

    def _decide(self, view: RoutingView, now_s: float) -> RoutingDecision:
        try:
            decision = self._policy.decide_instance(view, now_s, self._rng)
            if any(i.name == decision.instance for i in view.instances):
                return decision
            fault = f"it chose {decision.instance!r}, which is not in its view"
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        self._note_fault(fault)
        chosen = self._fallback.decide_instance(view, now_s, self._rng).instance
        return RoutingDecision(chosen, "policy_fault")

    def _note_fault(self, fault: str) -> None:
        self._metrics.faults.labels(self.policy_name).inc()
        if self.fault is None:
            self.fault = (
                f"routing policy {self.policy_name!r} failed ({fault}); {DEFAULT_ROUTING!r} "
                "decides instead whenever it does"
            )
            _LOG.warning(self.fault)
