"""Tie a process to the one that started it, so that nothing outlives a cluster.

Imports neither torch nor SGLang: it runs before anything that takes seconds.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
# Loaded ahead: it may be needed between fork and exec.
_LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process (SIGKILL) when `parent_pid` dies, stopped or not.

    SystemExit when that process is already gone or is not the parent. The kernel watches the
    *thread* that started this process: the parent must spawn from one that lives as long as
    it does. The tie is cleared in forked children, so each process makes its own.
    """
    if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise SystemExit(f"bana: cannot tie this process to its parent: prctl: {reason}")
    # A parent that died before the call above sends no signal any more.
    found = os.getppid()
    if found != parent_pid:
        raise SystemExit(
            f"bana: started for process {parent_pid}, but the parent is {found}: "
            "that process has ended, so this one ends too"
        )
