"""What messages are made of: bounded numbers, keys and names."""

from __future__ import annotations

from typing import Annotated

import msgspec

from bana.radix_global.keys import KEY_BYTES
from bana.radix_global.pages import MAX_PAGE_BYTES, MAX_PAGES

CLIENT_ID_BYTES = 16
# A million tokens of context, and the same number of slots: far below the bound of a message.
MAX_BATCH_PAGES = 65_536
# What fits into a signed word: msgspec checks no larger bounds.
MAX_NUMBER = 2**63 - 1

Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
Time = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
SlotNumber = Annotated[int, msgspec.Meta(ge=0, le=MAX_PAGES)]
PageBytes = Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE_BYTES)]
Label = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Key = Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
Keys = Annotated[bytes, msgspec.Meta(max_length=MAX_BATCH_PAGES * KEY_BYTES)]
ClientId = Annotated[bytes, msgspec.Meta(min_length=CLIENT_ID_BYTES, max_length=CLIENT_ID_BYTES)]


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A record on the wire: an array, whose fields all have bounds."""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record on the wire that people read too: its fields carry their names."""
