"""Where a Mooncake pool is, how it is reached, and how long anybody waits for it."""

from __future__ import annotations

import dataclasses

from bana.slo.errors import ConfigError

MAX_LANES = 32
MIN_BUFFER_BYTES, MAX_BUFFER_BYTES = 2**20, 2**36


@dataclasses.dataclass(frozen=True)
class MooncakeOptions:
    """`master` is HOST:PORT of mooncake_master; `metadata` its metadata server's URL, or
    P2PHANDSHAKE. `host` is where others reach this one. So many `lanes` make calls at once, each
    with `buffer_bytes` that must hold a page. A lane that failed is replaced `restart_s` later.
    """

    master: str = ""
    metadata: str = "P2PHANDSHAKE"
    host: str = "127.0.0.1"
    lanes: int = 4
    buffer_bytes: int = 64 * 2**20
    max_pages: int = 1_000_000
    call_timeout_s: float = 2.0
    start_timeout_s: float = 15.0
    restart_s: float = 5.0

    def __post_init__(self) -> None:
        host, _, port = self.master.rpartition(":")
        if not (host and port.isdecimal() and 0 < int(port) < 2**16):
            raise ConfigError(
                f"master {self.master!r}, allowed: HOST:PORT; name the rpc_port of mooncake_master"
            )
        bounds = {
            "lanes": (1, MAX_LANES),
            "buffer_bytes": (MIN_BUFFER_BYTES, MAX_BUFFER_BYTES),
            "max_pages": (1, 2**31 - 2),
        }
        for name, (least, most) in bounds.items():
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"{name} {getattr(self, name)}, allowed: {least}..{most}")
        for name in ("call_timeout_s", "start_timeout_s", "restart_s"):
            if not 0 < getattr(self, name) <= 600:
                raise ConfigError(f"{name} {getattr(self, name)}, allowed: > 0 to 600")

    @property
    def address(self) -> tuple[str, int]:
        """Where the master listens."""
        host, _, port = self.master.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def memory_bytes(self) -> int:
        """What the lanes take of this host's memory."""
        return self.lanes * self.buffer_bytes
