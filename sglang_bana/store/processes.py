"""Which processes live, and when one is proven dead."""

from __future__ import annotations

import os

from sglang_bana.cluster.procfs import is_same_process


class PidWatch:
    """See ProcessWatch: a pidfd names one process for ever, whoever gets its number later."""

    def watch(self, pid: int, start_ticks: int) -> int | None:
        """See ProcessWatch."""
        try:
            descriptor = os.pidfd_open(pid)
        except (OSError, ValueError):
            return None
        # Looked at once it is held: the number cannot have changed hands since.
        if is_same_process(pid, start_ticks):
            return descriptor
        os.close(descriptor)
        return None

    def forget(self, descriptor: int) -> None:
        """See ProcessWatch."""
        os.close(descriptor)
