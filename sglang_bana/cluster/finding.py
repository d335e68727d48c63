"""What a doctor says of one examined thing."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """How bad a finding is; the worst one decides the exit status."""

    OK = "ok"
    WARNING = "warning"
    BAD = "bad"


class Finding(msgspec.Struct, frozen=True):
    """One examined thing: the evidence with its threshold, its likely cause, what to change."""

    name: str
    severity: Severity
    evidence: str
    cause: str = ""
    remedy: str = ""
