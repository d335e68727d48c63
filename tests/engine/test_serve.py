"""One instance: same tokens as stock, proof of what runs, refusals, and clean ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from urllib.error import HTTPError

import msgspec
import psutil
import pytest

from bana.slo.wire import EngineProof, LoadReport
from sglang_bana import leftovers
from sglang_bana.config import EngineConfig, SchedulerKind

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

CHUNK = ("--chunked-prefill-size", "128")
NO_OVERLAP = ("--disable-overlap-schedule",)
TWO_RANKS = ("--tp-size", "2")
TWO_RANKS_ENVIRONMENT = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
LONG_PROMPT = 3200
NEW_TOKENS = 24
STOCK = "sglang.srt.managers.scheduler.Scheduler"
BANA = "sglang_bana.engine.scheduler.BanaScheduler"


class Visit(msgspec.Struct):
    """What one instance did between its start and its end by SIGTERM."""

    ids: list[list[int]]
    drained_ids: list[int]
    proof: EngineProof
    chunking: LoadReport
    decoding: LoadReport
    idle: LoadReport
    idle_cpu: float
    keyless_status: int
    exit_status: int
    left: list[str]
    log: str


def prompts() -> list[list[int]]:
    """Short ones, one of several chunks, and two that share a prefix."""
    rng = Random(11)
    fresh = [[rng.randrange(3, 700) for _ in range(n)] for n in (4, 50, 300)]
    return [*fresh, fresh[2][:160] + fresh[1]]


def visit_instance(start_instance, model: Path, kind: SchedulerKind, *arguments: str) -> Visit:
    environment = TWO_RANKS_ENVIRONMENT if "--tp-size" in arguments else {}
    engine = EngineConfig(scheduler=kind, report_interval_s=0.02)
    options = {"engine": engine, "environment": environment}
    with start_instance(model, *CHUNK, *arguments, **options) as instance:
        shared = shared_memory_of(instance)
        assert shared
        ids = [instance.greedy_ids(prompt, NEW_TOKENS) for prompt in prompts()]
        chunking, decoding = watch_long_request(instance)
        idle = instance.wait_report(
            lambda r: r.running_requests + r.waiting_requests == 0, time.monotonic()
        )
        idle_cpu = measure_cpu(instance)
        drained: list[int] = []
        thread = in_thread(lambda: drained.extend(instance.greedy_ids([5, 6, 7], 300)))
        instance.wait_report(lambda r: r.running_requests == 1, time.monotonic())
        log = instance.log
        keyless = status_without_key(instance)
        exit_status = instance.stop()
        thread.join(30)
        run_dir = Path(instance.spec.run_dir)
        left = [p.name for p in run_dir.iterdir() if p.name not in ("i0.json", log.name)]
        return Visit(
            ids=ids,
            drained_ids=drained,
            proof=idle.proof,
            chunking=chunking,
            decoding=decoding,
            idle=idle,
            idle_cpu=idle_cpu,
            keyless_status=keyless,
            exit_status=exit_status,
            left=left + [path.name for path in shared if path.exists()],
            log=log.read_text(),
        )


def shared_memory_of(instance) -> tuple[Path, ...]:
    folder = leftovers.temporary_folder(Path(instance.spec.run_dir), instance.spec.name)
    return leftovers.list_shared_memory(folder)


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def watch_long_request(instance) -> tuple[LoadReport, LoadReport]:
    rng = Random(3)
    prompt = [rng.randrange(3, 700) for _ in range(LONG_PROMPT)]
    since_s = time.monotonic()
    thread = in_thread(lambda: instance.greedy_ids(prompt, 200))
    chunking = instance.wait_report(lambda r: r.prefilling_tokens > 0, since_s)
    decoding = instance.wait_report(
        lambda r: r.prefilling_tokens == 0 and r.decode_tokens_total > chunking.decode_tokens_total,
        chunking.time_s,
    )
    thread.join(120)
    return chunking, decoding


def measure_cpu(instance, seconds: float = 5.0) -> float:
    processes = [psutil.Process(pid) for pid in instance.scheduler_pids()]
    processes.append(psutil.Process(instance.process.pid))
    used = [sum(p.cpu_times()[:2]) for p in processes]
    time.sleep(seconds)
    return max((sum(p.cpu_times()[:2]) - u) / seconds for p, u in zip(processes, used, strict=True))


def status_without_key(instance) -> int:
    try:
        instance.request("/v1/models", secret="guessed")
    except HTTPError as error:
        return error.code
    return 200


@pytest.fixture(scope="module")
def visit(start_instance, llama_fixture: Path, qwen3_fixture: Path) -> Callable[..., Visit]:
    """A function: model name, scheduler, arguments in; the visit out, made once."""
    models = {"llama": llama_fixture, "qwen3": qwen3_fixture}
    made: dict[tuple[str, ...], Visit] = {}

    def get(model: str, kind: SchedulerKind, *arguments: str) -> Visit:
        key = (model, kind, *arguments)
        if key not in made:
            made[key] = visit_instance(start_instance, models[model], kind, *arguments)
        return made[key]

    return get


# Each visit starts a server; clusters of the other model and of SGLang's own scheduler run in
# `test_exactness`.
CASES = pytest.mark.parametrize(
    ("model", "arguments"),
    [
        pytest.param("llama", (), id="llama"),
        pytest.param("qwen3", NO_OVERLAP, id="qwen3", marks=pytest.mark.full),
    ],
)
KINDS = pytest.mark.parametrize(
    "kind", [SchedulerKind.BANA, pytest.param(SchedulerKind.STOCK, marks=pytest.mark.full)]
)


@pytest.mark.full
@CASES
def test_tokens_equal_those_of_stock(visit, model: str, arguments: tuple[str, ...]) -> None:
    ours = visit(model, SchedulerKind.BANA, *arguments)
    stock = visit(model, SchedulerKind.STOCK, *arguments)
    assert ours.ids == stock.ids
    assert len({tuple(ids) for ids in ours.ids}) == len(ours.ids)


@pytest.mark.full
def test_two_ranks_give_the_tokens_of_one(visit) -> None:
    two = visit("qwen3", SchedulerKind.BANA, *NO_OVERLAP, *TWO_RANKS)
    one = visit("qwen3", SchedulerKind.BANA, *NO_OVERLAP)
    assert two.proof.tp_size == 2
    assert two.left == []
    assert two.ids == one.ids


@pytest.mark.parametrize(
    ("model", "arguments", "kind", "name"),
    [
        pytest.param("llama", (), SchedulerKind.BANA, BANA, id="llama"),
        pytest.param(
            "llama", (), SchedulerKind.STOCK, STOCK, id="llama on stock", marks=pytest.mark.full
        ),
        pytest.param(
            "qwen3", NO_OVERLAP, SchedulerKind.BANA, BANA, id="qwen3", marks=pytest.mark.full
        ),
    ],
)
def test_scheduler_process_proves_what_it_runs(
    visit, model: str, arguments: tuple[str, ...], kind: SchedulerKind, name: str
) -> None:
    proof = visit(model, kind, *arguments).proof
    assert proof.scheduler_class == name
    assert proof.attention_backend.startswith("bana_cpu (sglang_bana.engine.attention.")
    assert proof.platform == "sglang_bana.engine.platform.BanaCpuPlatform"
    assert (proof.device, proof.sglang_version, proof.page_size) == ("cpu", "0.5.23", 16)


@KINDS
def test_reports_follow_the_work(visit, kind: SchedulerKind) -> None:
    seen = visit("llama", kind)
    assert 0 < seen.chunking.prefilling_tokens <= LONG_PROMPT
    assert seen.decoding.running_requests == 1
    assert seen.decoding.used_tokens >= LONG_PROMPT
    assert seen.idle.used_tokens < seen.decoding.used_tokens
    assert seen.idle.capacity_tokens == 4096
    assert seen.idle.prefill_tokens_total >= LONG_PROMPT
    assert seen.idle.decode_tokens_total >= 4 * (NEW_TOKENS - 1) + 199
    assert seen.idle.sequence > seen.chunking.sequence


@KINDS
def test_an_idle_instance_uses_hardly_any_cpu(visit, kind: SchedulerKind) -> None:
    # The aim is 0.03; a busy machine inflates what a wake-up costs.
    assert visit("llama", kind).idle_cpu < 0.1


@CASES
def test_sigterm_finishes_running_requests_and_leaves_nothing(
    visit, model: str, arguments: tuple[str, ...]
) -> None:
    seen = visit(model, SchedulerKind.BANA, *arguments)
    assert seen.exit_status == 0
    assert len(seen.drained_ids) == 300
    assert seen.left == []


def test_only_the_secret_of_the_run_is_accepted_and_it_is_not_logged(visit) -> None:
    seen = visit("llama", SchedulerKind.BANA)
    assert seen.keyless_status == 401
    assert "the-secret-of-this-run" not in seen.log


@pytest.mark.full
def test_death_of_the_scheduler_ends_the_instance(start_instance, llama_fixture: Path) -> None:
    with start_instance(llama_fixture) as instance:
        [pid] = instance.scheduler_pids()
        psutil.Process(pid).kill()
        assert instance.wait_end() != 0
        folder = leftovers.temporary_folder(Path(instance.spec.run_dir), instance.spec.name)
        removed = leftovers.sweep(folder)
        assert [p.parent for p in removed] == [leftovers.SHARED_MEMORY, folder.parent]
        assert not any(p.exists() for p in removed)


def write_plugin(folder: Path, code: str) -> dict[str, str]:
    """An installed distribution whose SGLang plugin runs `code`; the environment that finds it."""
    info = folder / "meddler-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: meddler\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nmeddler = meddler:run\n")
    (folder / "meddler.py").write_text(code)
    return {"PYTHONPATH": str(folder)}


def refusal_of(instance) -> tuple[int, str]:
    """Exit status and the one line that bana wrote first."""
    status = instance.wait_end(240)
    lines = [line for line in instance.log.read_text().splitlines() if line.startswith("bana: ")]
    assert lines, instance.log_tail()
    return status, lines[0]


@pytest.mark.full
def test_a_seam_missing_only_in_the_scheduler_process_ends_the_instance(
    spawn_instance, llama_fixture: Path, tmp_path: Path
) -> None:
    code = (
        "import os\n"
        "def run():\n"
        "    if os.getpid() != int(os.environ['BANA_SERVE_PID']):\n"
        "        from sglang.srt.managers.scheduler import Scheduler\n"
        "        del Scheduler.get_next_batch_to_run\n"
    )
    environment = write_plugin(tmp_path, code)
    with spawn_instance(llama_fixture, environment=environment) as instance:
        status, line = refusal_of(instance)
        assert status == 1
        assert "sglang.srt.managers.scheduler:Scheduler.get_next_batch_to_run" in line
        assert line.endswith("pip install sglang==0.5.23")


def test_a_plugin_that_did_not_run_is_a_refusal(spawn_instance, llama_fixture: Path) -> None:
    environment = {"SGLANG_PLUGINS": "somebody-else"}
    with spawn_instance(llama_fixture, environment=environment) as instance:
        status, line = refusal_of(instance)
        assert status == 2
        assert "did not run the plugin 'bana' (SGLANG_PLUGINS=somebody-else)" in line


@pytest.mark.full
def test_an_unsupported_flag_is_a_refusal(spawn_instance, llama_fixture: Path) -> None:
    with spawn_instance(llama_fixture, "--tokenizer-worker-num", "2") as instance:
        status, line = refusal_of(instance)
        assert status == 2
        assert "--tokenizer-worker-num 2 cannot be used" in line
        assert not leftovers.temporary_folder(Path(instance.spec.run_dir), "i0").exists()
