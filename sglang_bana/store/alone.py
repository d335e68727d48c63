"""`bana store serve`: one daemon without a cluster, in a run folder like a cluster's."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from importlib.metadata import version

from sglang_bana.cluster.procfs import read_start_ticks
from sglang_bana.cluster.run_dir import choose_run_dir
from sglang_bana.config import BanaConfig, StoreSpec
from sglang_bana.status import RunState
from sglang_bana.store.main import serve
from sglang_bana.store.sizes import resolve_sizes


def serve_alone(config: BanaConfig, environ: Mapping[str, str]) -> None:
    """Serve until interrupted; ConfigError where the store cannot be had."""
    store = resolve_sizes(config.store)
    run_dir = choose_run_dir(config.launch.run_dir, environ)
    run_dir.create()
    try:
        secret = secrets.token_urlsafe(32)
        run_dir.write_state(
            RunState(
                version=version("bana"),
                pid=os.getpid(),
                started_ticks=read_start_ticks(os.getpid()) or 0,
                url=run_dir.store_endpoint,
                model="no model: a store alone",
                phase="serving",
                processes=(),
            )
        )
        run_dir.write_key(secret)
        print(f"run directory: {run_dir.root}", flush=True)
        serve(
            StoreSpec(
                store=store,
                endpoint=run_dir.store_endpoint,
                arena_path=str(run_dir.arena_file),
                secret=secret,
                parent_pid=0,
                stop_timeout_s=config.supervisor.stop_timeout_s,
            )
        )
    except OSError as error:
        raise run_dir.explain(error) from error
    finally:
        run_dir.remove_leftovers()
        run_dir.state_file.unlink(missing_ok=True)
        run_dir.remove_unused()
