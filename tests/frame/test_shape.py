"""The limits of the house style that a program can check."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("slo", "radix_global", "migration", "eval", "cli", "sglang_bana")
SOURCES = sorted(f for room in ROOMS for f in (ROOT / room).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PACKAGES = sorted({f.parent for f in SOURCES if f.name == "__init__.py"})
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 6
MAX_README_LINES = 80


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    # What typer reads as flags is the command line's own list, not a call's.
    arguments = function.args
    plain = arguments.posonlyargs + arguments.args + arguments.kwonlyargs
    return [a.arg for a in plain if a.arg not in ("self", "cls")]


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_file_and_functions_keep_their_size(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_FILE_LINES
    sizes = {f.name: (f.end_lineno or f.lineno) - f.lineno + 1 for f in functions(path)}
    assert {n: s for n, s in sizes.items() if s > MAX_FUNCTION_LINES} == {}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_functions_take_few_parameters(path: Path) -> None:
    if path.is_relative_to(ROOT / "cli"):
        pytest.skip("commands list their flags as parameters")
    crowded = {f.name: len(parameters(f)) for f in functions(path)}
    assert {n: c for n, c in crowded.items() if c > MAX_PARAMETERS} == {}


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_package_explains_itself(folder: Path) -> None:
    readme = folder / "README.md"
    assert readme.exists()
    assert len(readme.read_text().splitlines()) <= MAX_README_LINES


def test_real_servers_are_started_in_their_own_folders_only() -> None:
    marked = {f for f in TESTS if "\npytestmark = [pytest.mark.engine" in f.read_text()}
    assert {f.parent.name for f in marked} == {"engine", "chaos"}
    folders = [f for name in ("engine", "chaos") for f in (ROOT / "tests" / name).glob("test_*.py")]
    assert marked == set(folders)
