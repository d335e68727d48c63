"""Who may import whom, as declared in pyproject.toml, holds."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("slo", "radix_global", "migration", "eval", "cli")


def test_import_contracts_hold(tmp_path: Path) -> None:
    (tmp_path / "bana").mkdir()
    for room in ROOMS:
        (tmp_path / "bana" / room).symlink_to(ROOT / room)
    (tmp_path / "sglang_bana").symlink_to(ROOT / "sglang_bana")
    argv = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(
        [*argv, "--config", str(ROOT / "pyproject.toml")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Contracts:" in done.stdout
