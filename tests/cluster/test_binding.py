"""Sockets: what is bound, what is held, and how a refusal reads."""

from __future__ import annotations

import socket

import pytest

from bana.slo.errors import ConfigError
from sglang_bana.cluster.binding import (
    HeldPort,
    bind_listener,
    format_url,
    hold_ports,
    is_loopback,
    release_ports,
)


def test_port_zero_takes_a_free_one_that_accepts() -> None:
    with bind_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        with pytest.raises(ConfigError, match=rf"port in use: 127.0.0.1:{port}; .* --port"):
            bind_listener("127.0.0.1", port)


@pytest.mark.parametrize("host", ["203.0.113.7", "no.such.host.invalid"])
def test_foreign_addresses_are_refused(host: str) -> None:
    with pytest.raises(ConfigError, match=host):
        bind_listener(host, 0)


def test_held_port_is_refused_to_others_but_not_to_a_server() -> None:
    (held,) = hold_ports(1)
    try:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", held.port))
        with pytest.raises(OSError, match="in use"):
            HeldPort(held.port)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", held.port), timeout=5)
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", held.port))
            server.listen()
            socket.create_connection(("127.0.0.1", held.port), timeout=5).close()
    finally:
        held.release()


def test_held_ports_are_distinct_and_given_back() -> None:
    # More than the largest cluster needs.
    held = hold_ports(600)
    ports = {port.port for port in held}
    release_ports(held)
    assert len(ports) == 600
    again = HeldPort(min(ports))
    again.release()


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("127.8.8.8", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("localhost.example", False),
    ],
)
def test_only_loopback_counts_as_private(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_urls_name_an_address_that_can_be_reached() -> None:
    assert format_url("0.0.0.0", 5) == "http://127.0.0.1:5"
    assert format_url("::1", 5) == "http://[::1]:5"
    assert format_url("example.test", 5) == "http://example.test:5"
