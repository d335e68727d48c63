"""A bana cluster as a benchmark sees it: started by the command line, read from its run folder.

RUN/state.json says where it answers and which processes it has; RUN/front-door.json which
instances stand behind it and the secret they accept.
"""

from __future__ import annotations

import contextlib
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from bana.eval.bench.children import Child, ChildPlan, bana_command, running
from bana.eval.bench.errors import BenchError
from bana.eval.client.target import Target
from bana.radix_global.admin_messages import StoreReport
from bana.slo.wire import EngineProof, LinkReport, SchedulingReport

HTTP_TIMEOUT_S = 30.0
PROOF_TIMEOUT_S = 30.0
# Answered within the client's own patience.
FLUSH_PATH = f"/flush_cache?timeout={HTTP_TIMEOUT_S / 2:g}"
INFO_PATH = "/server_info"
FRONT_DOOR = "front-door"
STOCK_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
NO_ENV: Mapping[str, str] = {}


class ProcessEntry(msgspec.Struct, frozen=True):
    """One process of the cluster."""

    name: str
    pid: int | None
    restarts: int


class ClusterState(msgspec.Struct, frozen=True):
    """What of RUN/state.json matters here."""

    url: str
    phase: str
    processes: tuple[ProcessEntry, ...]


class UpstreamEntry(msgspec.Struct, frozen=True):
    """One instance behind the front door."""

    name: str
    url: str
    secret: str = ""


class FrontDoorEntry(msgspec.Struct, frozen=True):
    """What of RUN/front-door.json matters here."""

    upstreams: tuple[UpstreamEntry, ...]
    control_key: str


class InstanceEntry(msgspec.Struct, frozen=True):
    """What of an instance in `/bana/status` matters here."""

    name: str
    silent_s: float | None = None
    proof: EngineProof | None = None
    scheduling: SchedulingReport | None = None
    link: LinkReport | None = None


class StoreEntry(msgspec.Struct, frozen=True):
    """What the store's daemon said of itself, `silent_s` ago."""

    silent_s: float
    report: StoreReport


class HandoffEntry(msgspec.Struct, frozen=True):
    """How many prompts were given to another instance."""

    sent: int


class StatusEntry(msgspec.Struct, frozen=True):
    """What of `/bana/status` matters here."""

    instances: tuple[InstanceEntry, ...]
    store: StoreEntry | None = None
    handoff: HandoffEntry | None = None


class Cluster:
    """A cluster that is ready."""

    def __init__(self, child: Child, run_dir: Path) -> None:
        self.child = child
        self._run_dir = run_dir
        self._front_door_spec = msgspec.json.decode(
            (run_dir / f"{FRONT_DOOR}.json").read_bytes(), type=FrontDoorEntry
        )

    @property
    def front_door(self) -> Target:
        """Where its clients go."""
        return Target(self.read_state().url)

    @property
    def instances(self) -> list[Target]:
        """Its instances, addressed directly with the run's secret."""
        return [Target(entry.url, entry.secret) for entry in self._front_door_spec.upstreams]

    @property
    def decision_log(self) -> Path:
        """The decisions of its first instance, where `scheduling.decision_log_bytes` is set."""
        return self._run_dir / f"decisions-{self._front_door_spec.upstreams[0].name}.jsonl"

    def read_state(self) -> ClusterState:
        """What its launcher last wrote."""
        return msgspec.json.decode((self._run_dir / "state.json").read_bytes(), type=ClusterState)

    def find_pid(self, name: str) -> int:
        """The process of that name; BenchError when it does not run."""
        found = [p.pid for p in self.read_state().processes if p.name == name]
        if not found or found[0] is None:
            raise BenchError(f"{self.child.plan.name}: no process {name!r} is running")
        return found[0]

    def read_status(self) -> StatusEntry:
        """What its front door says of it now."""
        asked = Target(self.front_door.url, self._front_door_spec.control_key)
        return msgspec.json.decode(fetch(asked, "/bana/status"), type=StatusEntry)

    def wait_proof(self) -> EngineProof:
        """What really runs in its first instance, told by that scheduler process itself."""
        deadline_s = time.monotonic() + PROOF_TIMEOUT_S
        while time.monotonic() < deadline_s:
            proof = self.read_status().instances[0].proof
            if proof is not None:
                return proof
            time.sleep(0.2)
        raise BenchError(
            f"{self.child.plan.name}: no instance told what runs in it within "
            f"{PROOF_TIMEOUT_S:g} s; nothing can be compared"
        )

    def read_counts(self) -> Mapping[str, int]:
        """What bana's policies have done in its first instance; empty where SGLang decides."""
        seen = self.read_status().instances[0].scheduling
        return {} if seen is None else seen.counts

    def require_undisturbed(self) -> None:
        """BenchError when anything of it ended or was restarted, or a policy failed."""
        self.child.require_alive()
        restarted = [p.name for p in self.read_state().processes if p.restarts]
        if restarted:
            raise BenchError(
                f"{self.child.plan.name}: {', '.join(restarted)} was restarted while it was "
                "measured; its log is in the run directory's logs"
            )
        if faults := self.read_counts().get("faults", 0):
            raise BenchError(
                f"{self.child.plan.name}: {faults} decisions failed and were left to SGLang"
            )


@contextlib.contextmanager
def cluster(
    name: str,
    words: Sequence[str],
    cores: frozenset[int],
    folder: Path,
    timeout_s: float,
    env: Mapping[str, str] = NO_ENV,
) -> Iterator[Cluster]:
    """`bana launch WORDS` on `cores`, ready, for the length of the block."""
    run_dir = folder / name
    own = ["launch", "--port", "0", "--run-dir", str(run_dir)]
    plan = ChildPlan(name, bana_command(*own, *words), cores, folder / f"{name}.log", env)
    with running(plan) as child:
        child.wait_until(lambda: _read_phase(run_dir) == "ready", timeout_s)
        yield Cluster(child, run_dir)


def fetch(target: Target, path: str, body: bytes | None = None) -> bytes:
    """The body of a GET, or of a POST when there is a body; BenchError when refused."""
    headers = {"Content-Type": "application/json"}
    if target.key:
        headers["Authorization"] = f"Bearer {target.key}"
    request = urllib.request.Request(target.url + path, data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=HTTP_TIMEOUT_S) as answer:
            content: bytes = answer.read()
            return content
    except (OSError, urllib.error.URLError) as error:
        raise BenchError(f"{path} of a server under test failed: {error}") from error


def _read_phase(run_dir: Path) -> str:
    try:
        content = (run_dir / "state.json").read_bytes()
    except FileNotFoundError:
        return ""
    return msgspec.json.decode(content, type=ClusterState).phase
