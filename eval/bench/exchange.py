"""An exchange whose server-sent events are only counted: what a benchmark's load needs of them."""

from __future__ import annotations

from bana.eval.client.http import Exchange, Garbled

MAX_REST_BYTES = 16 * 2**20


class CountedExchange(Exchange):
    """One request and the events of its answer; `rest` is what belongs to no event yet."""

    __slots__ = ("events", "first_event_s", "is_finished", "last_event", "rest")

    def __init__(self, due_s: float) -> None:
        super().__init__(due_s)
        self.first_event_s: float | None = None
        self.events = 0
        self.is_finished = False
        self.last_event = b""
        self.rest = b""

    @property
    def is_ok(self) -> bool:
        """It was answered completely with 200 and without an error event."""
        return self.status == 200 and self.error is None and self.end_s is not None

    def take(self, payload: bytes, now_s: float) -> None:
        """Count the events in a piece of the body."""
        *events, self.rest = (self.rest + payload).split(b"\n\n")
        for event in events:
            if event.startswith(b"data: [DONE]"):
                self.is_finished = True
            elif event.startswith(b"data:"):
                if self.events == 0:
                    self.first_event_s = now_s
                self.events += 1
                self.last_event = event
                if event.startswith(b'data: {"error"'):
                    self.error = "error event in the stream"
        if len(self.rest) > MAX_REST_BYTES:
            raise Garbled(f"an answer of more than {MAX_REST_BYTES} bytes without an event")
