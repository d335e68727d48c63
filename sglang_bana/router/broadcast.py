"""Asking every instance the same and telling what each answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import aiohttp
import msgspec

from sglang_bana.router.delivery import Delivery
from sglang_bana.router.errors import ErrorBody
from sglang_bana.router.instances import Instance, InstanceBoard
from sglang_bana.router.redact import redact_value
from sglang_bana.router.upstream import Message, Upstream
from sglang_bana.status import InstanceState

MAX_ANSWER_BYTES = 4 * 2**20
_REACHABLE = (InstanceState.UP, InstanceState.SUSPECT)


class InstanceAnswer(msgspec.Struct, frozen=True):
    """What one instance answered; `status` is None when it could not be asked."""

    status: int | None
    body: object = None
    error: str | None = None

    @property
    def is_ok(self) -> bool:
        """Whether it did what it was asked."""
        return self.status is not None and self.status < 400


class Broadcast:
    """Sends a message to all instances at once; each has `timeout_s` to answer."""

    def __init__(self, board: InstanceBoard, upstream: Upstream, timeout_s: float) -> None:
        self._board = board
        self._upstream = upstream
        self._timeout_s = timeout_s

    async def broadcast(
        self, message: Message, delivery: Delivery, note_done: Callable[[str], None]
    ) -> None:
        """Answer with every instance's result; 502 with an error beside them unless all did it.

        `note_done` is told the name of each that did it.
        """
        instances = self._board.all()
        answers = await asyncio.gather(*(self._ask(i, message) for i in instances))
        results = {i.name: answer for i, answer in zip(instances, answers, strict=True)}
        failed = sorted(name for name, answer in results.items() if not answer.is_ok)
        for name in results.keys() - set(failed):
            note_done(name)
        content: dict[str, object] = {"success": not failed, "results": results}
        headers = {"Content-Type": "application/json"}
        if failed:
            content["error"] = ErrorBody(
                f"{len(failed)} of {len(results)} instances did not do it: {', '.join(failed)}; "
                "see results",
                "server_error",
                "broadcast_failed",
            )
            headers["x-bana-error"] = "broadcast_failed"
        delivery.answer_whole(502 if failed else 200, headers, msgspec.json.encode(content))

    async def _ask(self, instance: Instance, message: Message) -> InstanceAnswer:
        if instance.state not in _REACHABLE:
            return InstanceAnswer(None, error=f"the instance is {instance.state}")
        try:
            status, headers, body = await self._upstream.ask(
                instance, message, self._timeout_s, MAX_ANSWER_BYTES
            )
        except TimeoutError:
            return InstanceAnswer(None, error=f"no answer within {self._timeout_s:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return InstanceAnswer(None, error=f"{type(error).__name__}: {error}")
        told = redact_value(_read_body(headers, body), instance.spec.secret)
        return InstanceAnswer(status, told)


def _read_body(headers: Mapping[str, str], body: bytes) -> object:
    if headers.get("Content-Type", "").startswith("application/json"):
        try:
            return msgspec.json.decode(body)
        except msgspec.DecodeError:
            pass
    return body.decode(errors="replace")
