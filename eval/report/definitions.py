"""What each figure of a report means, in a line each; `eval/README.md` has them in full."""

from __future__ import annotations

import msgspec


class Definition(msgspec.Struct, frozen=True):
    """A word and its one meaning."""

    word: str
    meaning: str


DEFINITIONS = (
    Definition(
        "Limits", "what a request was promised: TTFT, TPOT, E2E; one that is not set is not missed."
    ),
    Definition(
        "Attainment",
        "requests that met all their limits, over all that were offered in the window: rejected, "
        "failed, cut and unfinished ones count as missed.",
    ),
    Definition("Goodput", "requests per second of the window that met all their limits."),
    Definition(
        "Max rate",
        "the highest offered rate at which the target attainment is kept, interpolated between "
        "measured rates on both sides of it.",
    ),
    Definition("TTFT", "time to first token, from the moment a request was scheduled to be sent."),
    Definition(
        "From the send",
        "the same from when the client sent it: smaller where the client, or a cap, held it back.",
    ),
    Definition(
        "TPOT",
        "time per output token: (last − first) / (tokens − 1) of one request; one token has none.",
    ),
    Definition("ITL", "inter-token latency: each gap between arrivals of output."),
    Definition("E2E", "from the schedule to the end of a whole answer."),
    Definition("Offered rate", "requests due in the window, per second of it, however they ended."),
    Definition(
        "Arrival CV",
        "standard deviation over mean of the gaps between arrivals: 0 a clock, 1 Poisson, more is "
        "burstier.",
    ),
    Definition(
        "Lateness", "how long after its scheduled moment the client sent a request: its own fault."
    ),
    Definition("Probe", "a one-token request outside the load: how long a newcomer waits."),
    Definition(
        "Jain index",
        "how alike the classes' (else the quartiles') attainments are: 1 alike, 1/n one has all.",
    ),
    Definition("Quartiles", "four groups of rising prompt length; equal lengths are never parted."),
    Definition(
        "Balance",
        "largest over mean instance load, running and waiting together, averaged over time: 1 is "
        "even.",
    ),
    Definition(
        "95 % interval", "what resampling stretches of the window gives: how sure one run can be."
    ),
)
