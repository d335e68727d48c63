"""How fast bana's directory tier reads beside other stores of KV pages, from the page cache.

vs_lmcache_disk      LMCache's LocalDiskBackend, in an environment of its own
vs_hicache_file      SGLang's HiCacheFile, into SGLang's host pool as `batch_get_v2` does
vs_hicache_file_get  its bare `get` into a tensor used over and over: no caller reads like that

Bana's reads are verified, theirs are not. Part of `bana eval bench store`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from bana.eval.bench.apart import run_apart
from bana.eval.bench.harness import Scale, Session
from bana.eval.bench.pairs import figure_level, figure_ratio
from bana.eval.bench.samples import join_samples, pair_samples
from bana.eval.bench.trials import Values
from bana.slo.errors import ConfigError
from bana.slo.figures import Aim, Figure

MODULE = "sglang_bana.engine.peers.bench"
LMCACHE_VARIABLE = "BANA_LMCACHE_PYTHON"
LMCACHE_PLACE = Path(".venv-lmcache/bin/python")
LMCACHE = "lmcache_disk"
PEER_AIM = Aim(1.5)
# What the bare call does is no comparison of like with like, and has no aim.
AIMS: Mapping[str, Aim | None] = {
    LMCACHE: PEER_AIM,
    "hicache_file": PEER_AIM,
    "hicache_file_get": None,
}
RATE = "bytes_per_s"
MIB = 2**20


class Shape(msgspec.Struct, frozen=True):
    """16 tokens of a model in bfloat16; its keys and values are one page."""

    layers: int
    heads: int
    head_dim: int

    @property
    def page_bytes(self) -> int:
        """The size of a page."""
        return 2 * self.layers * 16 * self.heads * self.head_dim * 2


# A small fixture, SmolLM2-135M, and a model of 8 billion parameters (Llama 3).
SHAPES = (Shape(8, 2, 64), Shape(30, 3, 64), Shape(32, 8, 128))


class PeerSettings(msgspec.Struct, frozen=True):
    """One scale: `total_bytes` of each shape are read once a round, `pairs` rounds a side."""

    total_bytes: int
    buffer_bytes: int
    threads: tuple[int, ...]
    pairs: int
    shapes: tuple[Shape, ...] = SHAPES


SCALES = {
    Scale.QUICK: PeerSettings(32 * MIB, 8 * MIB, threads=(1,), pairs=3, shapes=SHAPES[1:2]),
    Scale.DEFAULT: PeerSettings(512 * MIB, 64 * MIB, threads=(1, 2), pairs=15),
    Scale.FULL: PeerSettings(1024 * MIB, 64 * MIB, threads=(1, 2, 4), pairs=51),
}


class PeerSamples(msgspec.Struct, frozen=True):
    """What MODULE says of one peer and number of threads: bytes a second, pair by pair."""

    bana: list[float]
    peer: list[float]


def measure_peers(session: Session) -> dict[str, Figure]:
    """The figures of this part of the benchmark; `session.notes` name what was not measured."""
    settings = SCALES[session.request.scale]
    python = find_lmcache(os.environ)
    if python is None:
        reason = (
            f"not measured: {LMCACHE_PLACE} is no file here; `make venv-lmcache` builds it, or "
            f"name an interpreter that has LMCache in {LMCACHE_VARIABLE}"
        )
        session.say(f"vs_{LMCACHE}: {reason}")
        session.notes[f"vs_{LMCACHE}"] = reason
    figures: dict[str, Figure] = {}
    for shape in settings.shapes:
        name = f"peers {shape.page_bytes}b"
        values = session.run_trial(name, partial(_compare, session, settings, shape, python))
        figures |= judge_peers(values, shape.page_bytes, session.request.seed)
    return figures


def find_lmcache(environment: Mapping[str, str]) -> Path | None:
    """The interpreter that has LMCache, None where none was built or named."""
    named = environment.get(LMCACHE_VARIABLE)
    if named is None:
        return LMCACHE_PLACE.absolute() if LMCACHE_PLACE.is_file() else None
    if not Path(named).is_file():
        raise ConfigError(
            f"{LMCACHE_VARIABLE}={named} is no file; name the interpreter of an environment that "
            "has LMCache, or unset it"
        )
    return Path(named).absolute()


def _compare(session: Session, settings: PeerSettings, shape: Shape, python: Path | None) -> Values:
    plan = {
        "reading": {
            "shape": msgspec.to_builtins(shape),
            "total_bytes": settings.total_bytes,
            "buffer_bytes": settings.buffer_bytes,
            "max_threads": max(settings.threads),
            "seed": session.request.seed,
        },
        "threads": settings.threads,
        "pairs": settings.pairs,
    }
    arguments = ["--plan", msgspec.json.encode(plan).decode()]
    if python is not None:
        arguments += ["--lmcache-python", str(python)]
    output = run_apart(session, MODULE, arguments)
    return join_samples(msgspec.json.decode(output, type=dict[str, PeerSamples]))


def judge_peers(values: Values, page_bytes: int, seed: int) -> dict[str, Figure]:
    """Each ratio, and what either side read a second; bana's over the rounds beside all peers."""
    figures: dict[str, Figure] = {}
    ours: dict[str, list[float]] = {}
    for case, pairs in pair_samples(values, PeerSamples, RATE).items():
        peer, threads = case.split("/")
        shape = f"[{page_bytes}b_{threads}t]"
        figures[f"vs_{peer}{shape}"] = figure_ratio(pairs, RATE, seed, AIMS[peer])
        figures[f"{peer}_{RATE}{shape}"] = _level([pair.second[RATE] for pair in pairs], seed)
        ours.setdefault(shape, []).extend(pair.first[RATE] for pair in pairs)
    return figures | {
        f"directory_{RATE}{shape}": _level(rates, seed) for shape, rates in ours.items()
    }


def _level(rates: Sequence[float], seed: int) -> Figure:
    return figure_level(rates, seed, "bytes/s")


def describe_peers(scale: Scale) -> Mapping[str, object]:
    """The settings as they stand in the report."""
    described: dict[str, object] = msgspec.to_builtins(SCALES[scale])
    return described | {
        "module": MODULE,
        "lmcache": "0.5.6, LocalDiskBackend: get_blocking, or with several threads "
        "batched_get_blocking of 32 pages with so many disk_io_threads; its memory in front of the "
        "disk off, all else by default",
        "hicache_file": "HiCacheFile.batch_get_v2 into the host pool, layout page_first, nothing "
        "evicted, nothing pinned; hicache_file_get: HiCacheFile.get into tensors of its own",
        "directory": "DirectoryStore.read, verified, into slots",
        "cache_state": "written, synced, read twice: all in the page cache on all sides",
        "has_lmcache": find_lmcache(os.environ) is not None,
    }
