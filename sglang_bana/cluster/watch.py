"""What the front door says of the instances, and which of them must be killed for it."""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp
import msgspec

from sglang_bana.config import SupervisorConfig
from sglang_bana.status import FrontDoorStatus, InstanceState, InstanceStatus

STATUS_PATH = "/bana/status"
ANSWER_TIMEOUT_S = 3.0


class Life(msgspec.Struct, frozen=True):
    """An instance's present process: its age, whether it was ever up, how long it seems dead.

    `unseen_s` does not count while the front door, through which it is seen, is away itself.
    """

    age_s: float
    was_up: bool
    unseen_s: float


async def fetch_status(
    session: aiohttp.ClientSession, url: str, control_key: str
) -> FrontDoorStatus | None:
    """The front door's status, None when it does not answer."""
    headers = {"Authorization": f"Bearer {control_key}"}
    timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
    try:
        async with session.get(url + STATUS_PATH, headers=headers, timeout=timeout) as answer:
            answer.raise_for_status()
            return msgspec.json.decode(await answer.read(), type=FrontDoorStatus)
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError):
        return None


def is_up(seen: InstanceStatus | None, age_s: float) -> bool:
    """Whether it serves in its present life of `age_s`; a belief about an earlier one is none."""
    if seen is None or seen.state is not InstanceState.UP or seen.silent_s is None:
        return False
    return seen.silent_s < age_s


def decide_kill(life: Life, rules: SupervisorConfig) -> str | None:
    """Why the instance must be killed now, None when it need not."""
    if not life.was_up and life.age_s > rules.start_timeout_s:
        return f"it does not serve after {life.age_s:.0f} s (supervisor.start_timeout_s)"
    if life.was_up and life.unseen_s > rules.kill_after_s:
        return f"no sign of life for {life.unseen_s:.0f} s (supervisor.kill_after_s)"
    return None


def index_instances(status: FrontDoorStatus | None) -> Mapping[str, InstanceStatus]:
    """The instances by name; none without a status."""
    return {} if status is None else {seen.name: seen for seen in status.instances}
