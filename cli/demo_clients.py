"""Three kinds of client for the demo: the OpenAI library, a SGLang program, plain HTTP.

Times are the client's own: seconds to the first piece of text, and the mean gap between pieces.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from urllib.request import Request, urlopen

import msgspec

from bana.slo.errors import BanaError

CLIENT_DEADLINE_S = 180.0


class Answer(msgspec.Struct, frozen=True):
    """One answer; times and pieces are None where that client does not stream."""

    question: str
    answer: str
    first_s: float | None
    per_token_s: float | None
    tokens: int | None


def ask_openai(url: str, question: str) -> Answer:
    """A streaming chat completion through the OpenAI library."""
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key=_api_key(), timeout=CLIENT_DEADLINE_S)
    begun_s = time.monotonic()
    stream = client.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": question}],
        max_tokens=32,
        temperature=0,
        stream=True,
    )
    pieces = (chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    return time_pieces(question, begun_s, pieces)


def ask_frontend_program(url: str) -> Iterator[Answer]:
    """What an unmodified SGLang frontend program answers; it runs in a process of its own."""
    argv = [sys.executable, "-m", "sglang_bana.engine.frontend_program", url]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=CLIENT_DEADLINE_S)
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        raise BanaError(f"the SGLang program ended with status {done.returncode}: {last[0]}")
    for line in done.stdout.splitlines():
        yield msgspec.json.decode(line, type=Answer)


def ask_http(url: str, prompt: str) -> Answer:
    """SGLang's native endpoint over plain HTTP with server-sent events, as curl would."""
    sampling = {"max_new_tokens": 12, "temperature": 0}
    body = json.dumps({"text": prompt, "sampling_params": sampling, "stream": True})
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {_api_key()}"}
    request = Request(f"{url}/generate", data=body.encode(), headers=headers)
    begun_s = time.monotonic()
    with urlopen(request, timeout=CLIENT_DEADLINE_S) as response:
        return time_pieces(prompt, begun_s, _text_pieces(response))


def time_pieces(question: str, begun_s: float, pieces: Iterable[str]) -> Answer:
    """Join streamed pieces and take the times at which the non-empty ones arrived."""
    stamped = [(time.monotonic(), piece) for piece in pieces if piece]
    if not stamped:
        raise BanaError(f"no text came for {question!r}; look into the instance's log")
    gaps = max(len(stamped) - 1, 1)
    return Answer(
        question=question,
        answer="".join(piece for _, piece in stamped).strip(),
        first_s=stamped[0][0] - begun_s,
        per_token_s=(stamped[-1][0] - stamped[0][0]) / gaps,
        tokens=len(stamped),
    )


def _text_pieces(lines: Iterable[bytes]) -> Iterator[str]:
    """The new text of each event; SGLang's native stream repeats the text so far."""
    seen = ""
    for line in lines:
        data = line.decode().removeprefix("data:").strip()
        if data and data != "[DONE]":
            text = json.loads(data)["text"]
            yield text[len(seen) :]
            seen = text


def _api_key() -> str:
    return os.environ.get("BANA_API_KEY", "none")
