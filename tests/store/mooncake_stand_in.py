"""What a lane needs of `mooncake.store`, in a folder: tests put this file there under that name.

The file `fault` beside it says what befalls the next calls, of all lanes: hang, crash, full, or
refuse (to connect).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

ROOM = Path(__file__).parent


def _find_fault() -> str:
    fault = ROOM / "fault"
    return fault.read_text() if fault.exists() else ""


def _suffer() -> None:
    if _find_fault() == "hang":
        time.sleep(60)
    if _find_fault() == "crash":
        os.abort()


class MooncakeDistributedStore:
    def setup(self, *settings: object) -> int:
        (ROOM / "settings").write_text(repr(settings))
        return -1 if _find_fault() == "refuse" else 0

    def put(self, name: str, content: bytearray) -> int:
        _suffer()
        if _find_fault() == "full":
            return -200
        if not self.is_exist(name):
            _place(name).write_bytes(content)
        return 0

    def get_buffer(self, name: str) -> bytes | None:
        _suffer()
        return _place(name).read_bytes() if self.is_exist(name) else None

    def is_exist(self, name: str) -> int:
        return int(_place(name).exists())

    def remove(self, name: str, force: bool) -> int:
        assert force
        if not self.is_exist(name):
            return -704
        _place(name).unlink()
        return 0


def _place(name: str) -> Path:
    return ROOM / name.replace("/", "-")
