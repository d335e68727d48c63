"""SGLang as it is in a scheduler's process: imported quietly, with its arguments published."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator

import pytest

_KEPT = logging.root.handlers[:], logging.root.level
with warnings.catch_warnings():
    # SGLang warns at import about accelerators that are not there.
    warnings.simplefilter("ignore")
    from sglang.srt.runtime_context import SpawnRanks, publish, reset_context
    from sglang.srt.server_args import ServerArgs

    from sglang_bana.engine.linker import scheduler as _scheduler  # noqa: F401
logging.root.handlers[:], logging.root.level = _KEPT


@pytest.fixture(autouse=True, scope="module")
def _sglang() -> Iterator[None]:
    reset_context()
    publish(
        ServerArgs(model_path="dummy", device="cpu"),
        role="scheduler",
        ranks=SpawnRanks(world_rank=0),
    )
    yield
    reset_context()
