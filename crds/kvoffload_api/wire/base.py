"""What every message is made of, and the bounds of its lists."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec

# Decoded, an item takes up to 25 times its encoding, which no bound of bytes covers. vLLM runs some
# thousand requests and copies, and aborts what it queues, some ten thousand, at once.
MAX_ITEMS: Final = 1 << 17
# Models have below ten groups of KV caches.
MAX_GROUPS: Final = 64
# Linux takes at most 253 descriptors in one SCM_RIGHTS message (SCM_MAX_FD).
MAX_FDS_PER_FRAME: Final = 253

_T = TypeVar("_T")
Items: TypeAlias = Annotated[list[_T], msgspec.Meta(max_length=MAX_ITEMS)]
Groups: TypeAlias = Annotated[list[_T], msgspec.Meta(max_length=MAX_GROUPS)]


class Message(msgspec.Struct, array_like=True, frozen=True, gc=False, tag=True):
    """Base of all messages: a msgpack array whose first element is the type's name."""
