"""What stops a load run before it has begun."""

from __future__ import annotations

from bana.slo.errors import BanaError


class LoadError(BanaError):
    """The server cannot be measured: unreachable, or not answering as it must."""
