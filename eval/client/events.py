"""What the events of a streamed answer tell: tokens and when they came, counts, errors.

native /generate   `meta_info.completion_tokens` so far, with every event
OpenAI             an event with text is one token, until `usage` tells the true number
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec

from bana.eval.client.http import Garbled
from bana.eval.client.sse import show_bytes

DONE = b"[DONE]"
REFUSALS = frozenset({"429", "503"})
MAX_REASON_CHARS = 300

T = TypeVar("T")


class Complaint(msgspec.Struct, frozen=True):
    """An error that a server told: its stable code where it has one, and one line."""

    reason: str
    code: str | None = None

    @property
    def is_refusal(self) -> bool:
        """Whether it says that the server would not, as 429 and 503 do."""
        return self.code in REFUSALS


class Told(msgspec.Struct):
    """What an answer has told so far; `times_s` and `tokens` are its events with output."""

    times_s: list[float] = []
    tokens: list[int] = []
    total_tokens: int | None = None
    cached_tokens: int | None = None
    complaint: Complaint | None = None
    is_done: bool = False

    def add(self, now_s: float, tokens: int) -> None:
        """An event with that many tokens."""
        self.times_s.append(now_s)
        self.tokens.append(tokens)


class Reader(Protocol):
    """Reads the events of one answer."""

    told: Told

    def take(self, data: bytes, now_s: float) -> None:
        """One event; Garbled when it cannot be read."""

    def settle(self) -> None:
        """No event follows: the counts are corrected by what the server told last."""


class Finish(msgspec.Struct):
    """Why a native generation ended; an abort has a status of its own."""

    type: str | None = None
    message: str | None = None
    status_code: int | None = None
    err_type: str | None = None


class MetaInfo(msgspec.Struct, frozen=True):
    """What of a native event's `meta_info` matters here."""

    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: Finish | str | None = None


class NativeEvent(msgspec.Struct):
    """What of a native event matters here."""

    meta_info: MetaInfo = MetaInfo()
    error: object = None
    kind: str | None = msgspec.field(default=None, name="object")


class NativeReader:
    """Events of `/generate`."""

    def __init__(self) -> None:
        self.told = Told()
        self._counted = 0

    def take(self, data: bytes, now_s: float) -> None:
        if data == DONE:
            self.told.is_done = True
            return
        event = _decode(_NATIVE, data)
        meta = event.meta_info
        self.told.complaint = self.told.complaint or _find_complaint(event, data)
        if isinstance(meta.finish_reason, Finish) and meta.finish_reason.type == "abort":
            self.told.complaint = self.told.complaint or _read_abort(meta.finish_reason)
        if meta.cached_tokens is not None:
            self.told.cached_tokens = meta.cached_tokens
        if meta.completion_tokens is None:
            if self.told.complaint is None:
                raise Garbled(f"an event without meta_info.completion_tokens: {show_bytes(data)}")
            return
        if meta.completion_tokens > self._counted:
            self.told.add(now_s, meta.completion_tokens - self._counted)
            self._counted = meta.completion_tokens

    def settle(self) -> None:
        self.told.total_tokens = self._counted


class PromptDetails(msgspec.Struct):
    """Where the prompt's tokens came from."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """OpenAI's counts."""

    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Delta(msgspec.Struct):
    """What a chat event adds; any of it is output. Servers name reasoning in two ways."""

    content: object = None
    reasoning_content: object = None
    reasoning: object = None
    tool_calls: object = None

    @property
    def is_output(self) -> bool:
        return bool(self.content or self.reasoning_content or self.reasoning or self.tool_calls)


class Choice(msgspec.Struct):
    """One choice of an event: a chat's delta, or a completion's text."""

    delta: Delta | None = None
    text: str | None = None

    @property
    def is_output(self) -> bool:
        return bool(self.text) or (self.delta is not None and self.delta.is_output)


class OpenAiEvent(msgspec.Struct):
    """What of an OpenAI event matters here."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: object = None
    kind: str | None = msgspec.field(default=None, name="object")


class OpenAiReader:
    """Events of completions and chat completions. An event without text is no token."""

    def __init__(self) -> None:
        self.told = Told()
        self._told_so_far: list[int] = []

    def take(self, data: bytes, now_s: float) -> None:
        if data == DONE:
            self.told.is_done = True
            return
        event = _decode(_OPENAI, data)
        self.told.complaint = self.told.complaint or _find_complaint(event, data)
        usage = event.usage
        if usage is not None and usage.completion_tokens is not None:
            self.told.total_tokens = usage.completion_tokens
            if usage.prompt_tokens_details is not None:
                self.told.cached_tokens = usage.prompt_tokens_details.cached_tokens
        if any(choice.is_output for choice in event.choices or ()):
            self.told.add(now_s, 1)
            if usage is not None and usage.completion_tokens is not None:
                self._told_so_far.append(usage.completion_tokens)

    def settle(self) -> None:
        told = self.told
        if not told.total_tokens:
            told.total_tokens = len(told.times_s)
        elif len(self._told_so_far) == len(told.times_s):
            tokens = take_differences(self._told_so_far)
            self._keep_events(tokens)
        else:
            self._keep_events(spread_tokens(told.total_tokens, len(told.times_s)))

    def _keep_events(self, tokens: Sequence[int]) -> None:
        """Events that turn out to carry no token of their own are none."""
        kept = [(at_s, n) for at_s, n in zip(self.told.times_s, tokens, strict=True) if n > 0]
        self.told.times_s = [at_s for at_s, _ in kept]
        self.told.tokens = [n for _, n in kept]


def take_differences(totals: Sequence[int]) -> list[int]:
    """How much each total adds to the largest before it."""
    found, largest = [], 0
    for total in totals:
        found.append(max(0, total - largest))
        largest = max(largest, total)
    return found


def spread_tokens(total: int, events: int) -> list[int]:
    """`total` tokens over events that came without a count, evenly, from the first on."""
    marks = [(place * total + events - 1) // events for place in range(1, events + 1)]
    return take_differences(marks)


def read_complaint(body: bytes) -> Complaint:
    """The reason in the body of an answer that is no success, whatever shape it has.

    OpenAI's `{"error": {…}}`, SGLang's flat object, FastAPI's `{"detail": …}`, or plain text.
    """
    try:
        found: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return Complaint(show_bytes(body) if body.strip() else "no reason given")
    return _read_error(found)


def _read_error(found: object) -> Complaint:
    if isinstance(found, dict):
        inner = found.get("error")
        if isinstance(inner, dict | str):
            return _read_error(inner)
        message = found.get("message") or found.get("detail") or "no reason given"
        code = found.get("code") or found.get("type")
        return Complaint(_one_line(message), None if code is None else str(code))
    return Complaint(_one_line(found))


def _one_line(found: object) -> str:
    text = " ".join(str(found).split())
    return text if len(text) <= MAX_REASON_CHARS else f"{text[:MAX_REASON_CHARS]}…"


def _find_complaint(event: NativeEvent | OpenAiEvent, data: bytes) -> Complaint | None:
    """Error events are rare: what they say is decoded a second time."""
    if event.error is None and event.kind != "error":
        return None
    return read_complaint(data)


def _read_abort(finish: Finish) -> Complaint:
    code = finish.status_code if finish.status_code is not None else finish.err_type
    return Complaint(_one_line(finish.message or "aborted"), None if code is None else str(code))


def _decode(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Garbled(f"an event that cannot be read ({error}): {show_bytes(data)}") from None


_NATIVE = msgspec.json.Decoder(NativeEvent)
_OPENAI = msgspec.json.Decoder(OpenAiEvent)
