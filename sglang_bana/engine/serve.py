"""One instance: an SGLang server with bana installed. `python -m sglang_bana.engine.serve ARGS`.

    tie to launcher ─▶ read spec ─▶ plugins ─▶ check seams ─▶ judge flags ─▶ SGLang's server

Takes SGLang's own arguments; everything of bana is in the spec that BANA_INSTANCE names.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bana.slo.errors import BanaError
from sglang_bana.config import InstanceSpec, SchedulerKind
from sglang_bana.engine.instance import read_instance_spec, refuse
from sglang_bana.leftovers import (
    record_process,
    remove_endpoint,
    sweep,
    temporary_folder,
    use_temporary_folder,
)
from sglang_bana.lifeline import die_with_parent

FAILED_STATUS = 1
_SERVE_PID_ENV = "BANA_SERVE_PID"

logger = logging.getLogger(__name__)


def settle(parent_pid: int) -> None:
    """What each process of an instance does first, while it is still light."""
    die_with_parent(parent_pid)
    # Progress bars would share a named semaphore between processes, which a killed one leaves.
    tqdm.set_lock(threading.RLock())


if __name__ == "__mp_main__":
    # Spawned workers import this module before anything else.
    settle(int(os.environ[_SERVE_PID_ENV]))


def main(argv: list[str]) -> int:
    """Serve until SIGTERM; the exit status: 0 clean end, 1 failure, 2 refusal."""
    try:
        spec = read_instance_spec()
        settle(spec.parent_pid)
        return _run(argv, spec)
    except BanaError as error:
        refuse(error)


def _run(argv: list[str], spec: InstanceSpec) -> int:
    os.environ[_SERVE_PID_ENV] = str(os.getpid())
    folder = temporary_folder(Path(spec.run_dir), spec.name)
    use_temporary_folder(folder)
    record_process(folder, os.getpid())
    _notice_departures()
    if spec.engine.force_cpu:
        # SGLang asks torch for a GPU before it asks the platform.
        os.environ.update(CUDA_VISIBLE_DEVICES="", HIP_VISIBLE_DEVICES="")
    try:
        return _serve(_prepare(argv, spec), spec)
    finally:
        sweep(folder)
        remove_endpoint(spec.load_endpoint)


def _notice_departures() -> None:
    """Let a client's departure end its request: by a rid in a header, else within a second."""
    os.environ.setdefault("SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES", "1")
    os.environ.setdefault("SGLANG_REQUEST_STATE_WAIT_TIMEOUT", "1")


def _prepare(argv: list[str], spec: InstanceSpec) -> Any:
    """SGLang's arguments with bana's decisions in them; BanaError where they cannot stand."""
    from sglang_bana.engine.seams import Role, check_seams, check_version

    check_version()
    from sglang.srt.plugins import load_plugins

    load_plugins()
    check_seams(Role.MAIN)
    from sglang.srt.server_args import prepare_server_args

    from sglang_bana.engine.platform import is_wanted
    from sglang_bana.engine.refusals import (
        refuse_unconducted,
        refuse_unstored,
        refuse_unsupported,
        refuse_unsupported_on_cpu,
    )
    from sglang_bana.engine.store_arguments import list_store_arguments, uses_store
    from sglang_bana.engine.verify import verify_hooks, verify_parts, verify_requests

    verify_hooks()
    verify_requests()
    verify_parts()
    server_args = prepare_server_args(argv + list_store_arguments(spec, argv))
    refuse_unsupported(server_args)
    if uses_store(spec):
        refuse_unstored(server_args)
    if spec.engine.scheduler is SchedulerKind.BANA and not spec.scheduling.is_stock:
        refuse_unconducted(server_args)
        _calibrate_first(server_args)
    if is_wanted():
        refuse_unsupported_on_cpu(server_args)
        _choose_attention(server_args, spec.engine.attention_backend)
    server_args.api_key = server_args.admin_api_key = spec.secret
    return server_args


def _calibrate_first(server_args: Any) -> None:
    """Let SGLang run bana's calibration with its own warm-ups, unless the user wants none."""
    from sglang.srt.entrypoints.warmup import warmup

    from sglang_bana.engine.scheduling.calibration import NAME, calibrate

    if not server_args.skip_server_warmup:
        warmup(NAME)(calibrate)
        server_args.warmups = ",".join(filter(None, (server_args.warmups, NAME)))


def _choose_attention(server_args: Any, backend: str) -> None:
    """Use the configured backend unless the user named one for either kind of step."""
    named = (server_args.prefill_attention_backend, server_args.decode_attention_backend)
    if server_args.attention_backend is None and named == (None, None):
        server_args.attention_backend = backend


def _serve(server_args: Any, spec: InstanceSpec) -> int:
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.utils import kill_process_tree

    from sglang_bana.engine.rank import run_rank

    _hide_secret(spec.secret)
    try:
        launch_server(server_args, run_scheduler_process_func=run_rank)
    except Exception as error:
        logger.exception("SGLang's server ended")
        print(f"bana: {spec.name} failed: {error}", file=sys.stderr, flush=True)
        return FAILED_STATUS
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
    return 0


def _hide_secret(secret: str) -> None:
    """Keep the run's secret out of the log, where SGLang writes all of its arguments."""

    def hide(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if secret in message:
            record.msg, record.args = message.replace(secret, "***"), ()
        return True

    logging.getLogger("sglang.srt.entrypoints.engine").addFilter(hide)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
