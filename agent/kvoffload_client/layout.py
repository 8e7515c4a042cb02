"""What an engine's KV cache looks like: identity for sharing, geometry, and memory to copy.

Everything here is plain data; the vLLM connector and the reference engine fill it in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvoffload_api.wire.messages import Group

# Raised when the order of bytes inside a chunk's row changes: old chunks then never match.
LAYOUT_VERSION = 1

_canonical = msgspec.msgpack.Encoder(order="sorted")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLayout:
    """What ``Register`` says about an engine.

    ``identity`` is everything that must be equal for two engines to share chunks: model, revision,
    KV dtype, parallel layout, hash algorithm and initial hash. Groups, block sizes and the layout
    version are added to it by ``fingerprint_of``. Values must be msgpack-able.
    ``copies``: who copies. Engines of both kinds share chunks.
    """

    identity: Mapping[str, object]
    groups: Sequence[Group]
    world_size: int
    tokens_per_hash: int
    blocks_per_chunk: int
    block_hash_bytes: int
    enable_prefix_caching: bool = True
    prefix_cache_retention_interval: int | None = None
    copies: Literal["engine", "agent"] = "engine"


def fingerprint_of(layout: EngineLayout) -> tuple[str, bytes]:
    """Return (hex sha256, canonical msgpack) of everything that sharing depends on.

    Source: DESIGN section 4, "Partitions".
    """
    identity = _canonical.encode(
        {
            **layout.identity,
            "groups": [msgspec.structs.asdict(group) for group in layout.groups],
            "world_size": layout.world_size,
            "tokens_per_hash": layout.tokens_per_hash,
            "blocks_per_chunk": layout.blocks_per_chunk,
            "block_hash_bytes": layout.block_hash_bytes,
            "layout_version": LAYOUT_VERSION,
        }
    )
    return hashlib.sha256(identity).hexdigest(), identity


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayer:
    """One layer's KV memory: ``num_blocks`` blocks, ``block_stride`` bytes apart.

    ``memory`` is a writable buffer (the session keeps it alive) or the address of block 0, whose
    memory the caller keeps alive until the session is closed. ``block_bytes`` <= ``block_stride``.
    A tensor shaped (2, num_blocks, ...) is two layers, one for K and one for V.
    """

    memory: int | bytearray | memoryview | NDArray[np.generic]
    num_blocks: int
    block_stride: int
    block_bytes: int


# Layers of each KV cache group, in group order. The bytes of a block of a group are the
# concatenation over its layers; their sum must be the group's ``block_bytes``.
KVMemory = Sequence[Sequence[KVLayer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedKVLayer:
    """One layer's KV memory in a file that the agent may open: see ``KVLayer``.

    ``file``: a descriptor, open for reading and writing. Block 0 begins at ``offset`` bytes.
    """

    file: int
    offset: int
    num_blocks: int
    block_stride: int
    block_bytes: int


SharedKVMemory = Sequence[Sequence[SharedKVLayer]]
