"""One client request as it will be sent to an instance: edited per attempt, never shared."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path

from bana.slo.handoff import HANDOFF_HEADER, HANDOFF_PARAM, Handoff
from bana.slo.limits import Slo
from sglang_bana.router.body import (
    Fields,
    Shape,
    encode_fields,
    list_rids,
    put_params,
    put_rid,
)
from sglang_bana.router.endpoints import Endpoint, RidCarrier, SloCarrier
from sglang_bana.router.flights import Flight
from sglang_bana.router.ids import mint_rid
from sglang_bana.router.instances import Instance
from sglang_bana.router.upstream import Message

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """What to send. `fields` is the parsed body where it may be edited, else `body` is sent.

    `owner` is the only instance that can answer; `friend` the one that answered under the same
    hint before and should again, if it may get new work: about the first `friend_bytes` of the
    prompt. `keys`: under which of the client's ids the instance that did it is remembered.
    """

    endpoint: Endpoint
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes | None
    fields: Fields | None
    shape: Shape
    prompt: bytes
    owner: Instance | None = None
    friend: Instance | None = None
    friend_bytes: int = 0
    keys: tuple[bytes, ...] = ()


class Promise:
    """How an SLO travels: absolute on this host, remaining seconds elsewhere, headers to bana."""

    def __init__(self, boot_id: str) -> None:
        self._boot_id = boot_id

    @classmethod
    def of_this_host(cls) -> Promise:
        """For this boot of this host, within which CLOCK_MONOTONIC times are comparable."""
        return cls(BOOT_ID_FILE.read_text(encoding="ascii").strip())

    def make_attempt(
        self,
        flight: Flight,
        call: Call,
        instance: Instance,
        rid: str,
        part: Handoff | None = None,
    ) -> Attempt:
        """`call` for this instance, with what `flight` is promised, as one part of a hand-off."""
        params: dict[str, object] = {}
        headers: dict[str, str] = {}
        if flight.slo is not None:
            now_s = time.monotonic()
            params = self.params(flight.slo, flight.arrival_s, now_s, instance)
            headers = self.headers(flight.slo, flight.arrival_s, now_s, instance)
        if part is not None and call.endpoint.slo is SloCarrier.NONE:
            headers[HANDOFF_HEADER] = part
        elif part is not None:
            params[HANDOFF_PARAM] = part
        return Attempt(call, rid, params, headers)

    def params(
        self, slo: Slo, arrival_s: float, now_s: float, instance: Instance
    ) -> dict[str, object]:
        """The `custom_params` for this instance."""
        if instance.is_bana:
            return {}
        params: dict[str, object] = {
            "bana_slo_class": slo.slo_class,
            "bana_ttft_s": slo.ttft_s,
            "bana_tpot_s": slo.tpot_s,
        }
        if slo.e2e_s is not None:
            params["bana_e2e_s"] = slo.e2e_s
        deadline_s = arrival_s + slo.ttft_s
        if instance.spec.local:
            params["bana_arrival_s"] = arrival_s
            params["bana_deadline_s"] = deadline_s
            params["bana_boot_id"] = self._boot_id
        else:
            params["bana_remaining_s"] = deadline_s - now_s
        return params

    def headers(
        self, slo: Slo, arrival_s: float, now_s: float, instance: Instance
    ) -> dict[str, str]:
        """The headers for this instance: another bana resolves the remaining promise itself."""
        if not instance.is_bana:
            return {}
        waited_s = now_s - arrival_s
        told = {
            "x-llm-d-slo-ttft-ms": _tell_ms(slo.ttft_s - waited_s),
            "x-llm-d-slo-tpot-ms": _tell_ms(slo.tpot_s),
        }
        if slo.e2e_s is not None:
            told["x-bana-slo-e2e-ms"] = _tell_ms(slo.e2e_s - waited_s)
        return told


def _tell_ms(seconds: float) -> str:
    """For a header, which takes no time that has passed."""
    return f"{max(1.0, seconds * 1e3):.3f}"


class Attempt:
    """One call on its way to one instance, under its own rid."""

    __slots__ = ("message", "rid", "rids")

    def __init__(
        self,
        call: Call,
        rid: str,
        params: Mapping[str, object],
        headers: Mapping[str, str],
    ) -> None:
        carrier = call.endpoint.rid
        self.rid = rid
        self.rids = list_rids(carrier, rid, call.shape)
        own = {**call.headers, **headers}
        if carrier is RidCarrier.HEADER:
            own["x-override-rid"] = rid
        self.message = Message(call.method, call.target, own, _compose(call, rid, params))


def mint_copy_rid(call: Call, instance: Instance) -> str:
    """A new id for a copy of `call`, in the form that its endpoint wants."""
    rid = mint_rid(instance.tag)
    return f"resp_{rid}" if call.endpoint.rid is RidCarrier.RESPONSE else rid


def choose_rid(flight: Flight, instance: Instance) -> str:
    """The engine's id for the next attempt.

    Ours, so that no client's id can be a prefix of another's: the request id where we made it,
    but a new one for a retry and where clients will ask for that id later. The id that a front
    door before this one made for a response stays: by it the response is asked for there.
    """
    carrier = flight.endpoint.rid
    if carrier is RidCarrier.RESPONSE:
        return flight.kept_id or f"resp_{mint_rid(instance.tag)}"
    if carrier is RidCarrier.SESSION or flight.is_named or flight.attempts > 1:
        return mint_rid(instance.tag)
    return flight.request_id


def _compose(call: Call, rid: str, params: Mapping[str, object]) -> bytes | None:
    if call.fields is None:
        return call.body
    fields = dict(call.fields)
    put_rid(fields, call.endpoint.rid, rid, call.shape)
    if call.endpoint.slo is not SloCarrier.NONE:
        put_params(fields, call.endpoint.slo, params)
    return encode_fields(fields)
