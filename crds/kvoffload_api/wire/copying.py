"""Messages of an engine for which the agent copies (DESIGN section 4, "Who copies").

Such an engine says ``copies="agent"`` when it registers. Each worker shares its KV memory right
after its welcome, is never sent a segment, and says of each job when to begin; plans, fences and
acknowledgements are those of an engine that copies by itself.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from kvoffload_api.wire.base import Groups, Items, Message

# One tensor each for K and V of a few hundred layers.
MAX_LAYERS: Final = 4096


class SharedLayer(Message, frozen=True):
    """One layer's blocks: ``num_blocks`` of ``block_bytes``, ``block_stride`` bytes apart.

    ``file`` counts the descriptors that came with the message; block 0 begins at ``offset`` bytes.
    """

    file: int
    offset: int
    num_blocks: int
    block_stride: int
    block_bytes: int


class Share(Message, frozen=True):
    """Worker: this is my KV memory, per group its layers; ``files`` fds come with it.

    Answered by ``Shared`` or ``Refused``.
    """

    files: int
    groups: Groups[Annotated[list[SharedLayer], msgspec.Meta(max_length=MAX_LAYERS)]]


class Shared(Message, frozen=True):
    """To a worker: its KV memory is open, and jobs may be started."""


class Start(Message, frozen=True):
    """Worker: begin with these jobs, in this order. Answered by ``Copied`` for each of them."""

    jobs: Items[int]


class Stop(Message, frozen=True):
    """Worker: these jobs must end soon; each still has its ``Copied``, as failed."""

    jobs: Items[int]


class CopyFailed(Message, frozen=True):
    """A job that failed, and why."""

    job: int
    reason: str


class Copied(Message, frozen=True):
    """To a worker: these jobs touch its memory no more. No byte of a failed load may be used."""

    done: list[int]
    failed: list[CopyFailed]
