"""One request of a run: from its due time to its ending, as its client saw it.

due ──▶ sent ──▶ first ──▶ … ──▶ last ──▶ FINISHED
          │        └──lost, or no [DONE]──▶ CUT
          ├──429, 503──▶ REJECTED      ├──timeout, end of the run──▶ UNFINISHED
          ├──error, lost──▶ FAILED     └──as planned──▶ CANCELLED
"""

from __future__ import annotations

import msgspec

from bana.eval.client.events import DONE, Complaint, Reader, read_complaint
from bana.eval.client.framing import Head
from bana.eval.client.http import Exchange, Trouble
from bana.eval.client.sse import EventStream, show_bytes
from bana.eval.requests import Ending, Observed, Offered

OK = 200
REFUSED = frozenset({429, 503})
MAX_ERROR_BODY_BYTES = 64 * 2**10
INSTANCE_HEADER = b"x-bana-instance"
CODE_HEADER = b"x-bana-error"


class Conclusion(msgspec.Struct, frozen=True):
    """How a call ended, and why."""

    ending: Ending
    error: str | None = None
    code: str | None = None


class Call(Exchange):
    """A request under way; `conclusion` is None until it is over."""

    __slots__ = (
        "_code",
        "_error_body",
        "_events",
        "_reader",
        "conclusion",
        "instance",
        "offered",
        "request_id",
        "stopped_s",
    )

    def __init__(self, due_s: float, offered: Offered, request_id: str, reader: Reader) -> None:
        super().__init__(due_s)
        self.offered = offered
        self.request_id = request_id
        self.conclusion: Conclusion | None = None
        self.instance: str | None = None
        self.stopped_s: float | None = None
        self._code: str | None = None
        self._error_body = b""
        self._events = EventStream()
        self._reader = reader

    @property
    def last_s(self) -> float | None:
        """When the newest event with output came."""
        times_s = self._reader.told.times_s
        return times_s[-1] if times_s else None

    @property
    def first_s(self) -> float | None:
        """When the first event with output came."""
        times_s = self._reader.told.times_s
        return times_s[0] if times_s else None

    def take_head(self, head: Head) -> None:
        self.instance = _read_text(head, INSTANCE_HEADER)
        self._code = _read_text(head, CODE_HEADER)

    def take(self, payload: bytes, now_s: float) -> None:
        if self.status != OK:
            left = MAX_ERROR_BODY_BYTES - len(self._error_body)
            self._error_body += payload[:left]
            return
        reader = self._reader
        for data in self._events.feed(payload):
            reader.take(data, now_s)
            if reader.told.is_done:
                # What still follows is framing; the answer is over now.
                self.stopped_s = now_s

    def conclude(self, now_s: float, given_up: Conclusion | None = None) -> None:
        """It is over, by itself or given up for the reason in `given_up`; the first end counts."""
        if self.conclusion is not None:
            return
        told = self._reader.told
        if self.status == OK and self._events.rest.strip() == b"data: " + DONE:
            told.is_done = True
        self._reader.settle()
        if told.is_done and not told.times_s and told.total_tokens:
            # All it had was invisible, such as an end-of-text token.
            told.add(now_s, told.total_tokens)
        self.conclusion = self._decide(given_up)
        if self.stopped_s is None:
            self.stopped_s = now_s

    def observe(self, zero_s: float) -> Observed:
        """What was seen, in seconds after schedule zero; it must be over."""
        assert self.conclusion is not None
        offered, told = self.offered, self._reader.told
        times_s = tuple(at_s - zero_s for at_s in told.times_s)
        return Observed(
            index=offered.index,
            due_s=offered.due_s,
            ending=self.conclusion.ending,
            slo_class=offered.slo_class,
            limits=offered.limits,
            phase=offered.phase,
            prompt_tokens=offered.prompt_tokens,
            asked_tokens=offered.output_tokens,
            sent_s=None if self.sent_s is None else self.sent_s - zero_s,
            first_s=times_s[0] if times_s else None,
            last_s=times_s[-1] if times_s else None,
            end_s=None if self.stopped_s is None else self.stopped_s - zero_s,
            output_tokens=told.total_tokens or 0,
            event_times_s=times_s,
            event_tokens=tuple(told.tokens),
            status=self.status,
            error=self.conclusion.error,
            code=self.conclusion.code,
            request_id=self.request_id,
            cached_tokens=told.cached_tokens,
            instance=self.instance,
            family=offered.family,
            session=offered.session,
        )

    def _decide(self, given_up: Conclusion | None) -> Conclusion:
        told = self._reader.told
        if given_up is not None and given_up.ending is Ending.CANCELLED:
            return given_up
        if told.complaint is not None:
            return self._decide_complaint(told.complaint)
        if self.status is not None and self.status != OK:
            return self._decide_status(self.status)
        if told.is_done:
            return self._decide_done()
        return given_up or self._decide_incomplete()

    def _decide_complaint(self, complaint: Complaint) -> Conclusion:
        """An error event. Engines that have begun to answer with 200 refuse with one, too."""
        is_refused = complaint.is_refusal and self.first_s is None
        ending = Ending.REJECTED if is_refused else Ending.FAILED
        return Conclusion(ending, f"error event: {complaint.reason}", complaint.code)

    def _decide_status(self, status: int) -> Conclusion:
        complaint = read_complaint(self._error_body)
        ending = Ending.REJECTED if status in REFUSED else Ending.FAILED
        reason = f"status {status}: {complaint.reason}"
        return Conclusion(ending, reason, complaint.code or self._code)

    def _decide_done(self) -> Conclusion:
        if self.first_s is None:
            return Conclusion(Ending.FAILED, "the answer has no token")
        return Conclusion(Ending.FINISHED)

    def _decide_incomplete(self) -> Conclusion:
        if self.trouble is Trouble.GARBLED:
            return Conclusion(Ending.FAILED, self.error)
        if self.first_s is not None:
            return Conclusion(Ending.CUT, self.error or "the stream ended without [DONE]")
        if self.trouble is None:
            rest = show_bytes(self._events.rest)
            return Conclusion(Ending.FAILED, f"status 200 without an event stream: {rest}")
        return Conclusion(Ending.FAILED, self.error)


def _read_text(head: Head, name: bytes) -> str | None:
    found = head.field(name)
    return None if found is None else found.decode(errors="replace")[:128]
