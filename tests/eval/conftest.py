"""Stub servers in processes of their own, since a run has an event loop of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

StubProcess = Callable[..., AbstractContextManager[str]]
STOP_S = 30


@contextlib.contextmanager
def run_stub_process(**settings: object) -> Iterator[str]:
    """The URL of a stub with these settings, for the length of the block."""
    argv = [sys.executable, "-m", "bana.eval.stub", "--json-ready", "--settings"]
    with subprocess.Popen([*argv, json.dumps(settings)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield str(json.loads(process.stdout.readline())["url"])
        finally:
            process.terminate()
            process.wait(STOP_S)


@pytest.fixture(scope="session")
def stub_process() -> StubProcess:
    """A function: stub settings in, a context with its URL out."""
    return run_stub_process
