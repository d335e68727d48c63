"""The exceptions of bana.

BanaError
├── ConfigError      what the user wrote cannot be used
├── SeamError        SGLang lacks something that bana relies on
├── StoreError       the KV store could not answer
│   ├── PageMissing
│   ├── PageCorrupt
│   └── StoreTimeout
└── PlanError        a policy answered outside its law

Each message says what is wrong, the value, what is allowed, and the next step.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BanaError(Exception):
    """Root of everything that bana raises on purpose."""


class ConfigError(BanaError):
    """A flag, an environment variable, a file entry or an option that cannot be used."""


class SeamError(BanaError):
    """SGLang lacks a name, signature or behaviour that bana relies on, or a hook did not take."""


class StoreError(BanaError):
    """The KV store could not answer; the caller recomputes."""


class PageMissing(StoreError):
    """No tier holds the page any more."""


class PageCorrupt(StoreError):
    """A page's bytes do not match its key, length or checksum."""


class StoreTimeout(StoreError):
    """A store operation passed its deadline."""


class PlanError(BanaError):
    """A policy returned a decision that its protocol does not allow."""


def describe_unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Say that `name` is no known `what`, list the known ones and suggest the nearest."""
    allowed = sorted(known)
    if not allowed:
        return f"unknown {what} {name!r} (known: none); leave it out"
    near = difflib.get_close_matches(name, allowed, n=1)
    step = f"did you mean {near[0]!r}?" if near else "choose one of these"
    return f"unknown {what} {name!r} (known: {', '.join(allowed)}); {step}"
