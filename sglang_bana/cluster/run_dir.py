"""The private folder of one run, and how runs are found again.

RUN/state.json              who runs this cluster, and where it answers
RUN/roles.json              what instances are there for, if changed   (0600, gone at the end)
RUN/control.key             what `bana status` shows the front door    (0600, gone at the end)
RUN/instance-0.json …       what each child was told                   (0600, gone at the end)
RUN/instance-0.load         an instance's load socket                  (gone at the end)
RUN/store.sock, .lock       the store daemon's socket                  (gone at the end)
RUN/store.pins              what its store pinned, for the next one here: kept, as are
RUN/instance-0.tmp/         TMPDIR of an instance                      (gone at the end)
RUN/logs/instance-0.log …   and state.json
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bana.slo.errors import ConfigError
from sglang_bana.cluster.models import locate_cache
from sglang_bana.cluster.procfs import is_same_process, unlink_unused
from sglang_bana.config import ROLES_NAME, expand_home, write_private
from sglang_bana.leftovers import MAX_FOLDER_BYTES, list_shared_memory, temporary_folder
from sglang_bana.status import RunState

STATE_NAME = "state.json"
KEY_NAME = "control.key"
PINS_NAME = "store.pins"
KEPT = frozenset({STATE_NAME, PINS_NAME, "logs"})
# What a run writes beside those; nothing else in the folder is ever removed.
OWN = re.compile(
    rf"{re.escape(KEY_NAME)}|{re.escape(STATE_NAME)}\.pending"
    r"|(front-door|instance-\d+)\.(json(\.pending)?|load|tmp)"
    rf"|{re.escape(ROLES_NAME)}(\.pending)?"
    r"|store\.(json(\.pending)?|sock|sock\.lock|tmp|pins\.(pending|bad))"
)
DECISIONS = re.compile(r"decisions-instance-\d+\.jsonl")
KEPT_RUNS = 10
SHARED_MEMORY = Path("/dev/shm")


class RunDir:
    """One run's folder; `root` exists and is private once it was created."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state_file = root / STATE_NAME
        self.key_file = root / KEY_NAME

    def create(self, instances: Sequence[str] = ()) -> None:
        """Make the folder for a run of these; ConfigError when it cannot be private."""
        self._check_path(instances)
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_owner()
            self._refuse_live()
            self.remove_leftovers()
            (self.root / "logs").mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise self.explain(error) from error

    def explain(self, error: OSError) -> ConfigError:
        """One line for a file system that refuses to keep this run."""
        return ConfigError(
            f"cannot use run directory {str(self.root)!r}: {error.strerror}; "
            "choose another with --run-dir"
        )

    def log_file(self, name: str) -> Path:
        """Where process `name` writes."""
        return self.root / "logs" / f"{name}.log"

    def spec_file(self, name: str) -> Path:
        """What process `name` was told."""
        return self.root / f"{name}.json"

    def load_endpoint(self, name: str) -> str:
        """The ZMQ address on which instance `name` publishes its load."""
        return f"ipc://{self.root / name}.load"

    @property
    def store_socket(self) -> Path:
        """The socket file of the run's store daemon."""
        return self.root / "store.sock"

    @property
    def store_endpoint(self) -> str:
        """The ZMQ address of the run's store daemon."""
        return f"ipc://{self.store_socket}"

    @property
    def arena_file(self) -> Path:
        """Where the store's memory has its name; a run has one, in all lives of its daemon."""
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        return SHARED_MEMORY / f"bana-store-{digest}.arena"

    @property
    def pins_file(self) -> Path:
        """What the run's store keeps pinned, and the next one in this folder will."""
        return self.root / PINS_NAME

    def write_state(self, state: RunState) -> None:
        """Replace state.json in one step."""
        write_private(self.state_file, state)

    def write_key(self, key: str) -> None:
        """Leave the control key for `bana status` of the same user."""
        fd = os.open(self.key_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(key)

    def remove_leftovers(self) -> None:
        """Remove sockets, keys, specs and temporary files of the run; logs, state and others stay.

        With them goes the shared memory noted there that no living process uses.
        """
        own = [path for path in self._list() if OWN.fullmatch(path.name)]
        noted = (list_shared_memory(path) for path in own if path.suffix == ".tmp")
        unlink_unused(frozenset(str(path) for paths in noted for path in paths))
        unlink_unused(frozenset({str(self.arena_file)}))
        for path in own:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def remove_unused(self) -> None:
        """Remove the folder if nothing was ever written into it."""
        with contextlib.suppress(OSError):
            (self.root / "logs").rmdir()
            self.root.rmdir()

    def remove(self) -> None:
        """Remove what the run left, logs included, and the folder if nothing else is in it."""
        self.remove_leftovers()
        shutil.rmtree(self.root / "logs", ignore_errors=True)
        self.pins_file.unlink(missing_ok=True)
        self.state_file.unlink(missing_ok=True)
        for path in self._list():
            if DECISIONS.fullmatch(path.name):
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.root.rmdir()

    def _list(self) -> tuple[Path, ...]:
        return tuple(self.root.iterdir()) if self.root.is_dir() else ()

    def _check_path(self, instances: Sequence[str]) -> None:
        own = len(os.fsencode(self.root))
        folders = (os.fsencode(temporary_folder(self.root, name)) for name in instances)
        taken = max(map(len, folders), default=0)
        if taken > MAX_FOLDER_BYTES:
            raise ConfigError(
                f"run directory {str(self.root)!r} is too long for sockets in it: {own} bytes, "
                f"allowed {own + MAX_FOLDER_BYTES - taken}; choose a shorter one with --run-dir"
            )

    def _check_owner(self) -> None:
        found = self.root.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise ConfigError(
                f"run directory {str(self.root)!r} is not a folder of this user's; "
                "choose another with --run-dir"
            )
        if found.st_mode & 0o077:
            raise ConfigError(
                f"run directory {str(self.root)!r} is open to others; chmod 700 it, "
                "or choose another with --run-dir"
            )
        foreign = sorted(p.name for p in self.root.iterdir() if p.name not in KEPT)
        # A file that happens to be called state.json is no leave to empty somebody's folder.
        if foreign and read_state(self) is None:
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
        return RunDir(expand_home(given).absolute())
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
    found: list[tuple[float, Path]] = []
    for path in base.glob(f"*/{STATE_NAME}"):
        # Another launch may be removing it.
        with contextlib.suppress(FileNotFoundError):
            found.append((path.stat().st_mtime, path.parent))
    return tuple(RunDir(root) for _, root in sorted(found, reverse=True))


def remove_old_runs(base: Path) -> None:
    """Keep the logs of the newest KEPT_RUNS ended runs, remove those of older ones."""
    ended = [run for run in list_runs(base) if _has_ended(run)]
    for run in ended[:KEPT_RUNS]:
        run.remove_leftovers()
    for run in ended[KEPT_RUNS:]:
        run.remove()


def _has_ended(run_dir: RunDir) -> bool:
    """Whether it is known to have ended: another version's state, say, may be of a live run."""
    state = read_state(run_dir)
    return state is not None and not is_live(state)
