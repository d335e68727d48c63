"""The scheduler process of an instance: SGLang's entry, with the scheduler class installed.

spawned ─▶ check seams ─▶ SGLang's entry ─▶ build scheduler ─▶ verify ─▶ report ─▶ loop
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from bana.slo.errors import BanaError
from sglang_bana.config import InstanceSpec, SchedulerKind
from sglang_bana.engine.instance import read_instance_spec, refuse
from sglang_bana.leftovers import record_process, record_shared_memory


def run_rank(server_args: Any, port_args: Any, gpu_id: int, *ranks: Any) -> None:
    """Run one rank's scheduler; ends with status 2 and one line where bana did not take hold.

    Takes what SGLang passes to its own `run_scheduler_process`: tensor, pipeline and data rank,
    then the pipe on which it reports that it is ready.
    """
    # Imported here: unpickling this function must not cost every process the engine.
    from sglang.srt.managers import scheduler as sglang_scheduler
    from sglang.srt.plugins import load_plugins

    from sglang_bana.engine.seams import Role, check_seams

    try:
        load_plugins()
        check_seams(Role.SCHEDULER)
        build = SchedulerBuild(read_instance_spec(), sglang_scheduler.Scheduler, ranks)
    except BanaError as error:
        refuse(error)
    sglang_scheduler.Scheduler = build.create
    _record_shared_memory(port_args)
    try:
        sglang_scheduler.run_scheduler_process(server_args, port_args, gpu_id, *ranks)
    finally:
        build.stop_reporting()


def _record_shared_memory(port_args: Any) -> None:
    from sglang.srt.managers.load_snapshot import shm_path_for

    folder = Path(tempfile.gettempdir())
    record_process(folder, os.getpid())
    record_shared_memory(folder, Path(shm_path_for(port_args.instance_id)))


class SchedulerBuild:
    """Stands in for SGLang's scheduler class in the one place where SGLang calls it."""

    def __init__(self, spec: InstanceSpec, stock: type, ranks: tuple[Any, ...]) -> None:
        self._spec = spec
        self._kind = _choose_class(spec.engine.scheduler, stock)
        self._is_first_rank = ranks[0] == 0 and ranks[1] == 0
        self._reporter: Any = None

    def create(self, server_args: Any, port_args: Any) -> Any:
        """The verified scheduler, with its load being published if this is the first rank."""
        from sglang_bana.engine.verify import verify_scheduler

        try:
            scheduler = self._build(server_args, port_args)
            verify_scheduler(scheduler, self._kind, server_args.attention_backend)
        except BanaError as error:
            # SGLang catches exceptions here, and would report a crash instead of a refusal.
            refuse(error)
        if self._is_first_rank:
            self._start_reporting(scheduler)
        return scheduler

    def _build(self, server_args: Any, port_args: Any) -> Any:
        if self._spec.engine.scheduler is SchedulerKind.STOCK:
            return self._kind(server_args, port_args)
        return self._kind(self._spec, server_args, port_args)

    def stop_reporting(self) -> None:
        """End the load reports, if any were started."""
        if self._reporter is not None:
            self._reporter.stop()

    def _start_reporting(self, scheduler: Any) -> None:
        from sglang_bana.engine.linker.report import report_store
        from sglang_bana.engine.load_report import LoadReporter
        from sglang_bana.engine.load_watch import LoadWatch
        from sglang_bana.engine.proof import read_proof
        from sglang_bana.engine.scheduling.report import report_scheduling

        watch = LoadWatch(scheduler)
        watch.attach()
        conductor = getattr(scheduler, "conductor", None)
        restorer = getattr(scheduler, "restorer", None)
        self._reporter = LoadReporter(
            self._spec,
            watch,
            read_proof(scheduler),
            lambda: report_scheduling(conductor, self._spec.scheduling),
            lambda: report_store(restorer),
        )
        self._reporter.start()


def _choose_class(kind: SchedulerKind, stock: type) -> type:
    if kind is SchedulerKind.STOCK:
        return stock
    from sglang_bana.engine.scheduler import BanaScheduler

    return BanaScheduler
