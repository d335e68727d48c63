"""What the front door reads from a JSON body, and how it is edited for an instance.

Only the top level is decoded; every value stays as the client wrote it, so numbers, key order
and text reach the engine unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from sglang_bana.router.endpoints import Endpoint, RidCarrier, SloCarrier
from sglang_bana.router.errors import ApiError

Fields: TypeAlias = dict[str, msgspec.Raw]

BYTES_PER_TOKEN = 4
IMAGE_TOKENS = 1024
DEFAULT_OUTPUT_TOKENS = 128
MAX_BATCH = 100_000

_FIELDS = msgspec.json.Decoder(Fields)
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_OUTPUT_FIELDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


class Shape(msgspec.Struct, frozen=True):
    """The size of a request: `items` prompts, each answered `samples` times.

    `items` is None for a single prompt, which SGLang names differently from a batch of one.
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    items: int | None = None
    samples: int = 1


def parse_fields(body: bytes) -> Fields:
    """The top level of a JSON object; ApiError 400 when it is none."""
    try:
        if not body.isascii():
            body.decode()
        return _FIELDS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(
            400, "invalid_json", f"the body is not a JSON object: {error}; send one"
        ) from error


def read_value(fields: Fields, name: str) -> object:
    """The decoded value of one field, None when absent or null; ApiError 400 when too large."""
    raw = fields.get(name)
    try:
        return None if raw is None else msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        # Only numbers beyond a double get here: the syntax was checked with the whole body.
        raise ApiError(
            400, "invalid_request", f"{name} cannot be used: {error}; send a smaller one", name
        ) from error


def read_text(fields: Fields, name: str) -> str | None:
    """The value of a field if it is a string."""
    value = read_value(fields, name)
    return value if isinstance(value, str) else None


def read_inner(fields: Fields, outer: str, name: str) -> str | None:
    """The string `name` inside the object `outer`, None when there is none."""
    value = read_value(fields, outer)
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, str) else None


def read_prompt(fields: Fields, endpoint: Endpoint) -> bytes:
    """The prompt as the client wrote it: equal prefixes of prompts have equal bytes here."""
    raws = (fields.get(name) for name in endpoint.prompt_fields)
    return b"".join(bytes(raw) for raw in raws if raw is not None)


def estimate_shape(fields: Fields, endpoint: Endpoint, prompt: bytes) -> Shape:
    """The size of a request, estimated without a tokenizer. O(bytes of the prompt)."""
    sampling = _first_sampling(fields) if endpoint.slo is SloCarrier.SAMPLING_PARAMS else fields
    return Shape(
        prompt_tokens=estimate_tokens(prompt),
        output_tokens=_read_output_tokens(sampling),
        items=_count_items(fields, endpoint),
        samples=_read_count(sampling, "n") or 1,
    )


def estimate_tokens(prompt: bytes) -> int:
    """About how many tokens a JSON prompt holds: ids are counted, text by its length."""
    start = prompt[:8].lstrip(b"[ \n")
    if start[:1].isdigit():
        return prompt.count(b",") + 1
    if b";base64," not in prompt:
        return -(-len(prompt) // BYTES_PER_TOKEN)
    head, *images = prompt.split(b";base64,")
    # What follows the closing quote of an image's data is text again.
    text_bytes = len(head) + sum(len(part) - max(part.find(b'"'), 0) for part in images)
    return -(-text_bytes // BYTES_PER_TOKEN) + IMAGE_TOKENS * len(images)


def list_params(fields: Fields, carrier: SloCarrier) -> list[Fields]:
    """Every `custom_params` object of the body; ApiError when one is no object."""
    if carrier is SloCarrier.NONE:
        return []
    owners = [fields] if carrier is SloCarrier.TOP_LEVEL else list_sampling(fields)
    raws = [owner.get("custom_params") for owner in owners]
    return [
        {} if raw is None or _is_null(raw) else _as_fields(raw, "custom_params") for raw in raws
    ]


def list_sampling(fields: Fields) -> list[Fields]:
    """The `sampling_params` of a native request: none, one, or one an item."""
    raw = fields.get("sampling_params")
    if raw is None or _is_null(raw):
        return []
    if bytes(raw).lstrip()[:1] == b"[":
        return [_as_fields(item, "sampling_params") for item in _ITEMS.decode(raw)]
    return [_as_fields(raw, "sampling_params")]


def put_params(fields: Fields, carrier: SloCarrier, params: Mapping[str, object]) -> None:
    """Replace the client's `bana_*` words in every `custom_params` by `params`."""
    added = {key: msgspec.Raw(msgspec.json.encode(value)) for key, value in params.items()}
    if carrier is SloCarrier.TOP_LEVEL:
        _merge_params(fields, added)
    elif carrier is SloCarrier.SAMPLING_PARAMS:
        raw = fields.get("sampling_params")
        owners = list_sampling(fields) or [{}]
        for owner in owners:
            _merge_params(owner, added)
        is_list = raw is not None and bytes(raw).lstrip()[:1] == b"["
        fields["sampling_params"] = _raw(owners if is_list else owners[0])


def put_rid(fields: Fields, carrier: RidCarrier, rid: str, shape: Shape) -> None:
    """Give the engine its request id."""
    if carrier is RidCarrier.EXPANDED:
        fields["rid"] = _raw(rid)
    elif carrier is RidCarrier.PER_ITEM:
        batch = shape.items
        fields["rid"] = _raw(rid if batch is None else [f"{rid}_{i}" for i in range(batch)])
    elif carrier is RidCarrier.RESPONSE:
        fields["request_id"] = _raw(rid)
    elif carrier is RidCarrier.SESSION and _is_null(fields.get("session_id")):
        fields["session_id"] = _raw(rid)


def list_rids(carrier: RidCarrier, rid: str, shape: Shape) -> tuple[str, ...]:
    """The ids under which the engine knows a request; empty when nobody can tell.

    With `samples` > 1 SGLang renames every sample, so only the connection's end aborts them.
    """
    if carrier in (RidCarrier.NONE, RidCarrier.SESSION):
        return ()
    if shape.items is None or carrier in (RidCarrier.RESPONSE, RidCarrier.HEADER):
        return (rid,)
    return (rid, *(f"{rid}_{i}" for i in range(shape.items)))


def put_salt(fields: Fields, salt: str) -> None:
    """Separate the prefix cache by `salt`, within which the client's own salts still count."""
    own = read_value(fields, "cache_salt")
    if isinstance(own, list):
        fields["cache_salt"] = _raw([f"{salt}:{item}" for item in own])
    else:
        fields["cache_salt"] = _raw(salt if own is None else f"{salt}:{own}")


def encode_fields(fields: Fields) -> bytes:
    """The body to send."""
    return msgspec.json.encode(fields)


def _merge_params(owner: Fields, added: Mapping[str, msgspec.Raw]) -> None:
    raw = owner.get("custom_params")
    own = {} if raw is None or _is_null(raw) else _as_fields(raw, "custom_params")
    kept = {key: value for key, value in own.items() if not key.startswith("bana_")}
    if kept or added:
        owner["custom_params"] = _raw({**kept, **added})


def _as_fields(raw: msgspec.Raw, param: str) -> Fields:
    try:
        return _FIELDS.decode(raw)
    except msgspec.DecodeError as error:
        raise ApiError(
            400, "invalid_request", f"{param} has to be an object: {error}", param
        ) from error


def _first_sampling(fields: Fields) -> Fields:
    owners = list_sampling(fields)
    return {**owners[0]} if owners else {}


def _read_output_tokens(sampling: Fields) -> int:
    for name in ("max_new_tokens", *_OUTPUT_FIELDS):
        found = _read_count(sampling, name)
        if found is not None:
            return found
    return DEFAULT_OUTPUT_TOKENS


def _read_count(fields: Fields, name: str) -> int | None:
    value = read_value(fields, name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _count_items(fields: Fields, endpoint: Endpoint) -> int | None:
    """How many prompts a batch has, None for a single one."""
    if endpoint.rid not in (RidCarrier.EXPANDED, RidCarrier.PER_ITEM):
        return None
    raw = next((fields[n] for n in endpoint.prompt_fields if not _is_null(fields.get(n))), None)
    if raw is None or "messages" in endpoint.prompt_fields:
        return None
    text = bytes(raw).lstrip()
    if text[:1] != b"[":
        return None
    inner = text[1:64].lstrip()
    if inner[:1].isdigit() or inner[:1] in (b"-", b"]"):
        return None
    count = len(_ITEMS.decode(raw))
    if count > MAX_BATCH:
        raise ApiError(
            400, "batch_too_large", f"the batch has {count} prompts; allowed: {MAX_BATCH}"
        )
    return count


def _is_null(raw: msgspec.Raw | None) -> bool:
    return raw is None or bytes(raw) == b"null"


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
