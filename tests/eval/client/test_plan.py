from __future__ import annotations

from typing import Any

import pytest

from bana.eval.client.plan import ClientPlan, Endpoint, Timeouts
from bana.eval.client.target import Target
from bana.slo.errors import ConfigError

TARGET = Target("http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"timeouts": Timeouts(stall_s=0)}, "timeouts.stall_s 0"),
        ({"timeouts": Timeouts(total_s=float("nan"))}, "timeouts.total_s nan"),
        ({"lateness_limit_s": -1.0}, "client.lateness_limit_ms -1000"),
        ({"max_outstanding": 0}, "max_outstanding 0"),
        ({"probe_rps": 0.0}, "probe_rps 0"),
        ({"probe_rps": 1e9}, "probe_rps 1e\\+09"),
        ({"sample_interval_s": 0.0}, "sample_interval_s 0"),
        ({"temperature": -0.1}, "temperature -0.1"),
        ({"headers": {"a": "\n"}}, "header a"),
        ({"endpoint": Endpoint.CHAT}, "wants a model"),
        ({"endpoint": Endpoint.COMPLETIONS}, "wants a model"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        ClientPlan(TARGET, **changes)


def test_the_native_endpoint_needs_no_model() -> None:
    assert ClientPlan(TARGET).endpoint.path == "/generate"
