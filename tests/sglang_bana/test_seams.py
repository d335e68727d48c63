"""A missing or changed seam is a refusal that names it; bana is inert where it did not start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bana.slo.errors import SeamError
from sglang_bana.config import EngineConfig, InstanceSpec, write_private
from sglang_bana.engine import seams

# SGLang is imported in processes of its own: it changes the logging and the event loops of
# whatever imports it.
BREAK = """
import importlib, json, sys
from bana.slo.errors import SeamError
from sglang_bana.engine.seams import Role, check_seams

def attempt(role):
    try:
        check_seams(Role(role))
    except SeamError as error:
        return str(error)
    return None

answers = {"main": attempt("main"), "scheduler": attempt("scheduler")}
for name, role, module, owner, attribute, code in json.loads(sys.argv[1]):
    target = importlib.import_module(module)
    for step in filter(None, owner.split(".")):
        target = getattr(target, step)
    kept = getattr(target, attribute)
    if code is None:
        delattr(target, attribute)
    else:
        scope = {}
        exec(code, scope)
        setattr(target, attribute, scope["changed"])
    answers[name] = attempt(role)
    setattr(target, attribute, kept)
answers["mended"] = attempt("scheduler") or attempt("main")
print("ANSWERS" + json.dumps(answers))
"""
SCHEDULER = "sglang.srt.managers.scheduler"
CASES = (
    ("removed", "scheduler", SCHEDULER, "Scheduler", "get_next_batch_to_run", None),
    (
        "other parameters",
        "scheduler",
        SCHEDULER,
        "Scheduler",
        "process_batch_result",
        "def changed(self, batch): pass",
    ),
    (
        "other behaviour",
        "scheduler",
        SCHEDULER,
        "Scheduler",
        "event_loop_overlap",
        "def changed(self): self.ingest_requests()",
    ),
    (
        "launch without the argument",
        "main",
        "sglang.srt.entrypoints.http_server",
        "",
        "launch_server",
        "def changed(server_args): _launch_subprocesses",
    ),
    (
        "a record of another kind",
        "scheduler",
        "sglang.srt.managers.schedule_batch",
        "",
        "NextBatchPlan",
        "class changed: batch_to_run = running_batch = None",
    ),
    (
        "a record without a field",
        "scheduler",
        "sglang.srt.managers.schedule_batch",
        "",
        "ScheduleBatch",
        "import dataclasses; changed = dataclasses.make_dataclass('C', ['reqs', 'forward_mode'])",
    ),
    (
        "not a function in Python",
        "scheduler",
        SCHEDULER,
        "Scheduler",
        "event_loop_normal",
        "changed = print",
    ),
    (
        "no signature",
        "scheduler",
        SCHEDULER,
        "Scheduler",
        "init_ipc_channels",
        "changed = 3",
    ),
    (
        "a pool that does not wait for loads",
        "scheduler",
        "sglang.srt.mem_cache.memory_pool",
        "MHATokenToKVPool",
        "get_key_buffer",
        "def changed(self, layer_id): return self.k_buffer[layer_id]",
    ),
    (
        "a driver that does not load",
        "scheduler",
        "sglang.srt.mem_cache.unified_cache.unified_cache_linker",
        "UnifiedCacheLinkerWrapper",
        "load_back",
        "def changed(self, req): return 0, req.last_node",
    ),
    (
        "another way to change weights",
        "scheduler",
        SCHEDULER,
        "Scheduler",
        "init_request_dispatcher",
        "def changed(self): UpdateWeightFromDiskReqInput",
    ),
    (
        "a linker with another duty",
        "scheduler",
        "sglang.srt.mem_cache.unified_cache.unified_cache_linker",
        "UnifiedCacheLinker",
        "__abstractmethods__",
        "changed = frozenset({'lookup'})",
    ),
    (
        "a collection of another kind",
        "scheduler",
        "sglang.srt.arg_groups.choices",
        "",
        "ATTENTION_BACKEND_CHOICES",
        "changed = 3",
    ),
    (
        "a header that is not honoured",
        "main",
        "sglang.srt.entrypoints.request_headers",
        "",
        "_HEADER_OVERRIDES",
        "changed = {}",
    ),
    (
        "a batch whose ids are not counted",
        "main",
        "sglang.srt.managers.io_struct",
        "GenerateReqInput",
        "_normalize_rid",
        "def changed(self, num): self.rid = [self.rid] * num",
    ),
    (
        "a response under an id of its own",
        "main",
        "sglang.srt.entrypoints.openai.protocol",
        "ResponsesResponse",
        "from_request",
        "@classmethod\ndef changed(cls, request, *rest): return cls(id='x')",
    ),
    (
        "requests that are checked elsewhere",
        "main",
        "sglang.srt.managers.tokenizer_manager",
        "TokenizerManager",
        "_tokenize_one_request",
        "async def changed(self, obj): self.check(obj)",
    ),
    (
        "messages that skip the headers",
        "main",
        "sglang.srt.entrypoints.openai.serving_chat",
        "OpenAIServingChat",
        "_convert_to_internal_request",
        "def changed(self, request, raw_request=None): pass",
    ),
)
INERT = """
import json
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.platforms import current_platform
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from bana.slo.errors import SeamError
from sglang_bana.engine import platform, plugin, verify

def complaint():
    try:
        verify.verify_requests()
    except SeamError as error:
        return str(error)
    return None

answers = {
    "platform": type(current_platform).__name__,
    "activate": platform.activate(),
    "plugin": plugin.was_activated(),
    "backend": "bana_cpu" in ATTENTION_BACKENDS,
    "refuses deadly requests": complaint() is None,
}
check = TokenizerManager._validate_one_request
TokenizerManager._validate_one_request = getattr(check, "__wrapped__", check)
answers["complaint"] = complaint()
print("ANSWERS" + json.dumps(answers))
"""
COMPLAINT = (
    "SGLang does not ask bana's hook on "
    "sglang.srt.managers.tokenizer_manager.TokenizerManager._validate_one_request"
)


def ask(code: str, *arguments: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    inherited = {k: v for k, v in os.environ.items() if k != "BANA_INSTANCE"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**inherited, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=240,
    )
    answers = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS")]
    assert answers, done.stderr[-3000:]
    return dict(json.loads(answers[-1].removeprefix("ANSWERS")))


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    return ask(BREAK, json.dumps(CASES))


@pytest.mark.parametrize("role", ["main", "scheduler", "mended"])
def test_the_installed_sglang_has_every_seam(answers: dict[str, Any], role: str) -> None:
    assert answers[role] is None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].replace(" ", "-"))
def test_a_broken_seam_is_named_with_what_was_found(
    answers: dict[str, Any], case: tuple[str, ...]
) -> None:
    message = answers[case[0]]
    path = f"{case[2]}:{'.'.join(filter(None, (case[3], case[4])))}"
    assert message.startswith(f"SGLang seam {path}: found ")
    assert ", expected " in message
    assert message.endswith("pip install sglang==0.5.23")


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams, "SGLANG_VERSION", "0.0.1")
    with pytest.raises(SeamError, match=r"found version 0\.5\.23, expected version 0\.0\.1"):
        seams.check_version()


def test_a_scheduler_without_an_attribute_is_refused() -> None:
    class Bare:
        waiting_queue: tuple[()] = ()

    with pytest.raises(SeamError, match=r"scheduler\.running_batch\.reqs: found no attribute"):
        seams.check_scheduler_object(Bare())


def test_installed_bana_changes_no_other_process() -> None:
    found = ask(INERT)
    assert found.pop("complaint").startswith(COMPLAINT)
    assert found == {
        "platform": "SRTPlatform",
        "activate": None,
        "plugin": False,
        "backend": False,
        "refuses deadly requests": False,
    }


def test_a_process_of_an_instance_gets_platform_backend_and_checks(tmp_path: Path) -> None:
    spec = InstanceSpec(
        name="i0",
        engine=EngineConfig(force_cpu=True),
        secret="s",
        load_endpoint="ipc:///unused",
        parent_pid=os.getpid(),
        run_dir=str(tmp_path),
    )
    write_private(tmp_path / "i0.json", spec)
    found = ask(INERT, environment={"BANA_INSTANCE": str(tmp_path / "i0.json")})
    # What is said once the hook has been taken off again.
    assert found.pop("complaint").startswith(COMPLAINT)
    assert found == {
        "platform": "BanaCpuPlatform",
        "activate": "sglang_bana.engine.platform.BanaCpuPlatform",
        "plugin": True,
        "backend": True,
        "refuses deadly requests": True,
    }


def test_an_open_or_missing_spec_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bana.slo.errors import ConfigError
    from sglang_bana.engine.instance import read_instance_spec

    path = tmp_path / "i0.json"
    monkeypatch.setenv("BANA_INSTANCE", str(path))
    with pytest.raises(ConfigError, match=r"i0\.json cannot be read"):
        read_instance_spec()
    path.write_bytes(msgspec.json.encode({"name": "i0"}))
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="open to other users; chmod 600"):
        read_instance_spec()
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=r"cannot be read: .*missing required field"):
        read_instance_spec()
    monkeypatch.delenv("BANA_INSTANCE")
    with pytest.raises(ConfigError, match="BANA_INSTANCE is not set"):
        read_instance_spec()
