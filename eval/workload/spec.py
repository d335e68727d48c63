"""What a user may ask of a workload: sections, defaults and bounds.

`spec_reader` turns a mapping (a TOML file, say) into a `WorkloadSpec`; `spec_checks` holds the
rules that join several keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import msgspec

from bana.slo.limits import ClassName

DAY_S = 86_400.0
Seconds = Annotated[float, msgspec.Meta(ge=0, le=7 * DAY_S)]
SomeSeconds = Annotated[float, msgspec.Meta(gt=0, le=7 * DAY_S)]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Requests = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
TurnCount = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Factor = Annotated[float, msgspec.Meta(ge=0, le=100)]
Scale = Annotated[float, msgspec.Meta(gt=0, le=1_000_000)]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the workload; unknown keys are refused."""


class ArrivalKind(StrEnum):
    """Which process the arrivals follow; `trace` takes the times of the trace.

    `bench_serving` is the Poisson process that SGLang's benchmark draws for the same seed.
    """

    POISSON = "poisson"
    GAMMA = "gamma"
    CONSTANT = "constant"
    BENCH_SERVING = "bench_serving"
    TRACE = "trace"


class RampSpec(Section, frozen=True):
    """The rate goes from `start` to `end` times `rate_rps`, linearly over the window.

    It stays at `start` during warm-up and at `end` during cool-down.
    """

    start: Factor
    end: Factor


class ArrivalSpec(Section, frozen=True):
    """When requests are due. `cv` is the coefficient of variation of gamma gaps.

    Arrivals go on without a pause through warm-up, window (`duration_s`) and cool-down. A trace
    is replayed to its end where `duration_s` is absent, at `rate_rps` on average where that is
    given. More than `max_requests` are refused, never cut.
    """

    kind: ArrivalKind = ArrivalKind.POISSON
    rate_rps: Annotated[float, msgspec.Meta(gt=0, le=100_000)] | None = None
    cv: Annotated[float, msgspec.Meta(gt=0, le=20)] | None = None
    ramp: RampSpec | None = None
    duration_s: SomeSeconds | None = None
    warmup_s: Seconds = 0.0
    cooldown_s: Seconds = 0.0
    max_requests: Requests = 100_000


class ConstantLength(Section, frozen=True, tag_field="kind", tag="constant"):
    """Always `tokens`."""

    tokens: Tokens


class UniformLength(Section, frozen=True, tag_field="kind", tag="uniform"):
    """Each whole number from `low` to `high`, both included, equally often."""

    low: Tokens
    high: Tokens


class LognormalLength(Section, frozen=True, tag_field="kind", tag="lognormal"):
    """Lognormal by `mean` or `median`, and `p99` or `sigma` (of the logarithm).

    They describe the distribution before it is rounded and clipped to `low`..`high`.
    """

    mean: Annotated[float, msgspec.Meta(gt=0, le=10_000_000)] | None = None
    median: Annotated[float, msgspec.Meta(gt=0, le=10_000_000)] | None = None
    p99: Annotated[float, msgspec.Meta(gt=0, le=10_000_000)] | None = None
    sigma: Annotated[float, msgspec.Meta(gt=0, le=5)] | None = None
    low: Tokens = 1
    high: Tokens = 1_000_000


class EmpiricalLength(Section, frozen=True, tag_field="kind", tag="empirical"):
    """Drawn from the rows of an Azure or Mooncake trace, with replacement.

    Input and output lengths of the same trace are drawn from the same row.
    """

    path: Text


LengthSpec = ConstantLength | UniformLength | LognormalLength | EmpiricalLength


class PromptForm(StrEnum):
    """What prompts are: token ids (native endpoint), text, or chat messages."""

    TOKEN_IDS = "token_ids"
    TEXT = "text"
    CHAT = "chat"


class OverLimit(StrEnum):
    """What becomes of a prompt above `max_input_tokens`: cut at its end, or left out."""

    CLIP = "clip"
    DROP = "drop"


class FamilySpec(Section, frozen=True):
    """`share` of the conversations begin with one of `count` prefixes of `shared_tokens`.

    A prompt's length includes its prefix. The k-th family is chosen with weight 1 / k**zipf.
    """

    count: Annotated[int, msgspec.Meta(ge=1, le=100_000)]
    shared_tokens: Tokens
    share: Share = 1.0
    zipf: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.0


class PromptSpec(Section, frozen=True):
    """What is asked. Absent lengths are 512 in and 64 out, where no trace or file says them.

    `form` absent: text for a file and for recorded sessions, that of the trace for whole requests,
    else token ids. Ids are drawn from
    `token_id_low` up to, not including, `token_id_high`. `file` is a JSONL with `messages`,
    `conversations`, `turns`, `prompt` or `text`, or the text field named by `field`; a token of
    such text is estimated as `chars_per_token` characters.
    """

    form: PromptForm | None = None
    file: str = ""
    field: str = ""
    input_tokens: LengthSpec | None = None
    output_tokens: LengthSpec | None = None
    max_input_tokens: Tokens | None = None
    max_output_tokens: Tokens | None = None
    over_limit: OverLimit = OverLimit.CLIP
    token_id_low: TokenId = 100
    token_id_high: TokenId = 30_000
    chars_per_token: Annotated[float, msgspec.Meta(ge=0.25, le=64)] = 4.0
    ignore_eos: bool = True
    families: FamilySpec | None = None


class ThinkKind(StrEnum):
    """How the time from one turn to the next varies."""

    CONSTANT = "constant"
    EXPONENTIAL = "exponential"


class TurnsSpec(Section, frozen=True):
    """Conversations: `low`..`high` turns each, equally often; a file says its own.

    A turn is due `think_s` (on average) after the one before was *due*, so it has to hold the
    time that the answer takes. `new_tokens` are what a later turn adds, absent as the first.
    """

    think_s: SomeSeconds
    think: ThinkKind = ThinkKind.EXPONENTIAL
    low: TurnCount | None = None
    high: TurnCount | None = None
    new_tokens: LengthSpec | None = None


class TraceFormat(StrEnum):
    """Whose trace it is."""

    AZURE = "azure"
    MOONCAKE = "mooncake"
    AGENT_SESSIONS = "agent_sessions"
    OPENAI = "openai"


class TraceSpec(Section, frozen=True):
    """A recorded trace, replayed row by row; `format` absent is detected.

    The segment begins `offset_s` of trace time after the first row and ends after `max_requests`
    rows. `time_scale` 2 replays twice as fast. `length_scale` shortens or lengthens prompts and
    answers. `block_tokens` is what one hash id of a Mooncake trace stands for.
    """

    path: Text
    format: TraceFormat | None = None
    time_scale: Scale | None = None
    offset_s: Seconds = 0.0
    length_scale: Annotated[float, msgspec.Meta(gt=0, le=100)] = 1.0
    max_requests: Requests | None = None
    block_tokens: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 512


class CancelSpec(Section, frozen=True):
    """`share` of the requests are cancelled, exponentially distributed after their send."""

    share: Annotated[float, msgspec.Meta(gt=0, le=1)]
    mean_s: Annotated[float, msgspec.Meta(gt=0, le=DAY_S)]


class WorkloadSpec(Section, frozen=True):
    """Everything that, with a seed, fixes a workload. `classes` maps SLO classes to shares."""

    arrivals: ArrivalSpec
    prompts: PromptSpec = PromptSpec()
    turns: TurnsSpec | None = None
    trace: TraceSpec | None = None
    classes: Mapping[ClassName, Share] = {}
    cancel: CancelSpec | None = None
