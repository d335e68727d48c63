"""The step times that a scene names, and the coefficients that policies believe in."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bana.eval.simulator.fitting import fit_steps
from bana.eval.simulator.service import DelayedTimes, StepTimes
from bana.eval.simulator.spec import CoefficientTimes, FittedTimes, SceneSpec
from bana.eval.simulator.tables import read_tables
from bana.slo.errors import ConfigError
from bana.slo.steps import StepModel


class Hardware(msgspec.Struct, frozen=True):
    """`times` are the truth, `model` the best belief; `note` says whence, and how far apart."""

    times: StepTimes
    model: StepModel
    note: str


def build_hardware(scene: SceneSpec) -> Hardware:
    """What the scene's `service` says, with the scheduler's overhead in every step."""
    service = scene.service
    if isinstance(service, CoefficientTimes):
        model = read_model(service)
        truth: StepTimes = model
        note = "coefficients"
    else:
        kernels = read_tables(service.model, service.system, service.tensor_parallel)
        fit = fit_steps(kernels)
        truth, model = kernels, fit.model
        name = f"SGLang kernels of {service.model} on {service.tensor_parallel} {service.system}"
        errors = f"{fit.lowest_error:+.0%} to {fit.highest_error:+.0%}"
        note = f"{name}; coefficients fitted to them are off by {errors}"
        if isinstance(service, FittedTimes):
            truth, note = model, f"coefficients fitted to {name}, off by {errors}"
    return _delay(Hardware(truth, model, note), scene.overhead_ms / 1e3)


def read_model(service: CoefficientTimes) -> StepModel:
    """The coefficients that are given; ConfigError where there are none, or not only once."""
    if (service.model is None) == (not service.file):
        raise ConfigError(
            "scene service: give either a table service.model of coefficients, or service.file "
            "with a JSON of them"
        )
    if service.model is not None:
        return service.model
    try:
        return msgspec.json.decode(Path(service.file).read_bytes(), type=StepModel)
    except OSError as error:
        raise ConfigError(
            f"cannot read {service.file!r} ({error.strerror}); name a file"
        ) from error
    except msgspec.DecodeError as error:
        fields = ", ".join(StepModel.__struct_fields__)
        raise ConfigError(
            f"{service.file!r}: {error}; expected a JSON object of {fields}"
        ) from error


def _delay(hardware: Hardware, overhead_s: float) -> Hardware:
    if not overhead_s:
        return hardware
    model = hardware.model
    known = msgspec.structs.replace(
        model,
        prefill_base_s=model.prefill_base_s + overhead_s,
        decode_base_s=model.decode_base_s + overhead_s,
    )
    return Hardware(DelayedTimes(hardware.times, overhead_s), known, hardware.note)
