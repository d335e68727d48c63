"""Sockets of a launch: the front door's listener, and ports held for the instances."""

from __future__ import annotations

import errno
import ipaddress
import random
import socket
from collections.abc import Sequence

from bana.slo.errors import ConfigError

BACKLOG = 4096
# Below the range from which the kernel takes ports for outgoing connections.
PORT_RANGE = range(20_000, 30_000)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`; an unknown name counts as reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind_listener(host: str, port: int) -> socket.socket:
    """A listening socket that children may inherit; ConfigError says why there is none."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "no host name"
        raise ConfigError(
            f"cannot resolve --host {host!r}: {reason}; give an address of this machine"
        ) from error
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(_describe_refusal(host, port, error)) from error
    listener.setblocking(False)
    return listener


def format_url(host: str, port: int) -> str:
    """The URL at which this machine reaches a server bound to `host`."""
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{local}]:{port}" if ":" in local else f"http://{local}:{port}"


class HeldPort:
    """A loopback port that nobody else is given while this object holds it.

    The socket is bound but does not listen: the instance itself, which sets SO_REUSEADDR as every
    server does, binds beside it; connecting before that is refused at once.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            # Without SO_REUSEADDR first: a port that anybody else holds is then refused.
            self._socket.bind(("127.0.0.1", port))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        except OSError:
            self._socket.close()
            raise

    def release(self) -> None:
        """Give the port back."""
        self._socket.close()


def hold_ports(count: int) -> tuple[HeldPort, ...]:
    """`count` distinct free ports below the ephemeral range."""
    held: list[HeldPort] = []
    for port in random.SystemRandom().sample(PORT_RANGE, len(PORT_RANGE)):
        if len(held) == count:
            break
        try:
            held.append(HeldPort(port))
        except OSError:
            continue
    if len(held) < count:
        release_ports(held)
        raise ConfigError(
            f"only {len(held)} of {count} ports between {PORT_RANGE.start} and "
            f"{PORT_RANGE.stop - 1} are free; stop other servers or start fewer instances"
        )
    return tuple(held)


def release_ports(held: Sequence[HeldPort]) -> None:
    """Give all of them back."""
    for port in held:
        port.release()


def _describe_refusal(host: str, port: int, error: OSError) -> str:
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return f"port in use: {where}; choose another with --port (0 takes a free one)"
    if error.errno == errno.EACCES:
        return f"may not bind {where}: ports below 1024 are privileged; choose another with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host!r} is no address of this machine; choose another with --host"
    return f"cannot bind {where}: {error.strerror}; choose another with --host or --port"
