"""One thing of SGLang that bana relies on: where it is, what it must offer, whether it does."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Collection, Iterator
from importlib.metadata import version
from types import CodeType
from typing import Any, NoReturn

import msgspec

from bana.slo.errors import SeamError

SGLANG_VERSION = "0.5.23"


class Seam(msgspec.Struct, frozen=True):
    """`path` is "module:attribute.attribute"; what is left empty is not asked for.

    `parameters`: in this order, others may stand between. `uses`: names and words that its code
    mentions. `fields`: of a record. `holds`: entries of a collection.
    """

    path: str
    parameters: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()


def check_seam(seam: Seam) -> None:
    """SeamError when it is missing or different."""
    target = _resolve(seam.path)
    if seam.parameters:
        _check_parameters(seam, target)
    missing = sorted({*seam.fields} - _fields_of(target))
    if missing:
        fail(seam.path, f"no field {', '.join(missing)}", "the fields " + ", ".join(seam.fields))
    lacking = [entry for entry in seam.holds if entry not in _entries_of(seam, target)]
    if lacking:
        fail(seam.path, f"no entry {', '.join(lacking)}", "the entries " + ", ".join(seam.holds))
    if seam.uses:
        used = set(_words_in(_code_of(seam, target)))
        absent = [name for name in seam.uses if name not in used]
        if absent:
            fail(seam.path, f"it does not use {', '.join(absent)}", "code that does")


def _resolve(path: str) -> Any:
    module_name, _, attributes = path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        fail(path, f"its module does not import ({error})", "an importable module")
    for name in attributes.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            fail(path, f"no attribute {name!r}", "that attribute")
    return found


def _check_parameters(seam: Seam, target: Any) -> None:
    try:
        names = list(inspect.signature(target).parameters)
    except (TypeError, ValueError) as error:
        fail(seam.path, f"no signature ({error})", f"({', '.join(seam.parameters)})")
    rest = iter(names)
    if not all(name in rest for name in seam.parameters):
        fail(seam.path, f"parameters ({', '.join(names)})", f"({', '.join(seam.parameters)})")


def _fields_of(target: Any) -> set[str]:
    """Fields of a record, whichever library made it; none of anything else."""
    names = {*getattr(target, "__struct_fields__", ()), *getattr(target, "model_fields", ())}
    if dataclasses.is_dataclass(target):
        names.update(field.name for field in dataclasses.fields(target))
    return names


def _entries_of(seam: Seam, target: Any) -> Collection[Any]:
    if not isinstance(target, Collection):
        fail(seam.path, f"a {type(target).__name__}", "a collection")
    return target


def _code_of(seam: Seam, target: Any) -> CodeType:
    function: Any = target.fget if isinstance(target, property) else inspect.unwrap(target)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if not isinstance(code, CodeType):
        fail(seam.path, f"a {type(target).__name__} without code", "a function in Python")
    return code


def _words_in(code: CodeType) -> Iterator[str]:
    """Names and strings that a function's code mentions, its inner functions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _words_in(constant)
        # The names of keyword arguments are a tuple.
        for word in constant if isinstance(constant, tuple) else (constant,):
            if isinstance(word, str):
                yield word


def fail(path: str, found: str, expected: str) -> NoReturn:
    """SeamError about what is at `path`."""
    raise SeamError(
        f"SGLang seam {path}: found {found}, expected {expected}. bana {version('bana')} runs on "
        f"SGLang {SGLANG_VERSION} only: pip install sglang=={SGLANG_VERSION}"
    )
