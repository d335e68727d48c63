"""An unmodified SGLang frontend program, run against any server: `python -m … URL`.

It uses gen, select, fork and streaming through `RuntimeEndpoint`, and writes one JSON line per
answer: {"question", "answer", "first_s", "per_token_s", "tokens"}; times are None where the program
does not stream.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import sglang as sgl


@sgl.function
def capital(s: Any, country: str) -> None:
    """Ask for one capital, streaming the answer."""
    s += sgl.user(f"What is the capital of {country}? Answer in one sentence.")
    s += sgl.assistant(sgl.gen("answer", max_tokens=24, temperature=0, stop="<|im_end|>"))


@sgl.function
def larger(s: Any) -> None:
    """Let the model choose between two given answers."""
    s += sgl.user("Which is larger, the sun or the moon?")
    s += sgl.assistant("The larger one is the " + sgl.select("choice", choices=["sun", "moon"]))


@sgl.function
def two_facts(s: Any) -> None:
    """Fork one conversation into two continuations that share their prefix."""
    s += sgl.user("Name one thing about water.")
    starts = ("Water is", "Water can")
    forks = s.fork(len(starts))
    for start, fork in zip(starts, forks, strict=True):
        ending = sgl.gen("ending", max_tokens=12, temperature=0, stop=["\n", "<|im_end|>"])
        fork += sgl.assistant(start + ending)
    s["facts"] = [start + f["ending"] for start, f in zip(starts, forks, strict=True)]


def ask_capital(country: str) -> dict[str, Any]:
    """Run `capital` with streaming and take the client's own times."""
    begun_s = time.monotonic()
    state = capital.run(country=country, stream=True)
    stamps = [(time.monotonic(), piece) for piece in state.text_iter("answer") if piece]
    gaps = max(len(stamps) - 1, 1)
    return {
        "question": f"What is the capital of {country}?",
        "answer": "".join(piece for _, piece in stamps).strip(),
        "first_s": stamps[0][0] - begun_s,
        "per_token_s": (stamps[-1][0] - stamps[0][0]) / gaps,
        "tokens": len(stamps),
    }


def untimed(question: str, answer: str) -> dict[str, Any]:
    """An answer of a program that does not stream."""
    times = dict.fromkeys(("first_s", "per_token_s", "tokens"))
    return {"question": question, "answer": answer, **times}


def answers() -> Iterator[dict[str, Any]]:
    """Run the three programs on the default backend, one answer at a time."""
    yield ask_capital("France")
    yield untimed("Which is larger, the sun or the moon?", larger.run()["choice"])
    yield untimed("Name one thing about water (two forks).", " | ".join(two_facts.run()["facts"]))


def main(url: str) -> None:
    """Print what the programs answer at `url`; BANA_API_KEY is sent when set."""
    key = os.environ.get("BANA_API_KEY")
    endpoint = sgl.RuntimeEndpoint(url, api_key=key, chat_template_name="chatml")
    sgl.set_default_backend(endpoint)
    for answer in answers():
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
