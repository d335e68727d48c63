"""From a client's HTTP request to a call: identity, size, promise and who has to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from aiohttp import web

from bana.slo.limits import SloRules
from sglang_bana.config import LimitsConfig
from sglang_bana.router.body import (
    Fields,
    Shape,
    estimate_shape,
    list_params,
    parse_fields,
    put_salt,
    read_inner,
    read_prompt,
    read_text,
)
from sglang_bana.router.call import Call
from sglang_bana.router.delivery import HOP_BY_HOP
from sglang_bana.router.endpoints import Endpoint, Kind, Media, RidCarrier, SloCarrier
from sglang_bana.router.errors import ApiError
from sglang_bana.router.flights import Flight, FlightBoard
from sglang_bana.router.ids import is_minted_response, is_request_id, mint_rid
from sglang_bana.router.instances import Instance, InstanceBoard
from sglang_bana.router.keys import Grant
from sglang_bana.router.slo_edge import BODY_WORDS, decide_slo, read_words
from sglang_bana.router.sticky import Hold, StickyTable, make_key
from sglang_bana.status import InstanceState

REQUEST_ID_HEADER = "x-request-id"
_NOT_FORWARDED = HOP_BY_HOP | {
    "host",
    "content-length",
    "content-encoding",
    "expect",
    "accept-encoding",
    "authorization",
    "x-api-key",
    "cookie",
    REQUEST_ID_HEADER,
}
_NOT_FORWARDED_PREFIXES = ("x-override-", "x-bana-", "x-slo-", "x-llm-d-slo-")
_RID_FIELDS = {
    RidCarrier.EXPANDED: "rid",
    RidCarrier.PER_ITEM: "rid",
    RidCarrier.RESPONSE: "request_id",
}


def read_request_id(request: web.BaseRequest) -> str:
    """The client's own request id, or a new one; ApiError 400 when it cannot be echoed."""
    given = request.headers.get(REQUEST_ID_HEADER)
    if given is None:
        return mint_rid()
    if is_request_id(given):
        return given
    raise ApiError(
        400,
        "request_id_invalid",
        f"{REQUEST_ID_HEADER} must be 1-128 visible ASCII characters; send another or none",
        REQUEST_ID_HEADER,
    )


class Intake:
    """Reads and checks requests that go to one instance."""

    def __init__(
        self,
        limits: LimitsConfig,
        rules: SloRules,
        board: InstanceBoard,
        flights: FlightBoard,
        sticky: StickyTable,
    ) -> None:
        self._limits = limits
        self._rules = rules
        self._board = board
        self._flights = flights
        self._sticky = sticky

    async def read_call(self, request: web.BaseRequest, flight: Flight) -> Call:
        """The call behind `request`; fills in what `flight` is promised. ApiError when bad."""
        endpoint = flight.endpoint
        body = await read_body(request, self._limits)
        fields = None
        if endpoint.media is Media.JSON and (body or request.method in ("POST", "PUT")):
            fields = parse_fields(body)
        known = {} if fields is None else fields
        prompt = read_prompt(known, endpoint)
        shape = Shape() if fields is None else estimate_shape(fields, endpoint, prompt)
        self._salt(known, endpoint, flight.grant)
        self._name(request, known, flight)
        if endpoint.is_promised:
            self._promise(request, known, flight)
        owner = self._find_owner(request, known, flight)
        hint = _read_hint(known, flight)
        keys = [] if hint is None else [hint]
        if flight.kept_id is not None:
            keys.append(make_key(Hold.OWNER, flight.grant.name, flight.kept_id))
        return Call(
            endpoint=endpoint,
            method=request.method,
            target=request.rel_url.raw_path_qs,
            headers=forward_headers(request.headers, flight.request_id),
            body=body or None,
            fields=fields,
            shape=shape,
            prompt=prompt,
            owner=owner,
            friend=None if hint is None else self._sticky.find(hint),
            friend_bytes=0 if hint is None else self._sticky.count_shared(hint, prompt),
            keys=tuple(keys),
        )

    def foresee_class(self, headers: Mapping[str, str], grant: Grant) -> str:
        """The SLO class of a request that is turned away before its body is read."""
        try:
            return decide_slo(headers, {}, grant, self._rules).slo_class
        except ApiError:
            return grant.slo_class or self._rules.default_class

    def _salt(self, fields: Fields, endpoint: Endpoint, grant: Grant) -> None:
        if grant.cache_salt is None:
            return
        if endpoint.accepts_salt:
            put_salt(fields, grant.cache_salt)
        elif endpoint.is_promised:
            raise ApiError(
                400,
                "cache_salt_unsupported",
                f"this API key separates its prefix cache, which {endpoint.path} cannot do; "
                "use /v1/chat/completions, /v1/completions, /v1/responses or /generate",
            )

    def _name(self, request: web.BaseRequest, fields: Fields, flight: Flight) -> None:
        """Note the client's own ids: the engine keeps one by which it is asked later, no other."""
        carrier = flight.endpoint.rid
        if carrier is RidCarrier.SESSION:
            flight.kept_id = read_text(fields, "session_id")
        field = _RID_FIELDS.get(carrier)
        own = None if field is None else read_text(fields, field)
        if own is None or not is_request_id(own):
            return
        flight.client_rid = own
        if carrier is RidCarrier.RESPONSE and is_minted_response(own):
            flight.kept_id = own
        if REQUEST_ID_HEADER not in request.headers:
            self._flights.rename(flight, own)

    def _promise(self, request: web.BaseRequest, fields: Fields, flight: Flight) -> None:
        words = _read_slo_words(fields, flight.endpoint.slo)
        slo = decide_slo(request.headers, words, flight.grant, self._rules)
        self._flights.promise(flight, slo, self._rules.classes[slo.slo_class].max_requests)
        flight.retry_by_s = flight.deadline_s
        if not _is_streamed(fields, flight.endpoint):
            # It has no first token to be late: nothing of it comes before all of it.
            whole_s = flight.arrival_s + self._limits.first_byte_timeout_s
            flight.retry_by_s = max(flight.deadline_s, whole_s)

    def _find_owner(
        self, request: web.BaseRequest, fields: Fields, flight: Flight
    ) -> Instance | None:
        endpoint = flight.endpoint
        if endpoint.rid is RidCarrier.SESSION:
            return self._find_holder(flight)
        if endpoint.path == "/close_session":
            identifier = read_text(fields, "session_id")
        elif endpoint.kind is Kind.STICKY and endpoint.path.startswith("/v1/responses/"):
            identifier = request.rel_url.raw_path.split("/")[3]
        elif endpoint.path == "/v1/responses":
            identifier = read_text(fields, "previous_response_id")
        elif "session_params" in fields:
            identifier = read_inner(fields, "session_params", "id")
        else:
            identifier = None
        if identifier is None:
            return None
        owner = self._sticky.find_owner(flight.grant.name, identifier)
        if owner is None:
            raise ApiError(
                404,
                "owner_unknown",
                f"no instance is known to hold {identifier[:128]!r}; open a new session or "
                "send the whole conversation",
            )
        return owner

    def _find_holder(self, flight: Flight) -> Instance | None:
        """Who has the session that is opened once more, and so has to refuse it."""
        if flight.kept_id is None:
            return None
        holder = self._sticky.find(make_key(Hold.OWNER, flight.grant.name, flight.kept_id))
        if holder is None:
            holder = self._board.find(self._flights.find_twin(flight))
        # What is down has lost its sessions.
        return None if holder is None or holder.state is InstanceState.DOWN else holder


async def read_body(request: web.BaseRequest, limits: LimitsConfig) -> bytes:
    """The whole body; ApiError when it is too large, too slow or broken."""
    now_s = asyncio.get_running_loop().time
    end_s = now_s() + limits.stall_timeout_s
    body = bytearray()
    try:
        async with asyncio.timeout_at(min(now_s() + limits.body_timeout_s, end_s)) as scope:
            while chunk := await request.content.readany():
                body += chunk
                if len(body) > limits.max_body_bytes:
                    raise _refuse_size(limits)
                scope.reschedule(min(now_s() + limits.body_timeout_s, end_s))
    except TimeoutError:
        raise ApiError(
            408, "request_timeout", "the body did not arrive in time; send it again"
        ) from None
    except web.RequestPayloadError as error:
        raise ApiError(
            400, "invalid_body", f"the body cannot be read: {error}; send it again"
        ) from error
    return bytes(body)


def _refuse_size(limits: LimitsConfig) -> ApiError:
    return ApiError(
        413,
        "body_too_large",
        f"the body exceeds {limits.max_body_bytes} bytes; send a smaller one or "
        "raise limits.max_body_bytes",
    )


def forward_headers(headers: Mapping[str, str], request_id: str) -> dict[str, str]:
    """What of a client's headers an instance gets to see."""
    dropped = _NOT_FORWARDED | {
        name.strip().lower() for name in headers.get("Connection", "").split(",")
    }
    kept = {
        name: value
        for name, value in headers.items()
        if (low := name.lower()) not in dropped and not low.startswith(_NOT_FORWARDED_PREFIXES)
    }
    kept[REQUEST_ID_HEADER] = request_id
    # Errors are normalised, secrets taken out and events kept whole, which compression hides.
    kept["Accept-Encoding"] = "identity"
    return kept


def _read_slo_words(fields: Fields, carrier: SloCarrier) -> dict[str, str]:
    """The client's words; the items of a batch have to agree, because it is promised as one."""
    found = [read_words(params) for params in list_params(fields, carrier)]
    if any(words != found[0] for words in found):
        raise ApiError(
            400,
            "slo_conflict",
            f"the items of a batch differ in {', '.join(BODY_WORDS)}; send them apart",
            "custom_params",
        )
    return found[0] if found else {}


def _is_streamed(fields: Fields, endpoint: Endpoint) -> bool:
    """Whether the answer comes in pieces; of an opaque body nobody knows."""
    text = bytes(fields.get("stream", b"null"))
    return endpoint.streams if text == b"null" else text != b"false"


def _read_hint(fields: Fields, flight: Flight) -> bytes | None:
    """`session_id` of a generation: its requests share a prefix, but any instance can answer."""
    if flight.endpoint.kind is not Kind.BALANCED or "session_id" not in fields:
        return None
    session = read_text(fields, "session_id")
    return None if session is None else make_key(Hold.FRIEND, flight.grant.name, session)
