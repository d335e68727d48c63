"""A client under load, in a process of its own: `storm.py SETTINGS.json` prints what it saw.

Each round wants the prefix of a random document, checks every page that it may use byte by byte,
and publishes what was missing. What a page must hold follows from its key. It ends on SIGTERM, or
with status 3 at the first wrong byte that it was allowed to use.

With `holds` it attaches, keeps one want and some slots, says "holding", and goes on when told to.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from bana.radix_global.client import StoreClient
from bana.radix_global.client_settings import ClientSettings
from bana.radix_global.keys import Namespace
from bana.radix_global.link import LinkState, Want
from sglang_bana.cluster.procfs import read_start_ticks
from sglang_bana.store.clock import RealClock

WRONG_BYTES = 3
ROUND_S = 2.0
MOST_S = 200.0


def page_key(document: int, page: int) -> bytes:
    return hashlib.sha256(b"%d/%d" % (document, page)).digest()[:16]


def page_bytes_of(key: bytes, size_bytes: int) -> bytes:
    return (hashlib.sha256(key).digest() * (size_bytes // 32 + 1))[:size_bytes]


class Storm:
    def __init__(self, settings: dict) -> None:
        self.settings = settings
        self.size_bytes = settings["page_bytes"]
        self.rng = random.Random(settings["seed"])
        self.seen: Counter[str] = Counter()
        self.bell = threading.Event()
        self.is_told = False
        signal.signal(signal.SIGTERM, lambda *_: self._note_end())
        namespace = Namespace(
            model="storm",
            revision="",
            weights_epoch="",
            dtype="bytes",
            layout="flat",
            page_tokens=16,
            tp_rank=0,
            tp_size=1,
            first_layer=0,
            end_layer=1,
            salt="",
        )
        self.client = StoreClient(
            ClientSettings(
                endpoint=settings["endpoint"],
                name=settings["name"],
                namespace=namespace,
                page_bytes=self.size_bytes,
                pid=os.getpid(),
                start_ticks=read_start_ticks(os.getpid()) or 0,
                stock_slots=8,
                backoff_max_s=0.2,
                silent_after_s=20.0,
            ),
            RealClock(),
            self.bell.set,
        )

    def run(self) -> int:
        self.client.start()
        if self.settings.get("holds"):
            self._hold()
        end_s = time.monotonic() + MOST_S
        while not self.is_told and time.monotonic() < end_s:
            if self.client.state is not LinkState.ATTACHED:
                self.seen["rounds_without_store"] += 1
                time.sleep(0.02)
                continue
            if not self._play_round():
                return WRONG_BYTES
        self.seen.update({f"client_{name}": n for name, n in self.client.counts.items()})
        self.client.close()
        return 0

    def _note_end(self) -> None:
        self.is_told = True

    def _hold(self) -> None:
        while self.client.state is not LinkState.ATTACHED:
            time.sleep(0.02)
        key = page_key(0, 0)
        while self._prefetch_one(key).pages().pages == 0:
            self._publish([key], 0)
            time.sleep(0.02)
        self.held = self._prefetch_one(key)
        while self.client.take_slots(4) is None:
            time.sleep(0.01)
        print("holding", flush=True)
        sys.stdin.readline()
        again = self._prefetch_one(key)
        if again.pages().slots == self.held.pages().slots:
            self.seen["lease_held"] += 1

    def _prefetch_one(self, key: bytes) -> Want:
        now_s = time.monotonic()
        want = self.client.prefetch(key, now_s + 5, now_s + 5)
        self._await(want)
        return want

    def _play_round(self) -> bool:
        document = self.rng.randrange(self.settings["documents"])
        pages = self.rng.randrange(1, self.settings["pages"] + 1)
        keys = [page_key(document, page) for page in range(pages)]
        now_s = time.monotonic()
        want = self.client.prefetch(b"".join(keys), now_s + 0.5, now_s + ROUND_S)
        self._await(want)
        found = want.pages()
        self.seen[f"outcome_{want.outcome}"] += 1
        for key, slot, origin in zip(keys, found.slots, found.origins, strict=False):
            view = self.client.view(slot)
            copied = None if view is None else bytes(view[: self.size_bytes])
            if copied is None or not self.client.is_valid(slot):
                self.seen["invalid_pages"] += 1
            elif copied != page_bytes_of(key, self.size_bytes):
                self.seen["wrong_pages"] += 1
                return False
            else:
                self.seen[f"restored_{'arena' if origin == 0 else 'tier'}"] += 1
        self.client.release(want)
        self._publish(keys, found.pages)
        return True

    def _await(self, want: Want) -> None:
        """Until it is settled: a store that never settles a want is a failure of its own."""
        end_s = time.monotonic() + ROUND_S + 8
        while want.outcome is None and time.monotonic() < end_s:
            self.bell.wait(0.05)
            self.bell.clear()
        if want.outcome is None:
            self.seen["never_settled"] += 1

    def _publish(self, keys: list[bytes], known: int) -> None:
        missing = keys[known : known + 4]
        slots = self.client.take_slots(len(missing)) if missing else None
        if slots is None:
            return
        for key, slot in zip(missing, slots, strict=True):
            view = self.client.view(slot)
            if view is not None:
                view[: self.size_bytes] = page_bytes_of(key, self.size_bytes)
        self.client.publish(keys[known - 1] if known else b"", b"".join(missing), slots)
        self.seen["published"] += len(missing)


def main() -> int:
    storm = Storm(json.loads(Path(sys.argv[1]).read_text()))
    print("begun", flush=True)
    status = storm.run()
    print(json.dumps(storm.seen), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
