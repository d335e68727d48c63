"""Which cores a measured server gets, and which its load, so that neither slows the other."""

from __future__ import annotations

import os
import socket

import msgspec

from bana.eval.bench.errors import BenchError


class Placement(msgspec.Struct, frozen=True):
    """`server` is for what is measured, `client` for the load, `upstream` for what stands behind.

    2 cores: server │ client + upstream          3 or more: server │ upstream … │ client
    """

    server: frozenset[int]
    upstream: frozenset[int]
    client: frozenset[int]

    def describe(self) -> dict[str, object]:
        """The same for a report's settings: how many cores each has, and what is shared."""
        return {
            "server_cores": len(self.server),
            "upstream_cores": len(self.upstream),
            "client_cores": len(self.client),
            "client_shares_upstream_cores": bool(self.client & self.upstream),
        }


def plan_router_placement() -> Placement:
    """One core for the router, the last for the client, those between for the upstreams."""
    first, *middle, last = _usable_cores()
    upstream = frozenset(middle) or frozenset({last})
    return Placement(server=frozenset({first}), upstream=upstream, client=frozenset({last}))


def plan_engine_placement() -> Placement:
    """All cores but the last for instances, the last for the client and what stands before them."""
    *engine, last = _usable_cores()
    return Placement(server=frozenset(engine), upstream=frozenset({last}), client=frozenset({last}))


def take_free_port() -> int:
    """A loopback port that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _usable_cores() -> list[int]:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise BenchError(
            f"this benchmark needs at least 2 usable cores, found {len(cores)}: the server and its "
            "load must not share one; allow this process more cores"
        )
    return cores
