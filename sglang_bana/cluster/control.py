"""What other commands of the same user ask a running cluster: how it is, its roles, to stop."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from http.client import HTTPResponse
from typing import TypeVar
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

import msgspec

from bana.slo.errors import BanaError, ConfigError
from bana.slo.roles import Role
from sglang_bana.cluster.procfs import is_same_process
from sglang_bana.cluster.run_dir import RunDir, is_live, list_runs, locate_base, read_state
from sglang_bana.cluster.watch import ANSWER_TIMEOUT_S, STATUS_PATH
from sglang_bana.config import expand_home
from sglang_bana.status import FrontDoorStatus, RoleTable, RunState

T = TypeVar("T")
ROLES_PATH = "/bana/roles"
POLL_S = 0.1
SECOND_SIGNAL_S = 0.5


class StopTimeout(BanaError):
    """A cluster that was told to stop still runs."""

    status = 1


class DoorSilent(BanaError):
    """The front door of a running cluster gives no answer, or none that can be read."""

    status = 1


class LiveRun(msgspec.Struct, frozen=True):
    """A cluster whose launcher runs, with the state it last wrote."""

    run_dir: RunDir
    state: RunState


class _Message(msgspec.Struct, frozen=True):
    message: str


class _Refusal(msgspec.Struct, frozen=True):
    error: _Message


def find_live_run(given: str | None, environ: Mapping[str, str]) -> LiveRun:
    """The run in folder `given`, else the newest live one; ConfigError when there is none."""
    if given is not None:
        run_dir = RunDir(expand_home(given).absolute())
        state = read_state(run_dir)
        if state is None:
            raise ConfigError(
                f"no run in {given!r}: it holds no readable state.json; name the folder that "
                "`bana launch` printed, or leave --run-dir out for the newest run"
            )
        if not is_live(state):
            raise ConfigError(
                f"the run in {given!r} has ended ({state.phase}); its logs are in {given}/logs, "
                "`bana launch` starts another"
            )
        return LiveRun(run_dir, state)
    base = locate_base(environ)
    for run_dir in list_runs(base):
        state = read_state(run_dir)
        if state is not None and is_live(state):
            return LiveRun(run_dir, state)
    raise ConfigError(
        f"no running cluster below {base}; start one with `bana launch`, or name its --run-dir"
    )


def ask_front_door(run: LiveRun) -> FrontDoorStatus | None:
    """The front door's own status, None when it does not answer now."""
    try:
        with open_directly(_address(run, STATUS_PATH, None)) as answer:
            return msgspec.json.decode(answer.read(), type=FrontDoorStatus)
    except (URLError, OSError, msgspec.MsgspecError):
        return None


def ask_roles(run: LiveRun, changed: Mapping[str, Role] | None = None) -> RoleTable:
    """Every instance's role, once those `changed` are given.

    ConfigError where the front door refuses them, DoorSilent where it does not answer.
    """
    body = None if changed is None else msgspec.json.encode(RoleTable(dict(changed)))
    return ask_cluster(run, ROLES_PATH, body, RoleTable)


def ask_cluster(run: LiveRun, path: str, body: bytes | None, kind: type[T]) -> T:
    """The answer at `path` of the front door, to a POST where there is a `body`.

    ConfigError where it is refused, DoorSilent where none comes that can be read.
    """
    try:
        with open_directly(_address(run, path, body)) as answer:
            return msgspec.json.decode(answer.read(), type=kind)
    except HTTPError as refusal:
        raise ConfigError(_read_refusal(refusal)) from refusal
    except (URLError, OSError, msgspec.MsgspecError) as error:
        raise DoorSilent(
            f"the front door at {run.state.url} gives no answer ({error}); see `bana status` and "
            f"{run.run_dir.log_file('front-door')}"
        ) from error


def _address(run: LiveRun, path: str, body: bytes | None) -> Request:
    key = run.run_dir.key_file.read_text(encoding="ascii")
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    return Request(run.state.url + path, data=body, headers=headers)


def _read_refusal(refusal: HTTPError) -> str:
    try:
        return msgspec.json.decode(refusal.read(), type=_Refusal).error.message
    except (OSError, msgspec.MsgspecError):
        return f"the front door refused it with status {refusal.code}; see its log"


def open_directly(request: Request) -> HTTPResponse:
    """The answer to a request with a key in it, which the environment's proxy must not see."""
    answer: HTTPResponse = build_opener(ProxyHandler({})).open(request, timeout=ANSWER_TIMEOUT_S)
    return answer


def stop_run(run: LiveRun, timeout_s: float) -> None:
    """Have the launcher drain and stop, and wait for it; StopTimeout after `timeout_s`."""
    _signal(run)
    _wait_gone(run, timeout_s)


def stop_run_now(run: LiveRun, timeout_s: float) -> None:
    """Have the launcher stop without draining, and wait for it."""
    _signal(run)
    # Two signals that are pending at once count as one.
    time.sleep(SECOND_SIGNAL_S)
    _signal(run)
    _wait_gone(run, timeout_s)


def _signal(run: LiveRun) -> None:
    """SIGTERM to the launcher, through a descriptor that cannot name another process."""
    with contextlib.suppress(ProcessLookupError):
        fd = os.pidfd_open(run.state.pid)
        try:
            if is_same_process(run.state.pid, run.state.started_ticks):
                signal.pidfd_send_signal(fd, signal.SIGTERM)
        finally:
            os.close(fd)


def _wait_gone(run: LiveRun, timeout_s: float) -> None:
    end_s = time.monotonic() + timeout_s
    while is_live(run.state):
        if time.monotonic() > end_s:
            raise StopTimeout(
                f"the launcher (pid {run.state.pid}) has not ended within {timeout_s:g} s; "
                "stop it without draining with `bana stop --now`"
            )
        time.sleep(POLL_S)
