"""Records as lines of JSON, with a digest that tells them from any others."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from bana.slo.errors import ConfigError

T = TypeVar("T", bound=msgspec.Struct)


class Lines(msgspec.Struct, frozen=True):
    """What a file of lines holds."""

    lines: int
    sha256: str


def encode_json(record: object) -> bytes:
    """`record` as JSON; characters that UTF-8 does not have become question marks."""
    try:
        return msgspec.json.encode(record)
    except UnicodeEncodeError:
        return msgspec.json.encode(_mend(msgspec.to_builtins(record)))


def _mend(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_mend(key): _mend(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_mend(inner) for inner in value]
    return value


def write_bytes(path: Path, content: bytes) -> None:
    """A new file that is on disk when this returns."""
    with path.open("xb") as file:
        file.write(content)
        _settle(file)


def write_lines(path: Path, records: Iterable[msgspec.Struct]) -> Lines:
    """A new file of one line a record, on disk when this returns."""
    digest, count = hashlib.sha256(), 0
    with path.open("xb") as file:
        for record in records:
            line = encode_json(record) + b"\n"
            digest.update(line)
            file.write(line)
            count += 1
        _settle(file)
    return Lines(count, digest.hexdigest())


def read_lines(path: Path, kind: type[T], expected: Lines) -> tuple[T, ...]:
    """The records of a file that was written with this digest; ConfigError where it was not."""
    digest, decoder = hashlib.sha256(), msgspec.json.Decoder(kind)
    records: list[T] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            digest.update(line)
            records.append(_decode(decoder, line, f"line {number} of {path}"))
    if len(records) != expected.lines:
        raise ConfigError(
            f"{path} has {len(records)} lines, its run wrote {expected.lines}; copy it whole"
        )
    if digest.hexdigest() != expected.sha256:
        raise ConfigError(
            f"{path} is not the file that its run wrote (sha256 {digest.hexdigest()[:12]}…, "
            f"expected {expected.sha256[:12]}…); copy the whole folder again"
        )
    return tuple(records)


def _decode(decoder: msgspec.json.Decoder[T], line: bytes, where: str) -> T:
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{where} cannot be read ({error}); copy the whole folder again"
        ) from error


def _settle(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
