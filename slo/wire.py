"""Messages between bana's processes of one host: msgpack with typed schemas, never pickle.

An instance publishes `LoadReport`s on its ZMQ PUB socket; front door and launcher subscribe.
"""

from __future__ import annotations

import msgspec


class EngineProof(msgspec.Struct, frozen=True):
    """What really runs in a scheduler process, told by that process itself."""

    pid: int
    scheduler_class: str
    attention_backend: str
    platform: str
    device: str
    sglang_version: str
    tp_size: int
    page_size: int


class LoadReport(msgspec.Struct, frozen=True, tag="load"):
    """What one instance is doing, at `time_s` on CLOCK_MONOTONIC.

    Sent by a thread of rank 0's scheduler process, so that it arrives while a long step runs and
    stops when the process is stopped. `last_pass_s` is when the scheduler loop last passed.
    Counts of requests and tokens are those of that pass; `*_total` counters only grow within one
    process life, which `epoch` (the process's start in ns) names.
    `proof` is None for an attached server, which cannot give one.
    """

    instance: str
    epoch: int
    sequence: int
    time_s: float
    last_pass_s: float
    running_requests: int
    waiting_requests: int
    waiting_uncached_tokens: int
    prefilling_tokens: int
    used_tokens: int
    capacity_tokens: int
    prefill_tokens_total: int
    decode_tokens_total: int
    proof: EngineProof | None = None


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(LoadReport)


def encode_load(report: LoadReport) -> bytes:
    """One message, complete in itself."""
    return _ENCODER.encode(report)


def decode_load(message: bytes) -> LoadReport:
    """The report in `message`; msgspec.MsgspecError when it is not one."""
    return _DECODER.decode(message)
