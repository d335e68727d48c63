"""A namespace for tests that need one, whatever it is."""

from __future__ import annotations

from bana.radix_global.keys import Namespace

SPACE = Namespace(
    model="m",
    revision="",
    weights_epoch="",
    dtype="f",
    layout="l",
    page_tokens=1,
    tp_rank=0,
    tp_size=1,
    first_layer=0,
    end_layer=1,
    salt="",
)
