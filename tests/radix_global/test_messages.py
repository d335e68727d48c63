"""Every message survives the way, and nothing else is taken for one."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bana.radix_global.admin_messages import Answer, Ask
from bana.radix_global.keys import Namespace
from bana.radix_global.messages import (
    MAX_MESSAGE_BYTES,
    PROTOCOL,
    Announce,
    Arrived,
    Attach,
    Event,
    Known,
    Ping,
    Prefetch,
    Publish,
    Request,
    Reserve,
    Reserved,
    TierWeather,
    Withdraw,
    decode_event,
    decode_request,
    encode,
)
from bana.radix_global.wire_parts import MAX_BATCH_PAGES
from bana.slo.errors import StoreError

KEY = b"0123456789abcdef"
SPACE = {
    "model": "m",
    "revision": "",
    "weights_epoch": "",
    "dtype": "f",
    "layout": "l",
    "page_tokens": 16,
    "tp_rank": 0,
    "tp_size": 1,
    "first_layer": 0,
    "end_layer": 2,
    "salt": "",
}
ATTACH = Attach(
    protocol=PROTOCOL,
    client=KEY,
    pid=7,
    start_ticks=9,
    page_bytes=64,
    namespace=Namespace(**SPACE),
    name="i",
    epoch=2**63 - 1,
    kept=(1, 2),
)
REQUESTS = [
    ATTACH,
    Ping(3),
    Prefetch(1, KEY * 3, 5.0, 9.5),
    Prefetch(2, KEY, 5.0, 9.5, 7.0),
    Announce(1, KEY * 2),
    Withdraw(1),
    Reserve(4),
    Publish(b"", KEY * 2, (1, 2)),
    Publish(KEY, KEY, (3,)),
]
EVENTS = [
    Known(1, b"\1\2"),
    Known(1, b"\2", (TierWeather(1, "disk", 1e6, 0.1, 2, 3),), 4),
    Arrived(1, 0, (5, 6), (2**64 - 1, 0), b"\0\1"),
    Reserved((1,), (2**64 - 1,)),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: type(r).__name__)
def test_a_request_survives_the_way(request_: Request) -> None:
    assert decode_request(encode(request_)) == request_


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_an_event_survives_the_way(event: Event) -> None:
    assert decode_event(encode(event)) == event


def test_no_two_messages_share_a_tag() -> None:
    kinds = [*get_args(Request), *get_args(Event), *get_args(Ask), *get_args(Answer)]
    tags = [kind.__struct_config__.tag for kind in set(kinds)]
    assert len(set(tags)) == len(tags)


def raw(*parts: Any) -> bytes:
    return msgspec.msgpack.encode(list(parts))


BAD = {
    "nothing": b"",
    "an event": encode(Known(1, b"")),
    "no array": msgspec.msgpack.encode({"tag": "ping"}),
    "unknown tag": raw("pong?", 1),
    "too few fields": raw("ping"),
    "too many fields": raw("ping", 1, 2),
    "a negative number": raw("ping", -1),
    "text for a number": raw("ping", "1"),
    "no keys": raw("prefetch", 1, b"", 0.0, 1.0),
    "half a key": raw("prefetch", 1, KEY[:-1], 0.0, 1.0),
    "too many keys": raw("prefetch", 1, KEY * (MAX_BATCH_PAGES + 1), 0.0, 1.0),
    "no time": raw("prefetch", 1, KEY, float("nan"), 1.0),
    "no end of time": raw("prefetch", 1, KEY, 0.0, float("inf")),
    "no pages": raw("reserve", 0),
    "too many pages": raw("reserve", MAX_BATCH_PAGES + 1),
    "fewer slots than keys": raw("publish", b"", KEY * 2, [1]),
    "half a page before": raw("publish", KEY[:3], KEY, [1]),
    "a slot that cannot be": raw("publish", b"", KEY, [-1]),
    "an unusable namespace": raw("attach", 1, KEY, 7, 9, 64, {**SPACE, "model": ""}, "i"),
    "an unknown namespace field": raw("attach", 1, KEY, 7, 9, 64, {**SPACE, "x": 1}, "i"),
    "a short client id": raw("attach", 1, b"id", 7, 9, 64, SPACE, "i"),
    "an unknown mode": raw("clear?", 1, "secret", "maybe"),
    "too much": raw("ping", 1) + bytes(MAX_MESSAGE_BYTES),
    "two messages": raw("ping", 1) * 2,
    "deep nesting": b"\x91" * 100_000,
}


@pytest.mark.parametrize("frame", BAD.values(), ids=BAD.keys())
def test_what_is_no_request_is_refused(frame: bytes) -> None:
    with pytest.raises(StoreError):
        decode_request(frame)


@pytest.mark.parametrize(
    "frame",
    [
        raw("arrived", 1, 0, [1, 2], [3], b"\0\0"),
        raw("arrived", 1, 0, [1], [-3], b"\0"),
        raw("reserved", [1], []),
        raw("settled", 1, "perhaps", 0),
        encode(Ping(1)),
    ],
)
def test_what_is_no_event_is_refused(frame: bytes) -> None:
    with pytest.raises(StoreError):
        decode_event(frame)


@given(st.sampled_from(REQUESTS), st.data())
def test_damage_is_noticed_or_harmless(request_: Request, data: st.DataObject) -> None:
    """Whatever a frame became on the way, nothing but a sound request comes out of it."""
    frame = bytearray(encode(request_))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] = data.draw(st.integers(0, 255))
    try:
        decoded = decode_request(bytes(frame[: data.draw(st.integers(1, len(frame)))]))
    except StoreError:
        return
    assert decode_request(encode(decoded)) == decoded


@given(st.binary(max_size=200))
def test_noise_is_no_message(frame: bytes) -> None:
    for decode in (decode_request, decode_event):
        try:
            decode(frame)
        except StoreError:
            continue
