"""Slots as the requests that a client sends: limits, prompts, classes, cancellations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from bana.eval.requests import DEFAULT_CLASS, Offered, Phase
from bana.eval.workload.arrivals import Phases
from bana.eval.workload.conversations import Piece, clip_pieces, count_tokens
from bana.eval.workload.rendering import Renderer
from bana.eval.workload.schedule import Schedule, Slot
from bana.eval.workload.seeds import Purpose, Seeds
from bana.eval.workload.spec import (
    CancelSpec,
    OverLimit,
    PromptForm,
    PromptSpec,
    WorkloadSpec,
)
from bana.eval.workload.token_runs import TokenRange
from bana.slo.errors import ConfigError

# What the prefix tree over all prompts may hold: about 1 GiB of token ids or of text.
MAX_TOTAL_TOKENS = 2**28
MAX_TOTAL_TEXT_TOKENS = 2**26


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A request before its prompt is rendered. `place` is its slot's, whatever was dropped."""

    place: int
    slot: Slot
    pieces: tuple[Piece, ...]
    prompt_tokens: int
    output_tokens: int


class Offering(msgspec.Struct, frozen=True):
    """The requests, and how many prompts and answers the limits touched."""

    requests: tuple[Offered, ...]
    notes: Mapping[str, object]


def offer_requests(
    spec: WorkloadSpec, schedule: Schedule, form: PromptForm, seeds: Seeds
) -> Offering:
    """One request a slot, in order; ConfigError when prompts would not fit into memory."""
    limits = _Limits(spec.prompts)
    pairs = enumerate(schedule.slots)
    drafts = [draft for place, slot in pairs for draft in limits.apply(place, slot)]
    _check_window(drafts, schedule.phases)
    _check_total(drafts, form)
    extras = _Extras(spec, schedule.slots, seeds)
    allowed = TokenRange(
        spec.prompts.token_id_low, spec.prompts.token_id_high - spec.prompts.token_id_low
    )
    renderer = Renderer(form, allowed, seeds.key(Purpose.CONTENT))
    maker = _Maker(spec, schedule.phases, extras, renderer)
    requests = tuple(maker.make(index, draft) for index, draft in enumerate(drafts))
    return Offering(requests, limits.notes())


class _Limits:
    """Applies the limits of `prompts` and counts what they touched."""

    def __init__(self, prompts: PromptSpec) -> None:
        self._prompts = prompts
        self._clipped = 0
        self._dropped = 0
        self._answers = 0

    def apply(self, place: int, slot: Slot) -> Iterator[Draft]:
        pieces = slot.conversation.pieces(slot.turn)
        tokens = count_tokens(pieces)
        limit = self._prompts.max_input_tokens
        if limit is not None and tokens > limit:
            if self._prompts.over_limit is OverLimit.DROP:
                self._dropped += 1
                return
            pieces = clip_pieces(pieces, limit, self._prompts.chars_per_token)
            tokens = limit
            self._clipped += 1
        yield Draft(place, slot, pieces, tokens, self._limit_answer(slot))

    def notes(self) -> Mapping[str, object]:
        return {
            "prompts_clipped": self._clipped,
            "prompts_dropped": self._dropped,
            "answers_clipped": self._answers,
        }

    def _limit_answer(self, slot: Slot) -> int:
        tokens = slot.conversation.turns[slot.turn].output_tokens
        limit = self._prompts.max_output_tokens
        if limit is None or tokens <= limit:
            return tokens
        self._answers += 1
        return limit


class _Extras:
    """What is drawn for each request beside its prompt: SLO class and cancellation.

    Draws belong to slots and conversations, so that a limit on lengths shifts none of them.
    """

    def __init__(self, spec: WorkloadSpec, slots: Sequence[Slot], seeds: Seeds) -> None:
        self._names = sorted(spec.classes)
        self._edges = np.cumsum([spec.classes[name] for name in self._names])
        highest = max((slot.conversation.number for slot in slots), default=0)
        self._classes = seeds.generator(Purpose.CLASSES).random(highest + 1)
        self._cancels = _draw_cancels(spec.cancel, len(slots), seeds)

    def class_of(self, draft: Draft) -> str:
        if not self._names:
            return DEFAULT_CLASS
        draw = self._classes[draft.slot.conversation.number]
        # Shares that add up to a hair below 1 leave their last class the rest.
        chosen = int(np.searchsorted(self._edges, draw, side="right"))
        return self._names[min(chosen, len(self._names) - 1)]

    def cancel_of(self, draft: Draft) -> float | None:
        return self._cancels[draft.place]


def _draw_cancels(cancel: CancelSpec | None, count: int, seeds: Seeds) -> list[float | None]:
    if cancel is None:
        return [None] * count
    chosen = seeds.generator(Purpose.CANCELLED).random(count) < cancel.share
    after_s = seeds.generator(Purpose.CANCEL_TIMES).standard_exponential(count) * cancel.mean_s
    pairs = zip(chosen.tolist(), after_s.tolist(), strict=True)
    return [time_s if is_chosen else None for is_chosen, time_s in pairs]


class _Maker:
    def __init__(
        self, spec: WorkloadSpec, phases: Phases, extras: _Extras, renderer: Renderer
    ) -> None:
        self._phases = phases
        self._extras = extras
        self._renderer = renderer
        self._ignore_eos = spec.prompts.ignore_eos
        self._are_sessions_named = spec.turns is not None

    def make(self, index: int, draft: Draft) -> Offered:
        phase = self._phases.phase_at(draft.slot.due_s)
        is_warmup = phase is Phase.WARMUP
        pieces = self._renderer.disguise(draft.pieces) if is_warmup else draft.pieces
        # Unlike content has unlike names: sharing across the end of warm-up there is none.
        ending = f"-{phase.value}" if is_warmup else ""
        family, session = draft.slot.conversation.family, self._session(draft.slot)
        return Offered(
            index=index,
            due_s=draft.slot.due_s,
            prompt=self._renderer.render(pieces),
            prompt_tokens=draft.prompt_tokens,
            output_tokens=draft.output_tokens,
            ignore_eos=self._ignore_eos,
            slo_class=self._extras.class_of(draft),
            phase=phase,
            family=family + ending if family else "",
            session=session + ending if session else "",
            cancel_after_s=self._extras.cancel_of(draft),
            extra_body=draft.slot.conversation.turns[draft.slot.turn].extra_body,
        )

    def _session(self, slot: Slot) -> str:
        if slot.conversation.session or not self._are_sessions_named:
            return slot.conversation.session
        return f"s{slot.conversation.number}"


def _check_window(drafts: Sequence[Draft], phases: Phases) -> None:
    if not any(phases.phase_at(draft.slot.due_s) is Phase.WINDOW for draft in drafts):
        raise ConfigError(
            f"the window of {phases.window_s:g} s holds no request; raise arrivals.rate_rps or "
            "duration_s, or prompts.max_input_tokens"
        )


def _check_total(drafts: Sequence[Draft], form: PromptForm) -> None:
    total = sum(draft.prompt_tokens for draft in drafts)
    allowed = MAX_TOTAL_TOKENS if form is PromptForm.TOKEN_IDS else MAX_TOTAL_TEXT_TOKENS
    if total > allowed:
        raise ConfigError(
            f"the workload's {len(drafts)} prompts have {total} tokens together, as "
            f"{form.value} at most {allowed}; shorten the prompts or the schedule, or set "
            "prompts.max_input_tokens or trace.length_scale"
        )
