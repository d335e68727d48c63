"""What kind of arithmetic this machine's cores are fast at."""

from __future__ import annotations

from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
# PyTorch's matrix products of 16-bit numbers are fast from here on; below it they are no vector
# code, and a prompt takes about six times as long as in 32 bits.
FAST_HALF_FLAG = "avx512bw"


def is_half_slow(cpu_info: Path = CPU_INFO) -> bool:
    """Whether 16-bit numbers are slower than 32-bit ones; what cannot be read is taken as fast."""
    try:
        lines = cpu_info.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    # Only x86 lists its flags under this name.
    flags = next((line for line in lines if line.startswith("flags")), "")
    return bool(flags) and FAST_HALF_FLAG not in flags.split()
