"""From the configuration to the policies of an engine; the launcher builds them too, to check."""

from __future__ import annotations

import msgspec

from bana.slo.admission import ADMISSION, Admission
from bana.slo.governor import GOVERNORS, Governor
from bana.slo.order import ORDERS, QueueOrder
from sglang_bana.config import STOCK, SchedulingConfig


class Policies(msgspec.Struct, frozen=True):
    """Who answers each question; None leaves it to SGLang."""

    order: QueueOrder | None
    governor: Governor | None
    admission: Admission


def build_policies(config: SchedulingConfig) -> Policies:
    """The named policies with their options; ConfigError for an unknown or failing one."""
    order, governor = config.order, config.governor
    return Policies(
        order=None if order == STOCK else ORDERS.create(order, config.order_options),
        governor=None if governor == STOCK else GOVERNORS.create(governor, config.governor_options),
        admission=ADMISSION.create(config.admission, config.admission_options),
    )
