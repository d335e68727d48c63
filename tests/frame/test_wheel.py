"""The wheel holds every module, and every module imports from it."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("slo", "radix_global", "migration", "eval", "cli", "sglang_bana")
IMPORT_ALL = """
import importlib, sys
root, names = sys.argv[1], sys.argv[2:]
for name in names:
    module = importlib.import_module(name)
    assert module.__file__.startswith(root), (name, module.__file__)
print(len(names))
"""


def package_of(folder: Path) -> str:
    parts = folder.relative_to(ROOT).parts
    return ".".join(parts if parts[0] == "sglang_bana" else ("bana", *parts))


def source_modules() -> list[str]:
    files = [f for room in ROOMS for f in (ROOT / room).rglob("*.py")]
    stems = [(f, "" if f.stem == "__init__" else f".{f.stem}") for f in files]
    return sorted(package_of(f.parent) + stem for f, stem in stems)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed layout of a wheel that was built from a copy of the sources."""
    source = tmp_path_factory.mktemp("source")
    for room in ROOMS:
        shutil.copytree(ROOT / room, source / room, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    out = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q"]
    subprocess.run([*argv, "-w", str(out), str(source)], check=True, timeout=240)
    target = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(next(out.glob("bana-*.whl"))) as wheel:
        wheel.extractall(target)
    return target


def test_every_package_is_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = set(project["tool"]["setuptools"]["packages"])
    found = {package_of(f.parent) for room in ROOMS for f in (ROOT / room).rglob("__init__.py")}
    assert listed == found


def test_every_module_imports_from_the_wheel(unpacked: Path) -> None:
    names = source_modules()
    assert len(names) > 20
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, str(unpacked), *names],
        cwd=unpacked,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split()[-1] == str(len(names))


def test_only_our_import_roots_are_installed(unpacked: Path) -> None:
    roots = {p.name for p in unpacked.iterdir() if not p.name.endswith(".dist-info")}
    assert roots == {"bana", "sglang_bana"}
