"""The private folder of one run, and how runs are found again.

RUN/state.json       who runs this cluster, and where it answers
RUN/control.key      what `bana status` shows the front door          (0600, gone at the end)
RUN/i0.json …        what each child was told                         (0600, gone at the end)
RUN/i0.load          an instance's load socket                        (gone at the end)
RUN/tmp/i0/          TMPDIR of an instance                            (gone at the end)
RUN/logs/i0.log …    kept, as is state.json
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from bana.slo.errors import ConfigError
from sglang_bana.cluster.models import locate_cache
from sglang_bana.cluster.procfs import is_same_process
from sglang_bana.config import write_private
from sglang_bana.status import RunState

STATE_NAME = "state.json"
KEY_NAME = "control.key"
KEPT = frozenset({STATE_NAME, "logs"})
KEPT_RUNS = 10
# sun_path holds 108 bytes with its end; SGLang's own sockets are RUN/tmp/i255/tmpXXXXXXXX.
SOCKET_PATH_LIMIT = 107
LONGEST_NAME = "/tmp/i255/tmpXXXXXXXX"


class RunDir:
    """One run's folder; `root` exists and is private once it was created."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state_file = root / STATE_NAME
        self.key_file = root / KEY_NAME

    def create(self) -> None:
        """Make the folder with its subfolders; ConfigError when it cannot be private."""
        self._check_path()
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_owner()
            self._refuse_live()
            self.remove_leftovers()
            (self.root / "logs").mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"cannot use run directory {str(self.root)!r}: {error.strerror}; "
                "choose another with --run-dir"
            ) from error

    def log_file(self, name: str) -> Path:
        """Where process `name` writes."""
        return self.root / "logs" / f"{name}.log"

    def spec_file(self, name: str) -> Path:
        """What process `name` was told."""
        return self.root / f"{name}.json"

    def load_endpoint(self, name: str) -> str:
        """The ZMQ address on which instance `name` publishes its load."""
        return f"ipc://{self.root / name}.load"

    def write_state(self, state: RunState) -> None:
        """Replace state.json in one step."""
        write_private(self.state_file, state)

    def write_key(self, key: str) -> None:
        """Leave the control key for `bana status` of the same user."""
        fd = os.open(self.key_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(key)

    def remove_leftovers(self) -> None:
        """Remove everything but logs and state: sockets, keys, specs, temporary files."""
        for path in self.root.iterdir() if self.root.is_dir() else ():
            if path.name in KEPT:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder with its logs."""
        shutil.rmtree(self.root, ignore_errors=True)

    def _check_path(self) -> None:
        longest = f"{self.root}{LONGEST_NAME}"
        if len(os.fsencode(longest)) > SOCKET_PATH_LIMIT:
            raise ConfigError(
                f"run directory {str(self.root)!r} is too long for sockets in it: "
                f"{len(os.fsencode(longest))} bytes, allowed {SOCKET_PATH_LIMIT}; "
                "choose a shorter one with --run-dir"
            )

    def _check_owner(self) -> None:
        found = self.root.lstat()
        if not self.root.is_dir() or found.st_uid != os.getuid():
            raise ConfigError(f"run directory {str(self.root)!r} is not a folder of this user's")
        if found.st_mode & 0o077:
            raise ConfigError(
                f"run directory {str(self.root)!r} is open to others; chmod 700 it, "
                "or choose another with --run-dir"
            )
        foreign = sorted(p.name for p in self.root.iterdir())
        if foreign and not self.state_file.is_file():
            raise ConfigError(
                f"run directory {str(self.root)!r} holds other files ({foreign[0]}, …); "
                "choose an empty one with --run-dir"
            )

    def _refuse_live(self) -> None:
        state = read_state(self)
        if state is not None and is_live(state):
            raise ConfigError(
                f"run directory {str(self.root)!r} belongs to a running cluster (pid {state.pid}); "
                "stop it with `bana stop`, or choose another with --run-dir"
            )


def locate_base(environ: Mapping[str, str]) -> Path:
    """The folder of this user's runs: $XDG_RUNTIME_DIR/bana, else CACHE/run."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and os.access(runtime, os.W_OK):
        return Path(runtime) / "bana"
    return locate_cache(environ) / "run"


def choose_run_dir(given: str, environ: Mapping[str, str]) -> RunDir:
    """The folder that the user named, else a new one below the base; nothing is created yet."""
    if given:
        return RunDir(Path(given).expanduser().absolute())
    return RunDir(locate_base(environ) / secrets.token_hex(4))


def read_state(run_dir: RunDir) -> RunState | None:
    """The state in the folder, None when there is none that can be read."""
    try:
        return msgspec.json.decode(run_dir.state_file.read_bytes(), type=RunState)
    except (OSError, msgspec.MsgspecError):
        return None


def is_live(state: RunState) -> bool:
    """Whether the launcher that wrote `state` still runs; a reused pid does not count."""
    return is_same_process(state.pid, state.started_ticks)


def list_runs(base: Path) -> tuple[RunDir, ...]:
    """The runs below `base`, newest state first."""
    found = [RunDir(path.parent) for path in base.glob(f"*/{STATE_NAME}")]
    return tuple(sorted(found, key=lambda run: run.state_file.stat().st_mtime, reverse=True))


def remove_old_runs(base: Path) -> None:
    """Keep the logs of the newest KEPT_RUNS ended runs, remove those of older ones."""
    ended = [run for run in list_runs(base) if not _is_live_run(run)]
    for run in ended[:KEPT_RUNS]:
        run.remove_leftovers()
    for run in ended[KEPT_RUNS:]:
        run.remove()


def _is_live_run(run_dir: RunDir) -> bool:
    state = read_state(run_dir)
    return state is not None and is_live(state)
