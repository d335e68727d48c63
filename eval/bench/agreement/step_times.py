"""The step times that an engine believed in, read from its decision log.

A step's time is a sum of coefficients times work, so the mean of the coefficients gives, for a step
of any shape, the mean of what was expected of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bana.eval.bench.errors import BenchError
from bana.eval.bench.trials import Values
from bana.slo.decisions import GovernorRecord, decode_line
from bana.slo.steps import StepModel

KEY = "model."


def measure_log(log: Path) -> int:
    """How many bytes a decision log has; BenchError where there is none."""
    try:
        return log.stat().st_size
    except OSError as error:
        raise BenchError(f"the decision log {log.name} cannot be read: {error}") from error


def read_mean_model(log: Path, from_byte: int) -> StepModel:
    """The mean model of all steps that were decided after `from_byte` of a log. O(bytes).

    BenchError where none was decided: then nothing was learned from what ran meanwhile.
    """
    models = list(_read_models(log, from_byte))
    if not models:
        raise BenchError(
            f"{log.name} has no decision of a governor after byte {from_byte}: nothing ran, or the "
            "log has reached scheduling.decision_log_bytes"
        )
    columns = zip(*map(msgspec.structs.astuple, models), strict=True)
    return StepModel(*map(statistics.fmean, columns))


def list_model(model: StepModel) -> Values:
    """The coefficients as they are kept beside other numbers."""
    return {KEY + name: value for name, value in msgspec.structs.asdict(model).items()}


def read_model(values: Values) -> StepModel:
    """The inverse of `list_model`; other numbers are passed over."""
    found = {
        name.removeprefix(KEY): value for name, value in values.items() if name.startswith(KEY)
    }
    return msgspec.convert(found, type=StepModel)


def _read_models(log: Path, from_byte: int) -> Iterator[StepModel]:
    try:
        with log.open("rb") as file:
            file.seek(from_byte)
            written = file.read()
    except OSError as error:
        raise BenchError(f"the decision log {log.name} cannot be read: {error}") from error
    # The engine goes on writing: what follows the last newline is not a line yet.
    for line in written.split(b"\n")[:-1]:
        decision = decode_line(line)
        if isinstance(decision, GovernorRecord):
            yield decision.view.model
