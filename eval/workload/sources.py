"""Where conversations come from: made up, a prompt file, or a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from bana.eval.workload.conversations import Conversation
from bana.eval.workload.file_source import FilePlan, choose_lines, compose_file
from bana.eval.workload.lengths import Column, Draw, draw_lengths
from bana.eval.workload.mooncake import BlockScale, compose_blocks
from bana.eval.workload.openai_requests import compose_requests, find_form
from bana.eval.workload.prompt_file import FileConversation, read_prompt_file
from bana.eval.workload.recorded_sessions import TextScale, compose_sessions
from bana.eval.workload.scaling import scale_length
from bana.eval.workload.seeds import Purpose, Seeds
from bana.eval.workload.spec import (
    ArrivalKind,
    ConstantLength,
    FamilySpec,
    PromptForm,
    TraceFormat,
    TraceSpec,
    WorkloadSpec,
)
from bana.eval.workload.synthetic import (
    TurnLengths,
    choose_members,
    compose_synthetic,
    derive_own_runs,
)
from bana.eval.workload.traces import Trace, read_trace
from bana.slo.errors import ConfigError

DEFAULT_INPUT = ConstantLength(512)
DEFAULT_OUTPUT = ConstantLength(64)


class Composed(msgspec.Struct, frozen=True):
    """Conversations, and what readers must know of how they were made."""

    conversations: tuple[Conversation, ...]
    notes: Mapping[str, object] = {}


class Source(msgspec.Struct, frozen=True):
    """Conversations on demand. `times_s` are those of a trace, and None without one."""

    name: str
    form: PromptForm
    compose: Callable[[int], Composed]
    mean_turns: float = 1.0
    max_turns: int = 1
    times_s: NDArray[np.float64] | None = None


def open_source(spec: WorkloadSpec, seeds: Seeds) -> Source:
    """The source that `spec` names, its file read; ConfigError when it cannot be used."""
    if spec.trace is not None:
        return _open_trace(spec, spec.trace, seeds)
    if spec.prompts.file:
        return _open_file(spec, seeds)
    low = spec.turns.low or 1 if spec.turns is not None else 1
    high = spec.turns.high or 1 if spec.turns is not None else 1
    return Source(
        name="synthetic",
        form=spec.prompts.form or PromptForm.TOKEN_IDS,
        compose=lambda count: _make_up(spec, seeds, count),
        mean_turns=(low + high) / 2,
        max_turns=high,
    )


def _make_up(spec: WorkloadSpec, seeds: Seeds, count: int) -> Composed:
    turns = np.ones(count, dtype=np.int64)
    later_spec = spec.prompts.input_tokens or DEFAULT_INPUT
    if spec.turns is not None:
        low, high = spec.turns.low or 1, spec.turns.high or 1
        turns = seeds.generator(Purpose.TURNS).integers(low, high, count, endpoint=True)
        later_spec = spec.turns.new_tokens or later_spec
    total = int(turns.sum())
    draw = Draw(count, Purpose.INPUT, Column.INPUT)
    first = draw_lengths(spec.prompts.input_tokens or DEFAULT_INPUT, draw, seeds)
    later = draw_lengths(later_spec, Draw(total, Purpose.NEW_INPUT, Column.INPUT), seeds)
    draw = Draw(total, Purpose.OUTPUT, Column.OUTPUT)
    output = draw_lengths(spec.prompts.output_tokens or DEFAULT_OUTPUT, draw, seeds)
    lengths = TurnLengths(turns, first.tokens, later.tokens, output.tokens)
    notes: dict[str, object] = {
        "input_lengths_clipped": first.clipped + (later.clipped if total > count else 0),
        "output_lengths_clipped": output.clipped,
    }
    return _join_families(lengths, spec.prompts.families, seeds, notes)


def _join_families(
    lengths: TurnLengths,
    families: FamilySpec | None,
    seeds: Seeds,
    notes: Mapping[str, object],
) -> Composed:
    count = len(lengths.first)
    members = choose_members(families, count, seeds)
    runs = derive_own_runs(families, count, seeds)
    made = compose_synthetic(lengths, members, runs)
    if families is None:
        return Composed(made, notes)
    pairs = zip(members, lengths.first.tolist(), strict=True)
    short = sum(bool(m.prefix) and first <= families.shared_tokens for m, first in pairs)
    return Composed(made, {**notes, "prefixes_cut_short": short})


def _open_file(spec: WorkloadSpec, seeds: Seeds) -> Source:
    known = read_prompt_file(spec.prompts.file, spec.prompts.field)
    if spec.turns is None:
        known = tuple(FileConversation(c.turns[:1]) for c in known)
    counts = [len(c.turns) for c in known]

    def compose(count: int) -> Composed:
        order = choose_lines(count, len(known), seeds.generator(Purpose.FILE))
        return _compose_lines(spec, seeds, tuple(known[i] for i in order))

    return Source(
        name="file",
        form=spec.prompts.form or PromptForm.TEXT,
        compose=compose,
        mean_turns=sum(counts) / len(counts),
        max_turns=max(counts),
    )


def _compose_lines(
    spec: WorkloadSpec, seeds: Seeds, lines: tuple[FileConversation, ...]
) -> Composed:
    prompts = spec.prompts
    draw = Draw(sum(len(c.turns) for c in lines), Purpose.OUTPUT, Column.OUTPUT)
    output = draw_lengths(prompts.output_tokens or DEFAULT_OUTPUT, draw, seeds)
    plan = FilePlan(
        output=output.tokens,
        members=choose_members(prompts.families, len(lines), seeds),
        runs=derive_own_runs(prompts.families, len(lines), seeds),
        chars_per_token=prompts.chars_per_token,
        are_answers_kept=prompts.output_tokens is None,
    )
    return Composed(compose_file(lines, plan), {"output_lengths_clipped": output.clipped})


def _open_trace(spec: WorkloadSpec, wanted: TraceSpec, seeds: Seeds) -> Source:
    trace = read_trace(wanted)
    if trace.format is not TraceFormat.AZURE and spec.prompts.families is not None:
        raise ConfigError(
            f"workload prompts.families: a trace of format {trace.format.value!r} says what "
            "prompts share; remove the families or replay an azure trace"
        )
    return Source(
        name=trace.format.value,
        form=_choose_form(spec, trace),
        compose=lambda count: _compose_rows(spec, trace, seeds, count),
        times_s=_read_times(spec, trace),
    )


def _read_times(spec: WorkloadSpec, trace: Trace) -> NDArray[np.float64] | None:
    times_s = [row.time_s for row in trace.rows if row.time_s is not None]
    if times_s:
        return np.array(times_s)
    if spec.arrivals.kind is ArrivalKind.TRACE:
        raise ConfigError(
            "workload arrivals.kind='trace': no line of this trace has a timestamp; give them "
            "some, or take another kind (poisson, say) with rate_rps and duration_s"
        )
    return None


def _choose_form(spec: WorkloadSpec, trace: Trace) -> PromptForm:
    if trace.format is TraceFormat.OPENAI:
        return _find_recorded_form(spec, trace)
    is_text = trace.format is TraceFormat.AGENT_SESSIONS
    form = spec.prompts.form
    if is_text and form is PromptForm.TOKEN_IDS:
        raise ConfigError(
            "workload prompts.form='token_ids': recorded sessions are text, which has no token "
            "ids here; take 'text' or 'chat'"
        )
    return form or (PromptForm.TEXT if is_text else PromptForm.TOKEN_IDS)


def _find_recorded_form(spec: WorkloadSpec, trace: Trace) -> PromptForm:
    """The one form that all prompts of a trace of whole requests have."""
    forms = {find_form(row.prompt) for row in trace.rows if row.prompt is not None}
    names = ", ".join(sorted(form.value for form in forms))
    if len(forms) > 1:
        raise ConfigError(f"the trace has prompts as {names}; keep those of one form")
    asked = spec.prompts.form
    if asked is not None and asked not in forms:
        raise ConfigError(
            f"workload prompts.form={asked.value!r}: the trace's prompts are {names}, and are sent "
            "as they are; remove it"
        )
    return forms.pop()


def _compose_rows(spec: WorkloadSpec, trace: Trace, seeds: Seeds, count: int) -> Composed:
    scale = spec.trace.length_scale if spec.trace is not None else 1.0
    rows = trace.rows[:count]
    if count > len(rows):
        raise ConfigError(
            f"the trace has {len(rows)} requests from its offset on and the schedule needs "
            f"{count}; lower arrivals.duration_s or rate_rps, or draw lengths with kind 'empirical'"
        )
    match trace.format:
        case TraceFormat.AZURE:
            added = [scale_length(row.input_tokens, scale) for row in rows]
            output = [scale_length(row.output_tokens, scale) for row in rows]
            first = np.array(added, dtype=np.int64)
            ones = np.ones(count, dtype=np.int64)
            lengths = TurnLengths(ones, first, first, np.array(output, dtype=np.int64))
            return _join_families(lengths, spec.prompts.families, seeds, {})
        case TraceFormat.MOONCAKE:
            block = spec.trace.block_tokens if spec.trace is not None else 512
            base = seeds.key(Purpose.CONTENT)
            return Composed(compose_blocks(rows, BlockScale(block, scale), base))
        case TraceFormat.AGENT_SESSIONS:
            texts = TextScale(scale, spec.prompts.chars_per_token)
            return Composed(compose_sessions(rows, texts))
        case TraceFormat.OPENAI:
            if scale != 1.0:
                raise ConfigError(
                    f"workload trace.length_scale={scale:g}: whole requests are sent as they are; "
                    "remove it"
                )
            return Composed(compose_requests(rows, spec.prompts.chars_per_token))
