"""`bana status` and `bana stop`: ask a running cluster how it is, or to end."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from bana.cli.options import AsJson, RunDirectory

if TYPE_CHECKING:
    from bana.slo.wire import SchedulingReport
    from sglang_bana.cluster.control import LiveRun
    from sglang_bana.status import (
        FrontDoorStatus,
        HandoffStatus,
        InstanceStatus,
        ProcessState,
        StoreStatus,
    )

STOP_TIMEOUT_S = 120.0
SILENT_S = 5.0
COLUMNS = (
    "instance",
    "state",
    "role",
    "running",
    "waiting",
    "prefill tokens",
    "KV used",
    "met",
    "demoted",
    "yielded",
    "step error",
    "restarts",
)


def status(*, run_dir: RunDirectory = None, json_: AsJson = False) -> int:
    """Instances, load, queue and restarts of a running cluster; 1 when it is not whole."""
    import msgspec

    from sglang_bana.cluster.control import ask_front_door, find_live_run

    run = find_live_run(run_dir, os.environ)
    door = ask_front_door(run)
    if json_:
        answer = {"run_dir": str(run.run_dir.root), "run": run.state, "front_door": door}
        print(msgspec.json.format(msgspec.json.encode(answer)).decode())
    else:
        _print_status(run, door)
    return 0 if door is not None and run.state.phase == "ready" else 1


def stop(
    *,
    run_dir: RunDirectory = None,
    now: Annotated[bool, typer.Option("--now", help="Do not drain.")] = False,
    timeout: Annotated[
        float,
        typer.Option(min=1, max=86_400, metavar="SECONDS", help="How long to wait for the end."),
    ] = STOP_TIMEOUT_S,
) -> None:
    """Drain and stop a running cluster, and wait until it is gone."""
    from sglang_bana.cluster.control import find_live_run, stop_run, stop_run_now

    run = find_live_run(run_dir, os.environ)
    print(f"stopping {run.state.url} (pid {run.state.pid}), up to {timeout:g} s", flush=True)
    if now:
        stop_run_now(run, timeout)
    else:
        stop_run(run, timeout)
    print("stopped")


def _print_status(run: LiveRun, door: FrontDoorStatus | None) -> None:
    state = run.state
    print(f"{state.model} at {state.url}: {state.phase} (pid {state.pid}, bana {state.version})")
    for warning in (*state.warnings, *(door.warnings if door is not None else ())):
        print(f"warning: {warning}")
    if door is None:
        print("front door: no answer")
    else:
        words = "draining" if door.is_draining else f"routing by {door.routing_policy}"
        print(
            f"front door: up {door.uptime_s:.0f} s, {door.in_flight} of {door.max_requests} "
            f"requests, {door.waiting} waiting, {words}"
        )
        if door.store is not None:
            print(describe_store(door.store))
            for line in describe_refusals(door.store):
                print(line)
        if door.handoff is not None and (door.handoff.sent or door.handoff.skipped):
            print(describe_handoff(door.handoff))
    kept = {process.name: process for process in state.processes}
    seen = {instance.name: instance for instance in door.instances} if door else {}
    names = list(seen) or [name for name in kept if name not in ("front-door", "store")]
    _print_columns([COLUMNS, *(_row(name, seen.get(name), kept.get(name)) for name in names)])
    for process in state.processes:
        _print_trouble(process)


def _row(name: str, seen: InstanceStatus | None, kept: ProcessState | None) -> tuple[str, ...]:
    restarts = str(kept.restarts) if kept is not None else "-"
    word = "given up" if kept is not None and kept.is_given_up else None
    if seen is None:
        return (name, word or "unknown", *("-",) * (len(COLUMNS) - 3), restarts)
    used = "-"
    if seen.used_tokens is not None and seen.capacity_tokens:
        used = f"{seen.used_tokens}/{seen.capacity_tokens}"
    return (
        name,
        word or str(seen.state),
        str(seen.role),
        str(seen.decode_requests),
        str(seen.waiting_requests),
        str(seen.prefill_tokens),
        used,
        *_scheduling_cells(seen.scheduling),
        restarts,
    )


def _scheduling_cells(seen: SchedulingReport | None) -> tuple[str, str, str, str]:
    """Share of answers within all limits, demotions, yields, error of the likeliest step kind."""
    if seen is None:
        return ("-", "-", "-", "-")
    classes = seen.classes.values()
    answered, met = sum(c.answered for c in classes), sum(c.met for c in classes)
    known = max(seen.errors.values(), key=lambda e: e.observations, default=None)
    return (
        f"{100 * met / answered:.0f} %" if answered else "-",
        str(seen.counts["demotions"]),
        str(seen.counts["yields"]),
        f"{100 * known.error:.0f} %" if known is not None else "-",
    )


def _print_columns(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    for row in rows:
        print("  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip())


def describe_store(store: StoreStatus) -> str:
    """The store in one line."""
    report = store.report
    held = ", ".join(
        f"{place.name} {place.held_bytes / 2**30:.1f} of {place.capacity_bytes / 2**30:.1f} GiB"
        for place in report.places
    )
    words = ", still looking through its tiers" if report.is_recovering else ""
    silent = f", silent for {store.silent_s:.0f} s" if store.silent_s > SILENT_S else ""
    return f"store: up {report.uptime_s:.0f} s, {len(report.owners)} clients, {held}{words}{silent}"


def describe_refusals(store: StoreStatus) -> list[str]:
    """Each client that may not use the store, in a line."""
    refused = store.report.refused
    return [f"warning: the store refuses {client.name}: {client.reason}" for client in refused]


def describe_handoff(handoff: HandoffStatus) -> str:
    """What became of prompts that another instance was to compute, in one line."""
    ended = ", ".join(f"{count} {word}" for word, count in sorted(handoff.outcomes.items()))
    skipped = ", ".join(f"{count} {word}" for word, count in sorted(handoff.skipped.items()))
    words = f" ({ended})" if ended else ""
    return f"hand-off: {handoff.sent} prompts{words}; not handed off: {skipped or 'none'}"


def _print_trouble(process: ProcessState) -> None:
    if process.is_given_up:
        print(f"{process.name} is given up after {process.restarts} restarts; log: {process.log}")
    elif process.restarts:
        print(f"{process.name} was restarted {process.restarts} times; log: {process.log}")
    if process.last_error is not None:
        print(f"    {process.last_error}")
