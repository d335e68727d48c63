"""Stand-ins for the programs of a cluster, and a launcher that runs them instead of SGLang.

launcher CONFIG-ENTRIES…   a `bana launch` whose children are the two below
instance ARGS…             an HTTP server; what it does wrong is in STUB_BEHAVIOUR (JSON)
front-door SPEC            answers /bana/status by asking the instances
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__)


def run_instance(args: list[str]) -> int:
    spec = json.loads(Path(os.environ["BANA_INSTANCE"]).read_text())
    name, run_dir = spec["name"], Path(spec["run_dir"])
    behaviour = json.loads(os.environ.get("STUB_BEHAVIOUR", "{}")).get(name, {})
    lives = run_dir.parent / f"{name}.lives"
    with lives.open("a") as file:
        file.write(f"{os.getpid()}\n")
    life = len(lives.read_text().splitlines())
    if life <= behaviour.get("fail_first", 0):
        print("Loading weights\nRuntimeError: the model does not fit", flush=True)
        return behaviour.get("status", 1)
    grandchild = [sys.executable, "-c", "import time; time.sleep(600)"]
    if behaviour.get("grandchild"):
        subprocess.Popen(grandchild)
    if behaviour.get("segment"):
        from multiprocessing import resource_tracker, shared_memory

        segment = shared_memory.SharedMemory(behaviour["segment"], create=True, size=4096)
        resource_tracker.unregister(segment._name, "shared_memory")
    if behaviour.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    port = int(args[args.index("--port") + 1])

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None: ...

    record(run_dir, f"{name} up")
    if not behaviour.get("deaf"):
        signal.signal(signal.SIGTERM, lambda *_: end(run_dir, name))
    http.server.ThreadingHTTPServer.allow_reuse_address = True
    http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
    return 0


def end(run_dir: Path, name: str) -> None:
    record(run_dir, f"{name} terminated")
    os._exit(0)


def record(run_dir: Path, line: str) -> None:
    with (run_dir.parent / "events").open("a") as file:
        file.write(line + "\n")


class FrontDoor(http.server.ThreadingHTTPServer):
    """Answers on the inherited socket; an instance is up when its port answers."""

    def __init__(self, spec: dict) -> None:
        super().__init__(("127.0.0.1", 0), StatusHandler, bind_and_activate=False)
        self.socket = socket.socket(fileno=spec["listen_fd"])
        self.socket.setblocking(True)
        self.spec = spec
        self.alive_s: dict[str, float] = {}

    def status(self) -> dict:
        instances = [self._describe(upstream) for upstream in self.spec["upstreams"]]
        return {
            "version": "0",
            "pid": os.getpid(),
            "uptime_s": 1.0,
            "is_ready": any(i["state"] == "up" for i in instances),
            "is_draining": False,
            "in_flight": 0,
            "max_requests": 1,
            "routing_policy": "stub",
            "instances": instances,
            "store": self._ask_store() if self.spec["store_endpoint"] else None,
        }

    def _ask_store(self) -> dict | None:
        import msgspec

        from bana.radix_global.admin_messages import AskStatus, Status
        from sglang_bana.store.asking import StoreAddress, StoreSilent, ask_store

        address = StoreAddress(self.spec["store_endpoint"], "")
        try:
            report = ask_store(address, lambda n, _: AskStatus(n), Status, 1.0).report
        except StoreSilent:
            return None
        return {"silent_s": 0.0, "report": msgspec.to_builtins(report)}

    def _describe(self, upstream: dict) -> dict:
        name, now_s = upstream["name"], time.monotonic()
        try:
            urllib.request.urlopen(upstream["url"], timeout=1).close()
            self.alive_s[name] = now_s
            state = "up"
        except (urllib.error.URLError, OSError):
            state = "suspect" if name in self.alive_s else "starting"
        silent_s = now_s - self.alive_s[name] if name in self.alive_s else None
        counts = ("in_flight", "prefill_tokens", "decode_requests", "waiting_requests")
        counts += ("dispatched_total", "failures_total")
        return {
            "name": name,
            "url": upstream["url"],
            "state": state,
            "silent_s": silent_s,
            **dict.fromkeys(counts, 0),
        }


class StatusHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, FrontDoor)
        allowed = self.headers["Authorization"] == f"Bearer {server.spec['control_key']}"
        self.send_response(200 if allowed else 401)
        self.end_headers()
        if allowed:
            self.wfile.write(json.dumps(server.status()).encode())

    def log_message(self, *args: object) -> None: ...


def run_front_door(args: list[str]) -> int:
    spec = json.loads(Path(args[0]).read_text())
    run_dir = Path(spec["run_dir"])

    def drain() -> None:
        record(run_dir, "front-door draining")
        time.sleep(float(os.environ.get("STUB_DRAIN_S", "0.2")))
        record(run_dir, "front-door drained")
        os._exit(0)

    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=drain).start())
    FrontDoor(spec).serve_forever()
    return 0


def run_launcher(args: list[str]) -> int:
    from bana.slo.errors import BanaError
    from sglang_bana.cluster.commands import Programs
    from sglang_bana.cluster.launch import ModelChoice, plan_launch, run_launch
    from sglang_bana.cluster.progress import PlainReporter, SteadyReporter
    from sglang_bana.config_sources import ConfigRequest, load_config

    stub = (sys.executable, str(HERE))
    programs = Programs(instance=(*stub, "instance"), front_door=(*stub, "front-door"))
    try:
        config = load_config(ConfigRequest(sets=tuple(args)), {}).config
        with plan_launch(config, ModelChoice("stub-model"), os.environ, programs) as launch:
            run_launch(launch, SteadyReporter(PlainReporter(sys.stdout)), os.environ)
    except BanaError as error:
        print(f"error: {error}", file=sys.stderr)
        return getattr(error, "status", 2)
    return 0


PROGRAMS = {"launcher": run_launcher, "instance": run_instance, "front-door": run_front_door}

if __name__ == "__main__":
    sys.exit(PROGRAMS[sys.argv[1]](sys.argv[2:]))
