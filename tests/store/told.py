"""A client that does what it is told: `told.py SETTINGS.json`, a JSON list a line, an answer each.

    ["publish", DOCUMENT, FIRST, END]   its pages FIRST to END, written and published
    ["want", DOCUMENT, PAGES, SECONDS]  its first pages, awaited so long where nobody has them yet
    ["settle", WANT]                    what has come of that want in the end, checked byte by byte

It says "begun" once it is attached, and ends with its input.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from storm import Storm, page_bytes_of, page_key

from bana.radix_global.link import LinkState, Slot, Want

PATIENCE_S = 60.0


class ToldClient(Storm):
    def __init__(self, settings: dict) -> None:
        super().__init__(settings)
        self.wants: list[tuple[list[bytes], Want]] = []
        self.verbs = {"publish": self.publish, "want": self.want, "settle": self.settle}

    def obey(self) -> None:
        self.client.start()
        self.wait(lambda: self.client.state is LinkState.ATTACHED)
        print("begun", flush=True)
        for line in sys.stdin:
            verb, *numbers = json.loads(line)
            print(json.dumps(self.verbs[verb](*numbers)), flush=True)
        self.client.close()

    def wait(self, is_so: Callable[[], bool]) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not is_so():
            if time.monotonic() > end_s:
                raise SystemExit("it did not come to be")
            time.sleep(0.005)

    def publish(self, document: int, first: int, end: int) -> dict:
        """Page by page, so that a daemon may be killed between any two."""
        self.wait(lambda: self.client.state is LinkState.ATTACHED)
        for page in range(first, end):
            slot = self._take_slot()
            key = page_key(document, page)
            view = self.client.view(slot)
            if view is not None:
                view[: self.size_bytes] = page_bytes_of(key, self.size_bytes)
            self.client.publish(page_key(document, page - 1) if page else b"", key, (slot,))
        return {"published": end - first}

    def want(self, document: int, pages: int, await_s: float) -> dict:
        self.wait(lambda: self.client.state is LinkState.ATTACHED)
        keys = [page_key(document, page) for page in range(pages)]
        now_s = time.monotonic()
        until_s = now_s + await_s if await_s else 0.0
        want = self.client.prefetch(b"".join(keys), now_s + 1, now_s + PATIENCE_S, until_s)
        self.wants.append((keys, want))
        self.wait(lambda: want.known is not None)
        assert want.known is not None
        return {"want": len(self.wants) - 1, "known": len(want.known), "coming": want.coming}

    def settle(self, number: int) -> dict:
        keys, want = self.wants[number]
        self.wait(lambda: want.outcome is not None)
        found = want.pages()
        right = 0
        for key, slot in zip(keys, found.slots, strict=False):
            view = self.client.view(slot)
            copied = b"" if view is None else bytes(view[: self.size_bytes])
            is_right = copied == page_bytes_of(key, self.size_bytes)
            right += is_right and self.client.is_valid(slot)
        self.client.release(want)
        from_tier = sum(origin != 0 for origin in found.origins)
        return {
            "outcome": want.outcome,
            "pages": found.pages,
            "right": right,
            "from_tier": from_tier,
        }

    def _take_slot(self) -> Slot:
        taken: list[Slot] = []

        def take() -> bool:
            taken.extend(self.client.take_slots(1) or ())
            return bool(taken)

        self.wait(take)
        return taken[0]


if __name__ == "__main__":
    ToldClient(json.loads(Path(sys.argv[1]).read_text())).obey()
