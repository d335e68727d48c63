"""Which instance this process belongs to: the spec that its launcher left for it."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import NoReturn

import msgspec

from bana.slo.errors import BanaError, ConfigError
from sglang_bana.config import INSTANCE_ENV, InstanceSpec


def is_instance() -> bool:
    """Whether bana started this process; everything of bana is inert where it did not."""
    return bool(os.environ.get(INSTANCE_ENV))


def read_instance_spec() -> InstanceSpec:
    """The spec in the file that BANA_INSTANCE names; ConfigError when it cannot be trusted."""
    path = Path(os.environ.get(INSTANCE_ENV, ""))
    if not is_instance():
        raise ConfigError(
            f"{INSTANCE_ENV} is not set; it must name an instance spec (JSON, mode 0600). "
            "Start instances with `bana launch`"
        )
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise ConfigError(f"{INSTANCE_ENV}={path} is open to other users; chmod 600 it")
        return msgspec.json.decode(path.read_bytes(), type=InstanceSpec)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{INSTANCE_ENV}={path} cannot be read: {error}") from error


REFUSED_STATUS = 2


def refuse(error: BanaError) -> NoReturn:
    """End this process with one line on stderr that says what is wrong."""
    print(f"bana: {error}", file=sys.stderr, flush=True)
    raise SystemExit(REFUSED_STATUS)
