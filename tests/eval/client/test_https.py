from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bana.eval.client.errors import LoadError
from bana.eval.client.run import run_load
from bana.eval.client.watch import NoWatch
from bana.eval.requests import Ending

EVENT = b'{"text": "x", "meta_info": {"completion_tokens": 4}}'
ANSWER = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\ndata: %s\n\ndata: [DONE]\n\n" % EVENT


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for the loopback that nobody has signed but itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl program to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run(
        [*words, "-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return cert, key


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        await reader.readexactly(length)
        writer.write(ANSWER)
    except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
        pass
    writer.close()


def serve_tls(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


def test_a_certificate_that_is_trusted_is_accepted(
    raw_server: Any,
    make_plan: Any,
    make_workload: Any,
    certificate: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    with raw_server(answer, ssl=serve_tls(certificate)) as url:
        run = run_load(make_workload(3), make_plan(url), NoWatch())

    assert [seen.ending for seen in run.observed] == [Ending.FINISHED] * 3
    assert [seen.output_tokens for seen in run.observed] == [4] * 3


def test_a_certificate_that_nobody_vouches_for_is_refused(
    raw_server: Any, make_plan: Any, make_workload: Any, certificate: tuple[Path, Path]
) -> None:
    with (
        raw_server(answer, ssl=serve_tls(certificate)) as url,
        pytest.raises(LoadError, match=r"(?i)certificate verify failed"),
    ):
        run_load(make_workload(1), make_plan(url), NoWatch())


def test_tls_to_a_server_that_speaks_none_is_refused(
    raw_server: Any, make_plan: Any, make_workload: Any
) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    with raw_server(babble) as url, pytest.raises(LoadError, match="cannot connect"):
        run_load(make_workload(1), make_plan(url.replace("http:", "https:")), NoWatch())
