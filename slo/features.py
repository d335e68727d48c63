"""A step as one line of a linear model: its features times the coefficients are its time."""

from __future__ import annotations

import math

import numpy as np

from bana.slo.governor import StepKind
from bana.slo.regression import Floats
from bana.slo.steps import StepModel, StepShape

FEATURES = 6
PREFILL, DECODE = slice(0, 3), slice(3, 6)
GROUPS = (PREFILL, DECODE)
# How a first measured step is split over tokens and attention, requests and context; bases take
# the rest. Little attention: what it is overrated by is multiplied by the context of later steps.
FIRST_SHARES = np.array([0.0, 0.7, 0.02, 0.0, 0.2, 0.1])
USUAL_WORK = np.array([1.0, 512.0, 131_072.0, 1.0, 8.0, 8192.0])
# What a step is taken to last at least and at most; keeps arithmetic finite.
SHORTEST_S, LONGEST_S = 1e-6, 3600.0


def classify_step(shape: StepShape) -> StepKind:
    """What kind of step this is; an empty one counts as decode."""
    if shape.prefill_tokens and shape.decode_requests:
        return StepKind.MIXED
    return StepKind.PREFILL if shape.prefill_tokens else StepKind.DECODE


def is_usable(shape: StepShape, measured_s: float) -> bool:
    """Whether this can be a measurement: a positive finite time, of a step that does something."""
    counts = (shape.prefill_tokens, shape.decode_requests, shape.context_tokens)
    does_work = shape.prefill_tokens + shape.decode_requests > 0
    # Every token sees itself; 0 stands for a caller that does not say.
    seen = shape.attended_tokens
    is_possible = min(counts) >= 0 and (seen == 0 or shape.prefill_tokens <= seen < math.inf)
    return does_work and is_possible and 0 < measured_s < math.inf


def count_features(shape: StepShape, model: StepModel) -> tuple[float, ...]:
    """What each coefficient is multiplied by; a mixed step pays the larger base alone."""
    has_prefill, has_decode = float(shape.prefill_tokens > 0), float(shape.decode_requests > 0)
    pays_prefill = not has_decode or model.prefill_base_s >= model.decode_base_s
    return (
        has_prefill if pays_prefill else 0.0,
        float(shape.prefill_tokens),
        has_prefill * shape.attended_tokens,
        0.0 if has_prefill and pays_prefill else has_decode,
        float(shape.decode_requests),
        has_decode * shape.context_tokens,
    )


def list_unknown(shape: StepShape, model: StepModel) -> list[slice]:
    """The groups of coefficients that price this step and have no value yet."""
    unknown = []
    if shape.prefill_tokens:
        known_s = model.prefill_base_s + model.prefill_token_s + model.attended_token_s
        unknown += [] if known_s else [PREFILL]
    if shape.decode_requests:
        known_s = model.decode_base_s + model.decode_request_s + model.context_token_s
        unknown += [] if known_s else [DECODE]
    return unknown


def split_first(shape: StepShape, time_s: float) -> Floats:
    """Coefficients that price each group of `shape` at `time_s`.

    Tokens, requests and context are priced as in a step of a usual size, unless this one is
    larger; the base takes the rest. So a first measurement of a few tokens, such as a warm-up,
    does not make a full chunk look dear.
    """
    prefill = (0.0, shape.prefill_tokens, shape.attended_tokens)
    decode = (0.0, shape.decode_requests, shape.context_tokens)
    work = np.array(prefill + decode)
    prices: Floats = FIRST_SHARES * time_s / np.maximum(work, USUAL_WORK)
    for group, is_used in ((PREFILL, shape.prefill_tokens), (DECODE, shape.decode_requests)):
        prices[group.start] = time_s - float(prices[group] @ work[group])
        prices[group] *= is_used > 0
    return prices


def coefficients_of(model: StepModel) -> Floats:
    """The coefficients in the order of the features."""
    return np.array([getattr(model, name) for name in StepModel.__struct_fields__])


def model_of(coefficients: Floats) -> StepModel:
    """The model with these coefficients."""
    return StepModel(*coefficients.tolist())
