"""`bana eval sim`: policies against a simulated engine; `bana eval replay`: decisions again.

status 0  done      1  a decision differs      2  refused      130  interrupted, but written
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bana.slo.errors import ConfigError

if TYPE_CHECKING:
    from bana.eval.simulator.points import PointRunner
    from bana.eval.simulator.spec import SceneSpec

DIFFERS_STATUS = 1
INTERRUPTED_STATUS = 130

SceneFile = Annotated[Path, typer.Argument(metavar="SCENE", help="A scene (TOML).")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting of the scene.")
]
PolicyNames = Annotated[
    list[str] | None, typer.Option("--policy", metavar="NAME", help="Only this row; repeatable.")
]
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Also write everything as JSON.")
]
Decisions = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write each decision of a single run, for `replay`."),
]
LogFile = Annotated[Path, typer.Argument(metavar="FILE", help="A log of decisions (JSON lines).")]


def sim(
    scene: SceneFile,
    *,
    set_: Sets = None,
    policy: PolicyNames = None,
    json: JsonFile = None,
    decisions: Decisions = None,
) -> int:
    """Serve a workload by one simulated engine under each policy, and compare what they carry."""
    from bana.eval.report.table import print_tables
    from bana.eval.simulator.hardware import build_hardware
    from bana.eval.simulator.points import PointRunner
    from bana.eval.simulator.scene import read_scene
    from bana.eval.simulator.study import Study
    from bana.eval.simulator.table import compose_study, describe_study, tabulate_study

    spec = read_scene(scene, set_ or (), policy or ())
    if json is not None:
        _check_output(json)
    hardware = build_hardware(spec)
    _say(f"service times: {hardware.note}")
    runner = PointRunner(spec, hardware)
    if decisions is not None:
        return _log_decisions(spec, runner, decisions)
    result = Study(spec, runner, _say).run()
    if json is not None:
        _write_json(json, describe_study(spec, result, hardware.note))
    print_tables(tabulate_study(spec, result), compose_study(spec, result), sys.stdout)
    return INTERRUPTED_STATUS if result.is_interrupted else 0


def replay(log: LogFile) -> int:
    """Decide every line of a log again; they must be equal, line for line."""
    from bana.eval.simulator.replay import replay_log

    found = replay_log(log)
    for mismatch in found.mismatches:
        _say(f"line {mismatch.line}: {mismatch.kind} logged {mismatch.logged}")
        _say(f"line {mismatch.line}: {mismatch.kind} decided {mismatch.decided}")
    print(f"{found.decisions} decisions, {found.differing} differ")
    return DIFFERS_STATUS if found.differing else 0


def _log_decisions(spec: SceneSpec, runner: PointRunner, path: Path) -> int:
    from bana.eval.simulator.decision_file import DecisionFile
    from bana.eval.simulator.points import choose_single
    from bana.eval.simulator.policies import describe_policies

    point = choose_single(spec)
    header = describe_policies(spec.policies[point.policy], point.segment.seed)
    with DecisionFile(path, header) as file:
        measured = runner.measure(point, sink=file)
    print(measured.summary.sentence)
    return 0


def _check_output(path: Path) -> None:
    """Before hours of work rather than after them."""
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"cannot write to {str(path)!r}; name a file in a folder that exists")


def _write_json(path: Path, described: Mapping[str, object]) -> None:
    import msgspec

    path.write_bytes(msgspec.json.format(msgspec.json.encode(described)) + b"\n")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
