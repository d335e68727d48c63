"""Request ids: minting the engine's, reading the client's.

SGLang aborts by rid *prefix*, so every rid has the same length. A rid is a UUID of version 8
(custom) whose last 32 bits name the instance it was minted for:

    xxxxxxxx-xxxx-8xxx-xxxx-xxxxTTTTTTTT      T: CRC-32 of the instance's name

so that an id handed to a client (a response, a session) finds its instance again even after a
restart of the front door.
"""

from __future__ import annotations

import re
import uuid
import zlib

_TAG_DIGITS = 8
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_MINTED_RESPONSE = re.compile(r"resp_[0-9a-f]{12}8[0-9a-f]{19}")


def tag_of(instance: str) -> str:
    """The eight hex digits that name an instance."""
    return f"{zlib.crc32(instance.encode()):08x}"


def mint_rid(tag: str = "") -> str:
    """A new rid, 32 hex digits, for the instance with this tag, or for any."""
    random = uuid.uuid4().hex
    return f"{random[:12]}8{random[13:-_TAG_DIGITS]}{tag or random[-_TAG_DIGITS:]}"


def read_tag(identifier: str) -> str:
    """The tag inside an id that `mint_rid` made, whatever prefix it carries."""
    return identifier[-_TAG_DIGITS:]


def is_request_id(text: str) -> bool:
    """Whether a client's request id can be echoed: 1-128 visible ASCII characters."""
    return _REQUEST_ID.fullmatch(text) is not None


def is_minted_response(text: str) -> bool:
    """Whether a front door, this one or another before it, made this id of a response."""
    return _MINTED_RESPONSE.fullmatch(text) is not None
