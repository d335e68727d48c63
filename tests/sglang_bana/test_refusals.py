"""Flags that an instance cannot honour are refused, each with its reason."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bana.slo.errors import ConfigError
from sglang_bana.engine.refusals import REFUSALS, refuse_unsupported, refuse_unsupported_on_cpu

HARMLESS = {
    "tokenizer_worker_num": 1,
    "dp_size": 1,
    "attn_dp_size": 1,
    "nnodes": 1,
    "disaggregation_mode": "null",
    "decoupled_spec_role": "null",
    "encoder_urls": [],
    "speculative_algorithm": None,
}
REFUSED = {
    "use_ray": True,
    "grpc_mode": True,
    "smg_grpc_mode": True,
    "grpc_port": 50051,
    "sidecar": "some.module",
    "encoder_only": True,
    "language_only": True,
    "encoder_urls": ["http://encoder"],
    "tokenizer_worker_num": 2,
    "dp_size": 2,
    "attn_dp_size": 2,
    "nnodes": 2,
    "disaggregation_mode": "prefill",
    "decoupled_spec_role": "drafter",
    "enable_http2": True,
    "ssl_certfile": "cert.pem",
    "api_key": "sesame",
    "admin_api_key": "sesame",
}


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SGLANG_RUST_SERVER", "SGLANG_GRPC_PORT", "SGLANG_USE_CPU_ENGINE"):
        monkeypatch.delenv(name, raising=False)


def arguments(**changed: object) -> SimpleNamespace:
    fields = {refusal.field: HARMLESS.get(refusal.field) for refusal in REFUSALS}
    return SimpleNamespace(**{**fields, "speculative_algorithm": None, **changed})


def test_defaults_are_fine() -> None:
    refuse_unsupported(arguments())
    refuse_unsupported_on_cpu(arguments())


def test_the_cases_cover_the_table() -> None:
    assert set(REFUSED) == {refusal.field for refusal in REFUSALS}


@pytest.mark.parametrize("field", sorted(REFUSED))
def test_flag_is_refused_by_name(field: str) -> None:
    flag = "--" + field.replace("_", "-")
    with pytest.raises(ConfigError, match=f"SGLang's {flag}.* cannot be used: ") as caught:
        refuse_unsupported(arguments(**{field: REFUSED[field]}))
    assert "sesame" not in str(caught.value)


NEXT_STEPS = ("leave it out", "use `bana launch", "with `bana launch", "set bana's")


@pytest.mark.parametrize("field", sorted(REFUSED))
def test_refusals_tell_what_to_do_instead(field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        refuse_unsupported(arguments(**{field: REFUSED[field]}))
    assert any(step in str(caught.value) for step in NEXT_STEPS)


def test_speculation_is_refused_on_the_cpu_only() -> None:
    speculative = arguments(speculative_algorithm="EAGLE")
    refuse_unsupported(speculative)
    with pytest.raises(ConfigError, match="--speculative-algorithm EAGLE"):
        refuse_unsupported_on_cpu(speculative)


@pytest.mark.parametrize("name", ["SGLANG_RUST_SERVER", "SGLANG_USE_CPU_ENGINE"])
def test_environment_that_starts_another_server_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError, match=f"{name}=1 cannot be used"):
        refuse_unsupported(arguments())
    monkeypatch.setenv(name, "0")
    refuse_unsupported(arguments())
