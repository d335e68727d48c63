"""A workload's settings from a mapping; whatever is wrong with them is one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from bana.eval.record_reader import read_record
from bana.eval.workload.spec import WorkloadSpec
from bana.eval.workload.spec_checks import check_consistency


def read_workload_spec(mapping: Mapping[str, Any]) -> WorkloadSpec:
    """The checked settings; ConfigError names the key, its value and what is allowed."""
    spec = read_record(mapping, WorkloadSpec, "workload")
    check_consistency(spec)
    return spec


def check_workload_spec(spec: WorkloadSpec) -> WorkloadSpec:
    """The same settings, checked: a record that Python code built has met no check yet."""
    return read_workload_spec(msgspec.to_builtins(spec))
