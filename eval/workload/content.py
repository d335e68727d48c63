"""What is offered, as bytes: the digest of it, and how much of it repeats."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from bana.eval.requests import Offered, Phase, Prompt
from bana.eval.workload.prefix_tree import PrefixTree, Units
from bana.eval.workload.token_runs import TokenIds


class Content(msgspec.Struct, frozen=True):
    """What is offered but when: its digest, and how much of it repeats.

    `units` are the window's tokens (bytes of text); an unbounded prefix cache had seen `seen` of
    them, each at its place, in prompts that came before, warm-up included.
    """

    digest: str
    units: int
    seen: int

    @property
    def shared_prefix_share(self) -> float:
        return self.seen / self.units


def measure_content(requests: Iterable[Offered]) -> Content:
    """Digest and sharing in one pass over all prompts. O(units)."""
    digest, tree = hashlib.sha256(), PrefixTree()
    units = seen = 0
    for request in requests:
        prompt = read_units(request.prompt)
        _add(digest, request, prompt)
        known = tree.insert(prompt)
        if request.phase is Phase.WINDOW:
            units += len(prompt)
            seen += known
    return Content(digest.hexdigest(), units, seen)


def digest_content(requests: Iterable[Offered]) -> str:
    """A digest of all that is offered but when: equal at every rate of a load grid."""
    digest = hashlib.sha256()
    for request in requests:
        _add(digest, request, read_units(request.prompt))
    return digest.hexdigest()


def digest_all(requests: Sequence[Offered], window_s: float, content: str) -> str:
    """A digest of all that is offered, times included, given that of the rest."""
    digest = hashlib.sha256(content.encode())
    digest.update(np.array([window_s], dtype="<f8").tobytes())
    digest.update(np.array([r.due_s for r in requests], dtype="<f8").tobytes())
    return digest.hexdigest()


def read_units(prompt: Prompt) -> Units:
    """A prompt as an array: its token ids, or the bytes of its text with the roles of messages."""
    if isinstance(prompt.token_ids, TokenIds):
        return prompt.token_ids.array()
    if prompt.token_ids is not None:
        return np.array(prompt.token_ids, dtype=np.int32)
    if prompt.messages is not None:
        text = "".join(f"{m.role}\0{m.content}\0" for m in prompt.messages)
    else:
        text = prompt.text or ""
    return np.frombuffer(text.encode(), dtype=np.uint8)


def _add(digest: hashlib._Hash, request: Offered, prompt: Units) -> None:
    digest.update(_describe(request))
    digest.update(len(prompt).to_bytes(8, "little"))
    digest.update(prompt.tobytes())


def _describe(request: Offered) -> bytes:
    beside = (
        request.index,
        request.prompt_tokens,
        request.output_tokens,
        request.ignore_eos,
        request.slo_class,
        request.phase.value,
        request.family,
        request.session,
        request.cancel_after_s,
    )
    # Where there is none the digest is what it was before requests could have any.
    extra = (request.extra_body,) if request.extra_body else ()
    return msgspec.json.encode((*beside, *extra))
