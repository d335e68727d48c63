"""Whether each hop of a running cluster accepts the credentials that it is really used with."""

from __future__ import annotations

from urllib.error import HTTPError, URLError
from urllib.request import Request

import msgspec

from sglang_bana.cluster.commands import FRONT_DOOR
from sglang_bana.cluster.control import LiveRun, open_directly
from sglang_bana.cluster.watch import STATUS_PATH
from sglang_bana.config import FrontDoorSpec

# It needs a key, and no scheduler.
GUARDED_PATH = "/v1/models"


class Hop(msgspec.Struct, frozen=True):
    """One hop that was tried: its HTTP status, None without an answer, and that in words."""

    name: str
    url: str
    status: int | None
    answer: str


def try_hops(run: LiveRun) -> tuple[Hop, ...]:
    """The launcher's hop to the front door, then the front door's to each instance."""
    path = run.run_dir.spec_file(FRONT_DOOR)
    try:
        spec = msgspec.json.decode(path.read_bytes(), type=FrontDoorSpec)
    except (OSError, msgspec.MsgspecError) as error:
        return (Hop(FRONT_DOOR, run.state.url, None, f"cannot read {path}: {error}"),)
    door = _try(FRONT_DOOR, run.state.url + STATUS_PATH, spec.control_key)
    others = (_try(u.name, u.url + GUARDED_PATH, u.secret) for u in spec.upstreams)
    return (door, *others)


def _try(name: str, url: str, key: str) -> Hop:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with open_directly(Request(url, headers=headers)) as answer:
            return Hop(name, url, answer.status, str(answer.status))
    except HTTPError as error:
        return Hop(name, url, error.code, f"{error.code} {error.reason}")
    except (URLError, OSError) as error:
        return Hop(name, url, None, f"no answer: {error}")
