"""What the programs that time something of the engine have in common: their command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import msgspec

from bana.slo.errors import BanaError, ConfigError

Say: TypeAlias = Callable[[str], None]


def run_command(
    parser: argparse.ArgumentParser, measure: Callable[[argparse.Namespace, Say], object]
) -> int:
    """Measure as the command line says and write the answer to its --json, whole or not at all.

    2 where the command line says something unusable, or nothing was measured.
    """
    parser.add_argument("--json", type=Path, required=True, help="where the answer is written")
    given = parser.parse_args()
    try:
        if not given.json.parent.is_dir() or given.json.is_dir():
            raise ConfigError(
                f"cannot write --json {given.json}: name a file in an existing folder"
            )
        measured = measure(given, lambda line: print(line, file=sys.stderr, flush=True))
    except BanaError as error:
        print(error, file=sys.stderr)
        return 2
    pending = given.json.with_name(given.json.name + ".pending")
    pending.write_bytes(msgspec.json.format(msgspec.json.encode(measured), indent=2) + b"\n")
    pending.replace(given.json)
    return 0
