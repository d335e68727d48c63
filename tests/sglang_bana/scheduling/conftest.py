"""SGLang as it is after its start, with batches that need no tensors and a clock that stands."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator

import pytest

_KEPT = logging.root.handlers[:], logging.root.level
with warnings.catch_warnings():
    # SGLang warns at import about accelerators that are not there.
    warnings.simplefilter("ignore")
    from sglang.srt.managers import scheduler as stock
    from sglang.srt.runtime_context import SpawnRanks, publish, reset_context
    from sglang.srt.server_args import ServerArgs

    from sglang_bana.engine import scheduler as own
    from sglang_bana.engine.scheduling import step_watch

    from .fake_batch import FakeBatch
    from .fake_engine import CLOCK, START_S
# From then on it would log through the root.
logging.root.handlers[:], logging.root.level = _KEPT


@pytest.fixture(autouse=True, scope="module")
def _sglang() -> Iterator[None]:
    arguments = ServerArgs(model_path="dummy", device="cpu", pp_max_micro_batch_size=64)
    with pytest.MonkeyPatch.context() as patch:
        reset_context()
        publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0))
        patch.setattr(stock, "ScheduleBatch", FakeBatch)
        patch.setattr(own, "time", CLOCK)
        patch.setattr(step_watch, "time", CLOCK)
        yield
        reset_context()


@pytest.fixture(autouse=True)
def _clock() -> None:
    CLOCK.now_s = START_S
