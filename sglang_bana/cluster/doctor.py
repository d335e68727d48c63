"""What is wrong with this machine or installation: findings with evidence, cause and remedy."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from bana.slo.errors import ConfigError
from sglang_bana.cluster import hops, models
from sglang_bana.cluster.binding import bind_listener, hold_ports, release_ports
from sglang_bana.cluster.control import find_live_run
from sglang_bana.cluster.finding import Finding, Severity
from sglang_bana.cluster.launch import place_instances, read_demand
from sglang_bana.cluster.logs import ERROR_LINES
from sglang_bana.cluster.placement import Demand
from sglang_bana.cluster.preflight import (
    FILES_PER_REQUEST,
    SPARE_FILES,
    available_bytes,
    estimate_memory,
)
from sglang_bana.cluster.run_dir import choose_run_dir
from sglang_bana.config import BanaConfig
from sglang_bana.store.doctor import examine_store

SEAMS_TIMEOUT_S = 180.0
SHARED_MEMORY_BYTES = 64 * 2**20
CACHE_BYTES = 2**30
RUN_BYTES = 256 * 2**20
# Every role of an instance, in one process of its own: importing SGLang takes seconds.
SEAMS_PROGRAM = (
    "from sglang_bana.engine.seams import Role, check_seams\nfor role in Role: check_seams(role)\n"
)


def examine(config: BanaConfig, environ: Mapping[str, str]) -> tuple[Finding, ...]:
    """All findings; nothing is changed and no server is started."""
    run_dir = choose_run_dir(config.launch.run_dir, environ)
    return (
        examine_sglang(),
        examine_seams(),
        examine_device(config, environ),
        examine_memory(config),
        examine_shared_memory(),
        examine_open_files(config),
        examine_disk("model cache", models.locate_cache(environ), CACHE_BYTES, "BANA_CACHE"),
        examine_disk("run directory", run_dir.root, RUN_BYTES, "launch.run_dir"),
        examine_port(config),
        examine_models(),
        *examine_store(config.store),
        *examine_run(environ),
    )


def worst_status(findings: Sequence[Finding]) -> int:
    """0 when all is well, 1 with warnings, 2 when something is bad."""
    found = {finding.severity for finding in findings}
    return 2 if Severity.BAD in found else int(Severity.WARNING in found)


def examine_sglang() -> Finding:
    """Is the SGLang that bana was written for installed?"""
    wanted = find_requirement("sglang")
    try:
        found = version("sglang")
    except PackageNotFoundError:
        found = ""
    if found and wanted.contains(found, prereleases=True):
        return Finding("sglang", Severity.OK, f"{found} (wanted {wanted})")
    return Finding(
        "sglang",
        Severity.BAD,
        f"{found or 'not installed'} (wanted {wanted})",
        "another package replaced it, or the installation was not finished",
        f"pip install 'sglang{wanted}'",
    )


def find_requirement(package: str) -> SpecifierSet:
    """The versions of `package` that bana declares."""
    declared = (Requirement(line) for line in requires("bana") or ())
    return next(r.specifier for r in declared if r.name == package)


def examine_seams() -> Finding:
    """Does SGLang still offer what bana relies on? Asked in a process of its own."""
    argv = [sys.executable, "-P", "-c", SEAMS_PROGRAM]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=SEAMS_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        evidence = f"no answer within {SEAMS_TIMEOUT_S:g} s"
        return Finding("seams", Severity.BAD, evidence, "the machine is overloaded", "try again")
    if done.returncode == 0:
        return Finding("seams", Severity.OK, "every path, signature and behaviour is as expected")
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return Finding(
        "seams",
        Severity.BAD,
        lines[-1] if lines else f"status {done.returncode} and nothing said",
        "SGLang or one of its dependencies was changed or does not import",
        "install bana again into a new environment; details: "
        + " | ".join(lines[-ERROR_LINES:-1] or ["none"]),
    )


def examine_device(config: BanaConfig, environ: Mapping[str, str]) -> Finding:
    """Are there GPUs or cores for as many instances as configured?"""
    try:
        placement = place_instances(config, environ)
    except ConfigError as error:
        cause = "GPUs are hidden or missing, or SGLang's sizes are wrong"
        return Finding("device", Severity.BAD, str(error), cause, "--instances, or the sizes")
    if placement.warnings:
        evidence, cause = placement.warnings[0], "fewer cores than ranks"
        return Finding("device", Severity.WARNING, evidence, cause, "fewer --instances")
    kind = "on cores" if placement.on_cpu else "with GPUs of their own"
    return Finding("device", Severity.OK, f"{len(config.launch.roles())} instances fit {kind}")


def examine_memory(config: BanaConfig) -> Finding:
    """Is there room for the instances' processes?"""
    try:
        demand = read_demand(config)
    except ConfigError:
        # The finding about the device says so.
        demand = Demand(len(config.launch.roles()), 1)
    free, needed = available_bytes(), estimate_memory(demand)
    evidence = f"{free / 2**30:.1f} GiB free (>= {needed / 2**30:.1f} GiB without weights)"
    if free >= needed:
        return Finding("memory", Severity.OK, evidence)
    cause = "other processes, or a control group's limit"
    return Finding("memory", Severity.BAD, evidence, cause, "--instances, or free some memory")


def examine_shared_memory() -> Finding:
    """Is /dev/shm there and large enough for what SGLang keeps in it?"""
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError as error:
        remedy = "mount a tmpfs on /dev/shm (containers: --shm-size 1g)"
        return Finding("shared memory", Severity.BAD, f"/dev/shm: {error.strerror}", "", remedy)
    evidence = f"{free / 2**20:.0f} MiB free in /dev/shm (>= {SHARED_MEMORY_BYTES >> 20} MiB)"
    if free >= SHARED_MEMORY_BYTES:
        return Finding("shared memory", Severity.OK, evidence)
    cause = "a container's default, or segments that a killed program left"
    remedy = "containers: --shm-size 1g; else remove old files in /dev/shm"
    return Finding("shared memory", Severity.BAD, evidence, cause, remedy)


def examine_open_files(config: BanaConfig) -> Finding:
    """May the front door open as many sockets as it promises?"""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    needed = config.limits.max_requests * FILES_PER_REQUEST + SPARE_FILES
    evidence = f"hard limit {'none' if hard == resource.RLIM_INFINITY else hard} (>= {needed})"
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return Finding("open files", Severity.OK, evidence)
    fitting = max(1, (hard - SPARE_FILES) // FILES_PER_REQUEST)
    remedy = f"raise `ulimit -Hn`, or --set limits.max_requests={fitting}"
    return Finding("open files", Severity.WARNING, evidence, "the session's limit", remedy)


def examine_disk(name: str, folder: Path, needed: int, flag: str) -> Finding:
    """Can `folder` be written, and is there room where it is?"""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(existing, os.W_OK):
        remedy = f"choose another with {flag}"
        return Finding(name, Severity.BAD, f"{folder}: not writable", "another owner", remedy)
    free = shutil.disk_usage(existing).free
    evidence = f"{folder}: {free / 2**30:.1f} GiB free (>= {needed / 2**30:.2f} GiB)"
    if free >= needed:
        return Finding(name, Severity.OK, evidence)
    return Finding(
        name, Severity.WARNING, evidence, "the disk is full", f"free some, or choose {flag}"
    )


def examine_port(config: BanaConfig) -> Finding:
    """Are the front door's port, and ports for the instances, free?"""
    launch = config.launch
    needed = 2 * len(launch.roles())
    try:
        bind_listener(launch.host, launch.port).close()
        release_ports(hold_ports(needed))
    except ConfigError as error:
        cause = "a cluster runs already (`bana status`), or another server"
        return Finding("ports", Severity.WARNING, str(error), cause, "--port 0, or --port PORT")
    evidence = f"{launch.host}:{launch.port} and {needed} for instances are free"
    return Finding("ports", Severity.OK, evidence)


def examine_models() -> Finding:
    """Which embedded models are in the cache?"""
    cached = {name: models.is_cached(name) for name in sorted(models.EMBEDDED_MODELS)}
    evidence = ", ".join(
        f"{n} {'cached' if is_in else 'not fetched'}" for n, is_in in cached.items()
    )
    missing = [name for name, is_in in cached.items() if not is_in]
    remedy = f"bana model fetch {missing[0]} (the first launch does it too)" if missing else ""
    return Finding("models", Severity.OK, evidence, remedy=remedy)


def examine_run(environ: Mapping[str, str]) -> tuple[Finding, ...]:
    """Does each hop of the newest running cluster answer, with the credentials it really uses?"""
    try:
        run = find_live_run(None, environ)
    except ConfigError:
        return ()
    return tuple(_judge_hop(hop) for hop in hops.try_hops(run))


def _judge_hop(hop: hops.Hop) -> Finding:
    name = f"running {hop.name}"
    evidence = f"{hop.url}: {hop.answer} (wanted: 200)"
    if hop.status == 200:
        return Finding(name, Severity.OK, evidence)
    if hop.status in (401, 403):
        remedy = "restart the cluster, or correct --upstream-key-file"
        return Finding(name, Severity.BAD, evidence, "its key is not accepted", remedy)
    remedy = "`bana status` tells whether it is starting, and where its log is"
    return Finding(name, Severity.WARNING, evidence, "it is starting, busy or gone", remedy)
