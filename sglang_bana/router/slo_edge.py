"""What a request is promised: headers, body words and the key's class into one effective SLO.

Headers win over the body. Words that cannot be used are a 400 with the reason; numbers out of
range are clamped and the effective values echoed.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bana.slo.limits import Slo, SloAsk, SloError, SloRules, resolve_slo
from sglang_bana.router.errors import ApiError
from sglang_bana.router.keys import Grant

CLASS_HEADER = "x-bana-slo-class"
TTFT_HEADERS = ("x-bana-slo-ttft-ms", "x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
TPOT_HEADERS = ("x-bana-slo-tpot-ms", "x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
E2E_HEADERS = ("x-bana-slo-e2e-ms", "x-slo-e2e-ms")
BODY_PREFIX = "bana_"
BODY_CLASS = "bana_slo_class"
BODY_TTFT = "bana_slo_ttft_ms"
BODY_TPOT = "bana_slo_tpot_ms"
BODY_E2E = "bana_slo_e2e_ms"
BODY_WORDS = (BODY_CLASS, BODY_TTFT, BODY_TPOT, BODY_E2E)


def read_words(params: Mapping[str, msgspec.Raw]) -> dict[str, str]:
    """The client's `bana_*` words in `custom_params`, as text; ApiError for any other one."""
    words: dict[str, str] = {}
    for key, raw in params.items():
        if not key.startswith(BODY_PREFIX):
            continue
        if key not in BODY_WORDS:
            raise ApiError(
                400,
                "slo_param_unknown",
                f"custom_params.{key[:64]} is reserved; allowed: {', '.join(BODY_WORDS)}",
                f"custom_params.{key[:64]}",
            )
        text = bytes(raw).decode()
        if text != "null":
            # A number stays as written: decoding would refuse one that is only to be clamped.
            words[key] = msgspec.json.decode(raw, type=str) if text.startswith('"') else text
    return words


def decide_slo(
    headers: Mapping[str, str], words: Mapping[str, str], grant: Grant, rules: SloRules
) -> Slo:
    """The effective promise; ApiError 400 when the client's words cannot be used."""
    ask = SloAsk(
        ttft_ms=_first(headers, TTFT_HEADERS, words.get(BODY_TTFT)),
        tpot_ms=_first(headers, TPOT_HEADERS, words.get(BODY_TPOT)),
        e2e_ms=_first(headers, E2E_HEADERS, words.get(BODY_E2E)),
        slo_class=_first(headers, (CLASS_HEADER,), words.get(BODY_CLASS)),
        key_class=grant.slo_class,
    )
    try:
        return resolve_slo(ask, rules)
    except SloError as error:
        raise ApiError(400, error.code, str(error), error.param) from error


def echo_slo(slo: Slo) -> dict[str, str]:
    """The response headers that tell the effective promise."""
    echo = {
        CLASS_HEADER: slo.slo_class,
        TTFT_HEADERS[0]: f"{slo.ttft_s * 1e3:.10g}",
        TPOT_HEADERS[0]: f"{slo.tpot_s * 1e3:.10g}",
    }
    if slo.e2e_s is not None:
        echo[E2E_HEADERS[0]] = f"{slo.e2e_s * 1e3:.10g}"
    if slo.clamped:
        echo["x-bana-slo-clamped"] = ",".join(slo.clamped)
    return echo


def _first(headers: Mapping[str, str], names: tuple[str, ...], last: str | None) -> str | None:
    for name in names:
        found = headers.get(name)
        if found is not None:
            return found.strip()
    return last
