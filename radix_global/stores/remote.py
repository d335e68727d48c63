"""A tier in a store of objects that others run: bounded, verified, and never believed."""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

import msgspec

from bana.radix_global.stores.counts import Counts
from bana.radix_global.stores.losses import Losses
from bana.radix_global.stores.page import (
    HEADER_BYTES,
    VERSION,
    EntryKind,
    Header,
    check_payload,
    pack_header,
    pack_origin,
    page_header,
    parse_header,
)
from bana.radix_global.stores.store import (
    HeldPage,
    Moment,
    PageOrigin,
    Payload,
    ReadOutcome,
    Refresh,
    RefreshOutcome,
    StoreStats,
    Write,
    WriteOutcome,
    check_key,
    view_bytes,
)
from bana.slo.clock import Clock
from bana.slo.errors import ConfigError

_BAD = (ReadOutcome.SHORT, ReadOutcome.CORRUPT)


class ObjectClient(Protocol):
    """Whoever speaks to the store of objects; any thread may call, each call ends by a deadline."""

    def put(self, name: str, header: bytes, payload: memoryview) -> WriteOutcome:
        """WRITTEN once the object is there, whoever wrote it; FULL, REFUSED, LATE, FAILED."""
        ...

    def get(self, name: str, header: memoryview, payload: memoryview) -> ReadOutcome:
        """READ once both are filled, though with anything; SHORT where the object has another
        size; MISSING, LATE, FAILED. After it has returned nobody writes into either.
        """
        ...

    def remove(self, name: str) -> WriteOutcome:
        """DROPPED, MISSING, LATE or FAILED."""
        ...

    def counts(self) -> Mapping[str, int]: ...

    def close(self) -> None:
        """End every call that is under way."""
        ...


@dataclasses.dataclass(frozen=True)
class RemoteOptions:
    """How much this process believes to be there, at most: payloads in bytes, and pages."""

    capacity_bytes: int
    max_pages: int = 1_000_000

    def __post_init__(self) -> None:
        for name in ("capacity_bytes", "max_pages"):
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"{name} {value}, allowed: >= 1; raise it")


class RemotePage(msgspec.Struct, frozen=True, gc=False):
    """One page that this process put there: its length, where it belongs, when it came."""

    size_bytes: int
    origin: PageOrigin
    came_s: float

    def describe(self, key: bytes) -> HeldPage:
        """The page as others know it."""
        return HeldPage(key, self.origin, self.size_bytes)


class RemoteStore:
    """Pages as objects, each a header as in a segment and its payload.

    It holds what this process put and nothing else: such a store cannot be listed. Putting a page
    that another host put costs no transfer. Beyond the bounds the least recently used pages are
    forgotten here; there they stay until that store evicts them. What it evicts is MISSING at the
    next read.
    """

    def __init__(self, client: ObjectClient, options: RemoteOptions, clock: Clock) -> None:
        self._client = client
        self._options = options
        self._clock = clock
        self._pages: OrderedDict[bytes, RemotePage] = OrderedDict()
        self._held_bytes = 0
        self._counts = Counts()
        self._losses = Losses()
        self._is_closed = False
        self._lock = threading.Lock()

    def put(self, key: bytes, payload: Payload, origin: PageOrigin) -> Write:
        """See Store; a page larger than the capacity is REFUSED."""
        check_key(key)
        data = view_bytes(payload)
        if not 0 < data.nbytes <= self._options.capacity_bytes:
            return Write(WriteOutcome.REFUSED)
        if self._is_closed:
            return Write(WriteOutcome.FAILED)
        if self.holds(key):
            return Write(WriteOutcome.PRESENT)
        header = pack_header(page_header(key, pack_origin(key, origin), data))
        outcome = self._client.put(name_object(key), header, data)
        if outcome is not WriteOutcome.WRITTEN:
            return Write(outcome)
        page = RemotePage(data.nbytes, origin, self._clock.now_s())
        with self._lock:
            return self._note(key, page)

    def read(self, key: bytes, target: memoryview) -> ReadOutcome:
        """See Store."""
        check_key(key)
        view = view_bytes(target)
        if self._is_closed:
            return ReadOutcome.FAILED
        with self._lock:
            page = self._pages.get(key)
            if page is None:
                return ReadOutcome.MISSING
            self._pages.move_to_end(key)
        if page.size_bytes != view.nbytes:
            return ReadOutcome.WRONG_LENGTH
        raw = bytearray(HEADER_BYTES)
        outcome = self._client.get(name_object(key), memoryview(raw), view)
        if outcome is ReadOutcome.READ and not _is_page(raw, key, view):
            outcome = ReadOutcome.CORRUPT
        if outcome in _BAD:
            # Putting it again would find it there and change nothing.
            self._client.remove(name_object(key))
        if outcome in _BAD or outcome is ReadOutcome.MISSING:
            self._counts.add(f"{outcome}_pages")
            if self._forget(key, page):
                self._losses.add(key)
        return outcome

    def holds(self, key: bytes) -> bool:
        """See Store."""
        with self._lock:
            return key in self._pages

    def pages(self) -> list[HeldPage]:
        """See Store; what this process put."""
        with self._lock:
            held = list(self._pages.items())
        return [page.describe(key) for key, page in held]

    def pages_before(self, moment: Moment) -> list[HeldPage]:
        """See Store."""
        with self._lock:
            held = list(self._pages.items())
        return [page.describe(key) for key, page in held if page.came_s < moment.clock_s]

    def drop(self, key: bytes) -> Write:
        """See Store."""
        check_key(key)
        if self._is_closed:
            return Write(WriteOutcome.FAILED)
        with self._lock:
            page = self._pages.get(key)
        if page is None or not self._forget(key, page):
            return Write(WriteOutcome.MISSING)
        outcome = self._client.remove(name_object(key))
        # That store may have evicted it before.
        return Write(WriteOutcome.DROPPED if outcome is WriteOutcome.MISSING else outcome)

    def drop_many(self, keys: Collection[bytes]) -> Iterator[Write]:
        """See Store; one by one."""
        for key in keys:
            outcome = self.drop(key).outcome
            if outcome is not WriteOutcome.MISSING:
                yield Write(outcome, (key,))

    def refresh(self) -> Refresh:
        """Nothing is found: what others put there cannot be listed."""
        if self._is_closed:
            return Refresh(RefreshOutcome.FAILED)
        gone = tuple(key for key in self._losses.take() if not self.holds(key))
        return Refresh(RefreshOutcome.WHOLE, lost=gone)

    def stats(self) -> StoreStats:
        """See Store; what this process put and believes to be there."""
        counts = {**self._counts.snapshot(), **self._client.counts()}
        with self._lock:
            return StoreStats(
                len(self._pages), self._held_bytes, self._options.capacity_bytes, counts
            )

    def close(self) -> None:
        """See Store; the objects stay."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
            self._pages.clear()
            self._held_bytes = 0
        if not was_closed:
            self._client.close()

    def _note(self, key: bytes, page: RemotePage) -> Write:
        if self._is_closed:
            return Write(WriteOutcome.FAILED)
        if key in self._pages:
            return Write(WriteOutcome.PRESENT)
        self._pages[key] = page
        self._held_bytes += page.size_bytes
        lost = []
        while self._is_over():
            other, given_up = self._pages.popitem(last=False)
            self._held_bytes -= given_up.size_bytes
            lost.append(other)
        self._counts.add("forgotten_pages", len(lost))
        return Write(WriteOutcome.WRITTEN, tuple(lost))

    def _is_over(self) -> bool:
        options = self._options
        return self._held_bytes > options.capacity_bytes or len(self._pages) > options.max_pages

    def _forget(self, key: bytes, page: RemotePage) -> bool:
        """Hold it no longer, unless it was put anew since; whether it was held."""
        with self._lock:
            is_there = self._pages.get(key) is page
            if is_there:
                del self._pages[key]
                self._held_bytes -= page.size_bytes
            return is_there


def name_object(key: bytes) -> str:
    """What the page is called there; another format has other names."""
    return f"bana/{VERSION}/{key.hex()}"


def _is_page(raw: bytearray, key: bytes, payload: memoryview) -> bool:
    """Whether what was read is that page, whole."""
    header = parse_header(raw)
    return (
        isinstance(header, Header)
        and (header.kind, header.key, header.length_bytes) == (EntryKind.PAGE, key, payload.nbytes)
        and header.payload_check == check_payload(payload)
    )
