"""Requests as a front door sends them on, and as SGLang holds them."""

from __future__ import annotations

from array import array
from typing import Any
from zlib import crc32

from sglang.srt.managers.schedule_batch import Req
from sglang.srt.sampling.sampling_params import SamplingParams

from .fake_engine import BOOT_ID, START_S

VOCABULARY = 1 << 60


def ask(
    rid: str,
    prompt_tokens: int,
    *,
    due_s: float = 100.0,
    at_s: float = START_S,
    new_tokens: int = 4,
    tpot_s: float = 1.0,
    slo_class: str = "standard",
    shared_tokens: int = 0,
    handoff: str = "",
) -> Req:
    """A request whose first token is due `due_s` after `at_s`; prompts share `shared_tokens`.

    `handoff` is this engine's part of a request that two of them serve.
    """
    promise = {
        "bana_slo_class": slo_class,
        "bana_ttft_s": due_s,
        "bana_tpot_s": tpot_s,
        "bana_arrival_s": at_s,
        "bana_deadline_s": at_s + due_s,
        "bana_boot_id": BOOT_ID,
        "bana_handoff": handoff,
    }
    own = crc32(rid.encode()) << 8
    tokens = [i if i < shared_tokens else own + i for i in range(prompt_tokens)]
    return make_req(rid, tokens, new_tokens, promise)


def make_req(rid: str, tokens: list[int], new_tokens: int, custom_params: Any) -> Req:
    """SGLang's request."""
    sampling = SamplingParams(
        max_new_tokens=new_tokens, temperature=0, ignore_eos=True, custom_params=custom_params
    )
    sampling.normalize(None)
    return Req(rid, "", array("q", tokens), sampling, vocab_size=VOCABULARY)
