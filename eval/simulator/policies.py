"""Policies by the names under which they are registered."""

from __future__ import annotations

from bana.eval.simulator.deciding import Policies
from bana.eval.simulator.spec import PolicySpec
from bana.slo.admission import ADMISSION
from bana.slo.decisions import LogHeader
from bana.slo.governor import GOVERNORS
from bana.slo.order import ORDERS
from bana.slo.restore import RESTORES


def build_policies(spec: PolicySpec) -> Policies:
    """Those that `spec` names; ConfigError for an unknown name or option."""
    admission, restore = spec.admission, spec.restore
    return Policies(
        order=ORDERS.create(spec.order.name, spec.order.options),
        governor=GOVERNORS.create(spec.governor.name, spec.governor.options),
        admission=None
        if admission is None
        else ADMISSION.create(admission.name, admission.options),
        restore=None if restore is None else RESTORES.create(restore.name, restore.options),
    )


def describe_policies(spec: PolicySpec, seed: int) -> LogHeader:
    """The header of a log of their decisions."""
    return LogHeader(seed, spec.order, spec.governor, spec.admission, spec.restore)
